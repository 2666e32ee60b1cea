"""Fit the platform's few constants to measured iterations, and test them on held-out rows.

The logarithms of the constants are fitted by least squares of ``ln(projected / measured)`` over
whole iterations; deviations beyond 10 % weigh less (soft L1). Each constant is also pulled weakly
towards its prior, which the hardware gives. A constant on which the rows depend little stays there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from ddlbench.common.errors import ConfigError
from ddlbench.predict.paradl.measured import projected
from ddlbench.predict.paradl.platform import Platform

VARIANT = "corrected"
SOFT = 0.1
PULL = 0.2
"""A constant at a factor of e from its prior costs as much as an error of 20 %."""
SMALL = 16
"""The hold-out by size fits rows of up to so many devices."""
HOLD_OUTS = ("network", "size")


@dataclass(frozen=True)
class Calibration:
    """Fitted constants by name, their relative standard errors, and the number of fitted rows."""

    constants: Mapping[str, float]
    relative_errors: Mapping[str, float]
    rows: int


def calibrate(rows: pd.DataFrame, platform: Platform) -> Calibration:
    """Fit every constant of the platform's ``fitted`` to ``rows``.

    Raises:
        ConfigError: there are fewer rows than constants.
    """
    fitted = platform.values["fitted"]
    names = list(fitted)
    if len(rows) < len(names):
        raise ConfigError(
            f"{len(rows)} row(s) cannot fit {len(names)} constants; give at least {len(names)}"
        )
    priors = np.log([fitted[name]["prior"] for name in names])
    most = np.log([fitted[name].get("at_most", np.inf) for name in names])
    measured = rows["seconds_per_iteration"].to_numpy(dtype=float)

    def errors(logs: Any) -> Any:
        constants = dict(zip(names, np.exp(logs), strict=True))
        seconds = projected(rows, platform.with_constants(constants), VARIANT)["iteration"]
        return np.concatenate([np.log(seconds.to_numpy() / measured), PULL * (logs - priors)])

    start = np.minimum(priors, most) - 0.05
    fit = least_squares(
        errors, start, bounds=(-np.inf, most), loss="soft_l1", f_scale=SOFT, diff_step=1e-3
    )
    spread = float(np.median(np.abs(fit.fun[: len(rows)]))) * 1.4826
    covariance = np.linalg.pinv(fit.jac.T @ fit.jac) * spread**2
    return Calibration(
        constants={name: float(np.exp(log)) for name, log in zip(names, fit.x, strict=True)},
        relative_errors={
            name: float(np.sqrt(variance))
            for name, variance in zip(names, np.diag(covariance), strict=True)
        },
        rows=len(rows),
    )


def hold_out(rows: pd.DataFrame, platform: Platform, by: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The held-out rows, and their projection with constants fitted to the other rows.

    ``by`` is "network" (each network in turn is held out) or "size" (rows of more than ``SMALL``
    devices are held out).

    Raises:
        ConfigError: no row is left to fit, or none is held out.
    """
    held_out = [rows["gpus"] > SMALL]
    if by == "network":
        held_out = [rows["model"] == name for name in rows["model"].unique()]
    parts = []
    for tested in held_out:
        if not tested.any() or tested.all():
            missing = "fit" if tested.all() else "try the constants on"
            raise ConfigError(f"--hold-out {by}: nothing is left to {missing}")
        constants = calibrate(rows[~tested], platform).constants
        parts.append(projected(rows[tested], platform.with_constants(constants), VARIANT))
    projections = pd.concat(parts)
    return rows.loc[projections.index], projections
