"""Constants of models, and the measured steps to which they are fitted.

The logarithms of the constants are fitted by least squares of ``ln(predicted / measured)``; large
errors weigh less (soft L1). Each constant is pulled weakly to its prior, which the hardware gives,
and none exceeds what the hardware can do (``at_most``). A constant on which the steps depend little
stays at its prior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast

import numpy as np
import yaml
from annotated_types import Gt
from numpy.typing import NDArray

from ddlbench.common.document import read_once, write_text
from ddlbench.common.errors import ConfigError, file_fault
from ddlbench.common.form import Amount, Form, Name, Positive
from ddlbench.common.quantities import counted
from ddlbench.common.schema import nearest, read_checked, read_yaml
from ddlbench.experiment.paths import project_file

Array = NDArray[Any]


class Rows:
    """A dataclass of rows as columns: arrays, mappings of arrays, or further :class:`Rows`.

    Fields of another type are of all rows alike.
    """

    def take(self, chosen: Any) -> Self:
        """Some rows: a mask, or their places."""
        return cast(Self, _of_columns(lambda columns: columns[0][chosen], [self]))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The rows of all parts."""
        return cast(Self, _of_columns(np.concatenate, parts))


def _of_columns(made: Callable[[Sequence[Array]], Array], parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, np.ndarray):
        return made(parts)
    if isinstance(first, Mapping):
        return {name: _of_columns(made, [part[name] for part in parts]) for name in first}
    if isinstance(first, Rows):
        columns = {
            field.name: _of_columns(made, [getattr(part, field.name) for part in parts])
            for field in fields(cast(Any, first))
        }
        return replace(cast(Any, first), **columns)
    return first


@dataclass(frozen=True, kw_only=True)
class Described(Form):
    """A file of a folder of ``config``.

    Class attributes:
        folder: below ``config``.
        noun: what a file describes, for messages.
    """

    folder: ClassVar[str]
    noun: ClassVar[str]

    description: Name

    @classmethod
    def load(cls, name: str) -> Self:
        """Read ``config/<folder>/<name>.yaml``, or the file ``name`` if it is a path.

        Raises:
            ConfigError: there is no such file, or a key is wrong.
        """
        is_path = name.endswith((".yaml", ".yml"))
        path = Path(name) if is_path else cls._folder() / f"{name}.yaml"
        if not path.is_file():
            near = nearest(name, cls.names())
            raise ConfigError(f"{cls.noun} {name!r} has no file {path}; {near}")
        described: Self = _described(path, cls)
        return described

    @classmethod
    def names(cls) -> list[str]:
        """Names of the shipped files."""
        return sorted(path.stem for path in cls._folder().glob("*.yaml"))

    def check(self, where: str) -> None:
        """Raise ConfigError if values do not fit together."""

    @classmethod
    def _folder(cls) -> Path:
        return project_file(f"config/{cls.folder}")


@read_once(200)  # the name of a device is looked for in all files of devices
def _described(path: Path, kind: Any) -> Any:
    described = read_checked(kind, read_yaml(path), str(path))
    described.check(str(path))
    return described


@dataclass(frozen=True, kw_only=True)
class Constant(Form):
    """One constant that `ddlbench calibrate` fits."""

    value: Positive
    prior: Positive
    """What is expected before any fit."""
    spread: Annotated[float, Gt(1)] = math.e
    """Factor by which the prior may be off."""
    at_most: Positive | None = None
    """What the hardware cannot exceed."""
    unit: Name = ""
    meaning: Name
    prior_source: Name = ""
    fixed: bool = False
    """It stays at its value: rows say too little of it."""
    low: Amount | None = None
    """Lower end of the 90 % interval."""
    high: Amount | None = None
    """Upper end of the 90 % interval."""

    @property
    def limit(self) -> float:
        """``at_most``, or infinite."""
        return math.inf if self.at_most is None else self.at_most


@dataclass(frozen=True, kw_only=True)
class HeldOut(Form):
    """Measured over predicted steps of rows that were held out."""

    low: Positive
    """5th percentile."""
    high: Positive
    """95th percentile."""
    source: Name

    @classmethod
    def of(cls, ratios: Sequence[float] | Array, source: str) -> Self:
        """The percentiles of what these ratios are drawn from.

        The k-th of n is taken for the k / (n + 1) quantile, so that a further ratio lies between
        both in 90 % of cases, from 19 ratios on (Weibull 1939, as conformal prediction has it).
        """
        low, high = np.quantile(ratios, (0.05, 0.95), method="weibull").tolist()
        return cls(low=low, high=high, source=source)


@dataclass(frozen=True, kw_only=True)
class WithConstants(Described):
    """What has constants that measurements can tell.

    Class attributes:
        needed: constants that every file has.
        header: first line of a file that is written.
    """

    needed: ClassVar[tuple[str, ...]] = ()
    header: ClassVar[str] = "# Written by `ddlbench calibrate`, or by hand: see docs/oracle.md.\n"

    constants: Mapping[str, Constant]
    """Constants that `ddlbench calibrate` fits, by name."""

    def constant(self, name: str) -> float:
        """The value of a constant.

        Raises:
            ConfigError: there is none of that name.
        """
        if name not in self.constants:
            raise ConfigError(
                f"{self.description}: this prediction needs the constant {name!r}, which it lacks; "
                "take another file, or add value and prior"
            )
        return self.constants[name].value

    def values(self) -> dict[str, float]:
        """The values of all constants, by name."""
        return {name: constant.value for name, constant in self.constants.items()}

    def check(self, where: str) -> None:
        """Raise ConfigError if a constant is missing, or larger than it can be."""
        super().check(where)
        for name in self.needed:
            if name not in self.constants:
                raise ConfigError(f"{where}: constants: {name!r} is missing; add value and prior")
        for name, constant in self.constants.items():
            if constant.value > constant.limit:
                raise ConfigError(
                    f"{where}: constants: {name} is {constant.value:g}; "
                    f"write at most {constant.limit:g}"
                )

    def with_constants(self, values: Mapping[str, float]) -> Self:
        """The model with other values."""
        changed = {name: replace(self.constants[name], value=values[name]) for name in values}
        return replace(self, constants={**self.constants, **changed})

    def with_priors(self, names: Iterable[str] | None = None) -> Self:
        """The model as before any fit, in these constants or in all."""
        chosen = self.constants if names is None else names
        return self.with_constants({name: self.constants[name].prior for name in chosen})

    def fitted_to(self, *fits: Fit) -> Self:
        """The model with fitted values and their intervals."""
        changed = dict(self.constants)
        for fitted in fits:
            for name, value in fitted.constants.items():
                low, high = fitted.intervals[name]
                changed[name] = replace(changed[name], value=value, low=low, high=high)
        return replace(self, constants=changed)

    def write(self, path: Path) -> None:
        """Write the file atomically, without defaults, constants last.

        Raises:
            ConfigError: the path cannot be written.
        """
        values = self.to_dict(without_defaults=True)
        values["constants"] = values.pop("constants")
        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)
        try:
            write_text(path, self.header + text)
        except OSError as error:
            raise ConfigError(file_fault(error, path) or error) from None


_NO_SLOPE = 1e-9
"""Change of a residual with a constant's logarithm that is none, but for rounding."""
_NO_MOVE = 1e-4
"""Distance of a constant's logarithm from its prior that is none, but for the solver."""

_Model = TypeVar("_Model", bound=WithConstants)

TRUST = 1.645
"""Standard errors on both sides of a 90 % interval."""
_TO_DEVIATION = 1.4826
"""Standard deviations of a normal distribution in a median absolute error."""


@dataclass(frozen=True)
class Fit:
    """Fitted constants.

    Args:
        constants: by name.
        relative_errors: standard errors of their logarithms.
        intervals: of 90 %, cut off at what the hardware can do.
        rows: number of fitted steps.
        unknown: constants on which no step depends; they stay at their priors, and their intervals
            are those of the priors.
    """

    constants: Mapping[str, float]
    relative_errors: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    rows: int
    unknown: tuple[str, ...] = ()

    def of(self, name: str) -> dict[str, float | bool]:
        """What is known of one constant, as JSON values."""
        low, high = self.intervals[name]
        error = self.relative_errors[name]
        values: dict[str, float | bool] = {
            "value": self.constants[name], "relative_error": error, "low": low, "high": high,
        }  # fmt: skip
        return {**values, "unknown": True} if name in self.unknown else values


def soft_l1(errors: Array, soft: float) -> Array:
    """Sizes of residuals whose squares grow as lines where an error is far above ``soft``."""
    return np.asarray(soft * np.sqrt(2 * (np.sqrt(1 + (errors / soft) ** 2) - 1)))


def cauchy(errors: Array, soft: float) -> Array:
    """Sizes of residuals whose squares grow as logarithms: broken runs hardly pull."""
    return np.asarray(soft * np.sqrt(np.log1p((errors / soft) ** 2)))


def equal_weights(kinds: Sequence[Any] | Array) -> Array:
    """Weights of rows, 1 in the mean: each kind weighs alike, however many rows it has."""
    _, place, counts = np.unique(kinds, return_inverse=True, return_counts=True)
    weights = 1 / counts[place]
    return np.asarray(weights / weights.mean())


def weak_pull(soft: float, rows: float, constants: int) -> float:
    """The pull of priors in a fit of so many constants, for :func:`fit`.

    A constant that is one spread off its prior costs as much as an error of ``soft / 5`` in
    ``rows / constants`` of the rows.
    """
    return 0.2 * soft * math.sqrt(rows / constants)


def fit(
    model: _Model,
    predicted_s: Callable[[_Model], Array],
    measured_s: Array,
    *,
    soft: float,
    pull: float,
    soft_pull: bool = False,
    few: bool = False,
    weights: Array | None = None,
    groups: Array | None = None,
    loss: Callable[[Array, float], Array] = soft_l1,
    names: Sequence[str] | None = None,
) -> Fit:
    """Fit constants of a model.

    Args:
        model: with priors.
        predicted_s: seconds of the n measured steps by a model.
        measured_s: the same as measured, (n,).
        soft: error of a logarithm beyond which errors weigh less.
        pull: residual of a constant that is off its prior by its spread.
        soft_pull: a constant far from its prior is pulled less, as large errors weigh less.
        few: the priors are those of a fit, so that fewer steps than constants tell something. What
            steps do not tell of a constant, its prior does: an error is not below that of both.
        weights: of the steps, (n,); alike if left out.
        groups: numbers from 0 on, (n,): steps of one group err together. Left out, errors are taken
            as independent and equally large.
        loss: of errors; with another than soft L1 give groups.
        names: of the constants to fit; all that are not fixed if left out.

    Raises:
        ConfigError: there are fewer steps than constants, and not ``few``.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - slow to import

    moved = [name for name, constant in model.constants.items() if not constant.fixed]
    names, count = list(names or moved), len(measured_s)
    if count < len(names) and not few:
        raise ConfigError(
            f"{counted(count, 'row')} cannot fit {len(names)} constants; give at least {len(names)}"
        )
    fitted = [model.constants[name] for name in names]
    priors = np.log([constant.prior for constant in fitted])
    spreads = np.log([constant.spread for constant in fitted])
    most = np.log([constant.limit for constant in fitted])
    roots = np.ones(count) if weights is None else np.sqrt(weights)

    def residuals(logs: Array) -> Array:
        constants = dict(zip(names, np.exp(logs).tolist(), strict=True))
        errors = np.log(predicted_s(model.with_constants(constants)) / measured_s)
        pulled = pull * (logs - priors) / spreads
        # Soft by hand: weights do not move the soft end, and the pull may stay quadratic.
        pulled = soft_l1(pulled, soft) if soft_pull else pulled
        return np.concatenate([roots * loss(errors, soft), pulled])

    solved = least_squares(
        residuals,
        np.minimum(priors, most - 1e-3),
        bounds=(-np.inf, most + 1e-9),
        x_scale=spreads,
    )
    if groups is None:
        errors = _independent_errors(solved.jac, solved.fun, count, soft)
    else:
        least = pull**2 if few else 0.0
        errors = _errors_of_groups(
            solved.jac[:count], solved.fun[:count], solved.jac, groups, least
        )
    # No step depends on them, so that their errors would be 0: what is known is the prior. Steps
    # may have moved a constant up to where they depend on it no more.
    unmoved = np.abs(solved.x - priors) <= _NO_MOVE
    unknown = (np.abs(solved.jac[:count]).max(axis=0) <= _NO_SLOPE) & unmoved
    errors, logs = np.where(unknown, spreads, errors), np.where(unknown, priors, solved.x)
    low, high = logs - TRUST * errors, np.minimum(logs + TRUST * errors, most)
    # The bound leaves room for the solver; what the hardware cannot do is not written.
    constants = np.minimum(np.exp(logs), [constant.limit for constant in fitted])
    ends = zip(np.exp(low).tolist(), np.exp(high).tolist(), strict=True)
    return Fit(
        constants=dict(zip(names, constants.tolist(), strict=True)),
        relative_errors=dict(zip(names, errors.tolist(), strict=True)),
        intervals=dict(zip(names, ends, strict=True)),
        rows=count,
        unknown=tuple(name for name, each in zip(names, unknown, strict=True) if each),
    )


def _independent_errors(jacobian: Array, residuals: Array, count: int, soft: float) -> Array:
    """Errors of constants by unweighted steps and a soft pull: spread over the cost's curvature."""
    roots = 1 + (residuals / soft) ** 2 / 2  # sqrt(1 + (error / soft)^2) of each soft residual
    curved = jacobian * np.sqrt(2 / (roots * (roots + 1)))[:, None]
    spread = _TO_DEVIATION * soft * np.median(np.sqrt(roots[:count] ** 2 - 1))
    return np.asarray(np.sqrt(np.diag(np.linalg.pinv(curved.T @ curved))) * spread)


def _errors_of_groups(
    jacobian: Array, residuals: Array, whole: Array, groups: Array, least: float
) -> Array:
    """Sandwich estimator: H^-1 (sum over groups of s s') H^-1, s a group's gradient.

    It is near 0 for a constant that few steps decide, as the fit goes through them. So errors are
    at least those of steps that err independently, as all of them do, with a variance of at least
    ``least``.
    """
    count, constants = jacobian.shape
    sums = np.zeros((int(groups.max()) + 1, constants))
    np.add.at(sums, groups, jacobian * residuals[:, None])
    inverse = np.linalg.pinv(whole.T @ whole)
    variance = max(np.sum(residuals**2) / max(count - constants, 1), least)
    return np.sqrt(
        np.maximum(np.diag(inverse @ (sums.T @ sums) @ inverse), np.diag(inverse) * variance)
    )
