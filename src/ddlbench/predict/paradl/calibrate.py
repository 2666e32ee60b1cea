"""Fit the platform's few constants to measured iterations, and try them on what was held out.

The logarithms of the constants are found by least squares of ``ln(projected / measured)`` over
whole iterations, deviations beyond 10 % weighing less (soft L1). Each constant is also pulled,
weakly, towards what the hardware says (its prior): one that the rows say nothing of stays there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from ddlbench.experiment.errors import ConfigError
from ddlbench.predict.paradl.measured import projected
from ddlbench.predict.paradl.platform import Platform

VARIANT = "corrected"
SOFT = 0.1
PULL = 0.2
"""A constant that lies a factor of e from its prior costs as much as an error of 20 %."""
SMALL = 16
"""Devices up to which the hold-out by size fits."""
HOLD_OUTS = ("network", "size")


@dataclass(frozen=True)
class Calibration:
    """Constants that were fitted.

    Attributes:
        constants: by name.
        relative_errors: standard error of each, relative; large where the rows say little.
        rows: how many iterations were fitted.
    """

    constants: Mapping[str, float]
    relative_errors: Mapping[str, float]
    rows: int


def calibrate(rows: pd.DataFrame, platform: Platform) -> Calibration:
    """Fit every constant of the platform's ``fitted`` to ``rows``.

    Raises:
        ConfigError: there are fewer rows than constants.
    """
    said = platform.values["fitted"]
    names = list(said)
    if len(rows) < len(names):
        raise ConfigError(
            f"{len(rows)} row(s) cannot fit {len(names)} constants; give at least {len(names)}"
        )
    priors = np.log([said[name]["prior"] for name in names])
    most = np.log([said[name].get("at_most", np.inf) for name in names])
    measured = rows["seconds_per_iteration"].to_numpy(dtype=float)

    def errors(logs: Any) -> Any:
        constants = dict(zip(names, np.exp(logs), strict=True))
        told = projected(rows, platform.with_constants(constants), VARIANT)["iteration"]
        return np.concatenate([np.log(told.to_numpy() / measured), PULL * (logs - priors)])

    start = np.minimum(priors, most) - 0.05
    found = least_squares(
        errors, start, bounds=(-np.inf, most), loss="soft_l1", f_scale=SOFT, diff_step=1e-3
    )
    spread = float(np.median(np.abs(found.fun[: len(rows)]))) * 1.4826
    covariance = np.linalg.pinv(found.jac.T @ found.jac) * spread**2
    return Calibration(
        constants={name: float(np.exp(log)) for name, log in zip(names, found.x, strict=True)},
        relative_errors={
            name: float(np.sqrt(variance))
            for name, variance in zip(names, np.diag(covariance), strict=True)
        },
        rows=len(rows),
    )


def hold_out(rows: pd.DataFrame, platform: Platform, by: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows that were held out, and what constants fitted to the others say of them.

    ``by`` is "network", each in turn; or "size", fitted up to ``SMALL`` devices, tried above.

    Raises:
        ConfigError: nothing is left to fit or to try.
    """
    chosen: dict[str, Callable[[], list[Any]]] = {
        "network": lambda: [rows["model"] == name for name in rows["model"].unique()],
        "size": lambda: [rows["gpus"] > SMALL],
    }
    parts = []
    for tried in chosen[by]():
        if not tried.any() or tried.all():
            raise ConfigError(f"--hold-out {by}: nothing is left to {_lacking(tried)}")
        fitted = calibrate(rows[~tried], platform)
        parts.append(projected(rows[tried], platform.with_constants(fitted.constants), VARIANT))
    told = pd.concat(parts)
    return rows.loc[told.index], told


def _lacking(tried: Any) -> str:
    return "fit" if tried.all() else "try the constants on"
