"""Fit a platform's constants to measured steps, and try them on runs that were held out.

The logarithms of the constants are fitted by least squares of ``ln(predicted / measured)``; large
errors weigh less (soft L1). Each constant is pulled weakly to its prior, which the hardware gives,
and none exceeds what the hardware can do (``at_most``). Every model size weighs alike, however many
runs it has.

Intervals are those of the sandwich estimator: runs with the same model size and cut err together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from ddlbench.common.errors import ConfigError
from ddlbench.predict.transformer.accelerators import Accelerators
from ddlbench.predict.transformer.configurations import Array
from ddlbench.predict.transformer.runs import Runs
from ddlbench.predict.transformer.step import steps

SOFT = 0.05
PULL = 0.2
"""A constant that is off its prior by its ``spread``, a factor, costs as much as an error of SOFT x
this in a share of the runs, one over the number of constants."""
HOLD_OUTS = ("hidden_size", "devices", "layers")
TRUST = 1.645
"""Standard errors on both sides of a 90 % interval."""


@dataclass(frozen=True)
class Fit:
    """Constants by name, their 90 % intervals, and the number of fitted rows."""

    constants: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    rows: int


def calibrate(runs: Runs, platform: Accelerators, intervals: bool = True) -> Fit:
    """Fit every constant of the platform's ``fitted`` to ``runs``.

    Raises:
        ConfigError: there are fewer runs than constants.
    """
    fitted = platform.values["fitted"]
    names = list(fitted)
    if len(runs) < len(names):
        raise ConfigError(
            f"{len(runs)} run(s) cannot fit {len(names)} constants; give at least {len(names)}"
        )
    priors = np.log([fitted[name]["prior"] for name in names])
    spreads = np.log([fitted[name]["spread"] for name in names])
    most = np.log([fitted[name].get("at_most", np.inf) for name in names])
    weights = _weights(runs)

    def errors(logs: Array) -> Array:
        constants = dict(zip(names, np.exp(logs), strict=True))
        seconds = steps(runs.asked, platform.with_constants(constants)).seconds
        return np.asarray(np.log(seconds / runs.measured_s))

    def residuals(logs: Array) -> Array:
        pulled = PULL * SOFT * np.sqrt(weights.sum() / len(names)) * (logs - priors) / spreads
        # Soft L1 by hand: the pull stays quadratic, and weights do not move the soft end.
        soft = np.sqrt(2 * (np.sqrt(1 + (errors(logs) / SOFT) ** 2) - 1)) * SOFT
        return np.concatenate([np.sqrt(weights) * soft, pulled])

    start = np.minimum(priors, most - 1e-3)
    found = least_squares(residuals, start, bounds=(-np.inf, most + 1e-9), x_scale=spreads)
    # The bound leaves room for the solver; what the hardware cannot do is not written.
    constants = {
        name: float(min(np.exp(log), fitted[name].get("at_most", np.inf)))
        for name, log in zip(names, found.x, strict=True)
    }
    errors_of = _standard_errors(runs, found.jac, found.fun) if intervals else np.zeros(len(names))
    ends = {
        name: (
            float(np.exp(log - TRUST * error)),
            float(np.exp(min(log + TRUST * error, highest))),
        )
        for name, log, error, highest in zip(names, found.x, errors_of, most, strict=True)
    }
    return Fit(constants, ends, len(runs))


def _weights(runs: Runs) -> Array:
    """Of each run: one over the number of runs of its hidden size; the mean is 1."""
    _, place, counts = np.unique(
        runs.column("hidden_size"), return_inverse=True, return_counts=True
    )
    weights = 1 / counts[place]
    return np.asarray(weights / weights.mean())


def _standard_errors(runs: Runs, jacobian: Array, residuals: Array) -> Array:
    """Of each logarithm: H^-1 (sum over groups of s s') H^-1, s a group's gradient."""
    count = len(runs)
    names = ("hidden_size", "tensor", "data", "pipeline")
    keys = np.stack([runs.column(name) for name in names], axis=1)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    scores = jacobian[:count] * residuals[:count, None]
    sums = np.zeros((int(group.max()) + 1, jacobian.shape[1]))
    np.add.at(sums, group.ravel(), scores)
    inverse = np.linalg.pinv(jacobian.T @ jacobian)
    return np.asarray(np.sqrt(np.maximum(np.diag(inverse @ (sums.T @ sums) @ inverse), 0.0)))


def held_out_s(runs: Runs, platform: Accelerators, by: str, also: Runs | None = None) -> Array:
    """Seconds of every run, each predicted with constants fitted without runs of its kind.

    Args:
        runs: whose kinds are held out in turn.
        platform: with priors.
        by: one of :data:`HOLD_OUTS`; the column whose values are the kinds.
        also: further runs to fit, those of the kind left out too.

    Raises:
        ConfigError: there is one kind only, or too few runs are left.
    """
    kinds = runs.column(by)
    if len(np.unique(kinds)) == 1 and also is None:
        raise ConfigError(
            f"--hold-out {by}: all runs have {by} {kinds[0]:g}; nothing is left to fit"
        )
    predicted = np.zeros(len(runs))
    for kind in np.unique(kinds):
        kept = runs.take(kinds != kind)
        if also is not None:
            kept = together(kept, also.take(also.column(by) != kind))
        fit = calibrate(kept, platform, intervals=False)
        tried = steps(runs.take(kinds == kind).asked, platform.with_constants(fit.constants))
        predicted[kinds == kind] = tried.seconds
    return predicted


def together(first: Runs, second: Runs) -> Runs:
    """Two tables of runs as one."""
    import pandas as pd  # noqa: PLC0415 - the module needs arrays alone

    from ddlbench.predict.transformer.configurations import Configurations  # noqa: PLC0415

    rows = pd.concat([first.asked.rows, second.asked.rows], ignore_index=True)
    measured: Any = np.concatenate([first.measured_s, second.measured_s])
    return Runs(Configurations(rows), measured)


def calibrated(platform: Accelerators, fit: Fit, runs: Runs, where: str) -> Accelerators:
    """The platform with fitted constants, and the interval of its predictions.

    The interval comes from ``runs``, each model size (or else number of devices) held out in turn.
    """
    by = "hidden_size" if len(np.unique(runs.column("hidden_size"))) > 1 else "devices"
    if len(np.unique(runs.column(by))) > 1:
        ratios = runs.measured_s / held_out_s(runs, platform, by)
        source = f"rows of {where}, each {by} held out in turn"
    else:
        fitted_s = steps(runs.asked, platform.with_constants(fit.constants)).seconds
        ratios = runs.measured_s / fitted_s
        source = f"rows of {where}, the same that were fitted"
    fitted = {
        name: {
            **entry,
            "value": fit.constants[name],
            "low": fit.intervals[name][0],
            "high": fit.intervals[name][1],
        }
        for name, entry in platform.values["fitted"].items()
    }
    low, high = (float(np.quantile(ratios, share)) for share in (0.05, 0.95))
    return Accelerators(
        {
            **platform.values,
            "fitted": fitted,
            "fitted_on": f"{fit.rows} rows of {where}",
            "interval": {"low": low, "high": high, "source": source},
        }
    )
