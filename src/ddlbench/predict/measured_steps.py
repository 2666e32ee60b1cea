"""Measured steps of an oracle: read from tables, and the constants of a platform fitted to them.

The logarithms of the constants are fitted by least squares of ``ln(predicted / measured)``; large
errors weigh less (soft L1). Each constant is pulled weakly to its prior, which the hardware gives,
and none exceeds what the hardware can do (``at_most``). A constant on which the steps depend little
stays at its prior.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import nearest
from ddlbench.predict.platform_file import PlatformFile

Array = NDArray[Any]
_Platform = TypeVar("_Platform", bound=PlatformFile)

TRUST = 1.645
"""Standard errors on both sides of a 90 % interval."""
_TO_DEVIATION = 1.4826
"""Standard deviations of a normal distribution in a median absolute error."""


def read_table(path: Path, needed: Sequence[str]) -> pd.DataFrame:
    """Read a CSV table.

    Raises:
        ConfigError: it is unreadable, or one of the ``needed`` columns is missing.
    """
    try:
        table = pd.read_csv(path)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read as a CSV table: {reason}") from None
    check_columns(table, needed, str(path))
    return table


def check_columns(table: pd.DataFrame, needed: Sequence[str], where: str) -> None:
    """Raise ConfigError if a table lacks a column."""
    missing = [name for name in needed if name not in table.columns]
    if missing:
        raise ConfigError(f"{where}: column {missing[0]!r} is missing; needed: {', '.join(needed)}")


def refuse(
    wrong: pd.Series[bool],
    column: pd.Series[Any],
    where: str,
    sentence: str,
    known: Sequence[str] = (),
) -> None:
    """Raise ConfigError for the first line that is wrong.

    Args:
        wrong: of each row.
        column: its values.
        where: the table's name.
        sentence: with a place for the wrong value, and one for the nearest of ``known``.
        known: words that are right.
    """
    if wrong.any():
        at = int(wrong.to_numpy().argmax())
        value = column.tolist()[at]
        remark = sentence.format(value, nearest(value, known))
        raise ConfigError(f"{where} line {at + 2}: {remark}")


@dataclass(frozen=True)
class Fit:
    """Fitted constants.

    Args:
        constants: by name.
        relative_errors: standard errors of their logarithms.
        intervals: of 90 %, cut off at what the hardware can do.
        rows: number of fitted steps.
    """

    constants: Mapping[str, float]
    relative_errors: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    rows: int

    def of(self, name: str) -> dict[str, float]:
        """What is known of one constant, as JSON values."""
        low, high = self.intervals[name]
        error = self.relative_errors[name]
        return {"value": self.constants[name], "relative_error": error, "low": low, "high": high}


def soft_l1(errors: Array, soft: float) -> Array:
    """Sizes of residuals whose squares grow as lines where an error is far above ``soft``."""
    return np.asarray(soft * np.sqrt(2 * (np.sqrt(1 + (errors / soft) ** 2) - 1)))


def fit(
    platform: _Platform,
    predicted_s: Callable[[_Platform], Array],
    measured_s: Array,
    *,
    soft: float,
    pull: float,
    soft_pull: bool = False,
    weights: Array | None = None,
    groups: Array | None = None,
) -> Fit:
    """Fit every constant of a platform.

    Args:
        platform: with priors.
        predicted_s: seconds of the n measured steps on a platform.
        measured_s: the same as measured, (n,).
        soft: error of a logarithm beyond which errors weigh less.
        pull: residual of a constant that is off its prior by its spread.
        soft_pull: a constant far from its prior is pulled less, as large errors weigh less.
        weights: of the steps, (n,); alike if left out.
        groups: numbers from 0 on, (n,): steps of one group err together. Left out, errors are taken
            as independent and equally large.

    Raises:
        ConfigError: there are fewer steps than constants.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - slow to import

    names, count = list(platform.fitted), len(measured_s)
    if count < len(names):
        raise ConfigError(
            f"{count} row(s) cannot fit {len(names)} constants; give at least {len(names)}"
        )
    fitted = platform.fitted.values()
    priors = np.log([constant.prior for constant in fitted])
    spreads = np.log([constant.spread for constant in fitted])
    most = np.log([constant.limit for constant in fitted])
    roots = np.ones(count) if weights is None else np.sqrt(weights)

    def residuals(logs: Array) -> Array:
        constants = dict(zip(names, np.exp(logs).tolist(), strict=True))
        errors = np.log(predicted_s(platform.with_constants(constants)) / measured_s)
        pulled = pull * (logs - priors) / spreads
        # Soft by hand: weights do not move the soft end, and the pull may stay quadratic.
        pulled = soft_l1(pulled, soft) if soft_pull else pulled
        return np.concatenate([roots * soft_l1(errors, soft), pulled])

    solved = least_squares(
        residuals,
        np.minimum(priors, most - 1e-3),
        bounds=(-np.inf, most + 1e-9),
        x_scale=spreads,
    )
    if groups is None:
        errors = _independent_errors(solved.jac, solved.fun, count, soft)
    else:
        errors = _errors_of_groups(solved.jac[:count], solved.fun[:count], solved.jac, groups)
    low, high = solved.x - TRUST * errors, np.minimum(solved.x + TRUST * errors, most)
    # The bound leaves room for the solver; what the hardware cannot do is not written.
    constants = np.minimum(np.exp(solved.x), [constant.limit for constant in fitted])
    ends = zip(np.exp(low).tolist(), np.exp(high).tolist(), strict=True)
    return Fit(
        constants=dict(zip(names, constants.tolist(), strict=True)),
        relative_errors=dict(zip(names, errors.tolist(), strict=True)),
        intervals=dict(zip(names, ends, strict=True)),
        rows=count,
    )


def _independent_errors(jacobian: Array, residuals: Array, count: int, soft: float) -> Array:
    """Of unweighted steps and a soft pull: the spread of the errors, over the cost's curvature."""
    roots = 1 + (residuals / soft) ** 2 / 2  # sqrt(1 + (error / soft)^2) of each soft residual
    curved = jacobian * np.sqrt(2 / (roots * (roots + 1)))[:, None]
    spread = _TO_DEVIATION * soft * np.median(np.sqrt(roots[:count] ** 2 - 1))
    return np.asarray(np.sqrt(np.diag(np.linalg.pinv(curved.T @ curved))) * spread)


def _errors_of_groups(jacobian: Array, residuals: Array, whole: Array, groups: Array) -> Array:
    """Sandwich estimator: H^-1 (sum over groups of s s') H^-1, s a group's gradient."""
    sums = np.zeros((int(groups.max()) + 1, jacobian.shape[1]))
    np.add.at(sums, groups, jacobian * residuals[:, None])
    inverse = np.linalg.pinv(whole.T @ whole)
    return np.asarray(np.sqrt(np.maximum(np.diag(inverse @ (sums.T @ sums) @ inverse), 0.0)))
