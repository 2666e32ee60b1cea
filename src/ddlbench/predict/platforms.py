"""Platforms of the oracles, and the measured steps to which their constants are fitted.

The logarithms of the constants are fitted by least squares of ``ln(predicted / measured)``; large
errors weigh less (soft L1). Each constant is pulled weakly to its prior, which the hardware gives,
and none exceeds what the hardware can do (``at_most``). A constant on which the steps depend little
stays at its prior.

A platform is the data sheet of a cluster and a few constants. ``config/platforms/<name>.yaml`` is
of one of two kinds: levels of a network, for ParaDL's oracle of CNNs, or accelerators and their
links, for the oracle of transformers. The fields of the dataclasses below are the keys of a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, TypeVar

import numpy as np
import pandas as pd
import yaml
from annotated_types import Gt, MinLen
from numpy.typing import NDArray

from ddlbench.common.document import write_text
from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Amount, Count, Form, Name, Positive
from ddlbench.common.schema import nearest, read_checked, read_yaml
from ddlbench.experiment.paths import project_root

_HEADER = "# Written by `ddlbench oracle calibrate`, or by hand: see docs/oracle.md.\n"


@dataclass(frozen=True, kw_only=True)
class Constant(Form):
    """One constant that `ddlbench oracle calibrate` fits."""

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


def write_last(form: Form, last: str, path: Path, header: str) -> None:
    """Write a form as YAML atomically, without defaults, with its key ``last`` at the end.

    Raises:
        ConfigError: the path cannot be written.
    """
    values = form.to_dict(without_defaults=True)
    values[last] = values.pop(last)
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)
    try:
        write_text(path, header + text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


@dataclass(frozen=True, kw_only=True)
class PlatformFile(Form):
    """What both kinds of platform file have.

    Class attributes:
        mark, other_mark: keys that only files of this kind, and of the other, have.
        constants: that a file must have.
    """

    mark: ClassVar[str]
    other_mark: ClassVar[str]
    constants: ClassVar[tuple[str, ...]]

    description: Name
    devices_per_node: Count
    fitted: Mapping[str, Constant]
    """Constants that `ddlbench oracle calibrate` fits."""

    def constant(self, name: str) -> float:
        return self.fitted[name].value

    def with_constants(self, constants: Mapping[str, float]) -> Self:
        changed = {
            name: replace(self.fitted[name], value=value) for name, value in constants.items()
        }
        return replace(self, fitted={**self.fitted, **changed})

    @classmethod
    def load(cls, name: str) -> Self:
        """Read ``config/platforms/<name>.yaml``, or the file ``name`` if it is a path.

        Raises:
            ConfigError: there is no such platform, it is of the other kind, or a key is wrong.
        """
        folder = project_root() / "config" / "platforms"
        path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
        if not path.is_file():
            remark = nearest(name, cls._known(folder))
            raise ConfigError(f"platform {name!r} has no file {path}; {remark}")
        values = read_yaml(path)
        if cls.other_mark in values and cls.mark not in values:
            raise ConfigError(
                f"{path}: describes a platform of the other oracle; "
                f"write one of {', '.join(cls._known(folder))}"
            )
        platform = read_checked(cls, values, str(path))
        platform.check(str(path))
        return platform

    def check(self, where: str) -> None:
        """Raise ConfigError if a constant is missing, or larger than it can be."""
        for name in self.constants:
            if name not in self.fitted:
                raise ConfigError(f"{where}: fitted: {name!r} is missing; add value and prior")
        for name, constant in self.fitted.items():
            if constant.value > constant.limit:
                raise ConfigError(
                    f"{where}: fitted: {name} is {constant.value:g}; "
                    f"write at most {constant.limit:g}"
                )

    @classmethod
    def _known(cls, folder: Path) -> list[str]:
        """Names of the platforms of this kind."""
        texts = {file: file.read_text("utf-8", "replace") for file in sorted(folder.glob("*.yaml"))}
        return [file.stem for file, text in texts.items() if f"\n{cls.mark}:" in text]

    def write(self, path: Path) -> None:
        """Write a platform file atomically, without keys that have their default.

        Raises:
            ConfigError: the path cannot be written.
        """
        write_last(self, "fitted", path, _HEADER)


@dataclass(frozen=True, kw_only=True)
class Device(Form):
    """The data sheet of one device."""

    memory_bytes: Positive
    flops_per_s: Positive
    """Peak of the arithmetic that training computes in."""
    memory_bytes_per_s: Positive


@dataclass(frozen=True, kw_only=True)
class TrainedDevice(Device):
    """A device of ParaDL's oracle."""

    optimizer_states: Amount = 1.0
    """Tensors as large as the weights that the optimizer keeps (momentum 1, Adam 2)."""


@dataclass(frozen=True)
class Link:
    """A link between two devices (Hockney): ``latency_s + bytes * s_per_byte``."""

    latency_s: float
    s_per_byte: float

    def slower(self, factor: float) -> Link:
        """The same link with ``factor`` times the seconds per byte."""
        return Link(self.latency_s, self.s_per_byte * factor)


@dataclass(frozen=True, kw_only=True)
class Rate(Form):
    """What a way between devices carries."""

    bandwidth_bytes_per_s: Positive
    source: Name


@dataclass(frozen=True, kw_only=True)
class Way(Rate):
    """A way between devices, with its latency."""

    latency_s: Amount

    @property
    def link(self) -> Link:
        return Link(self.latency_s, 1 / self.bandwidth_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class Level(Way):
    """A level of a network: all rings up to a number of devices."""

    name: Name
    largest_ring: Count


@dataclass(frozen=True, kw_only=True)
class Ways(Form):
    """Ways that are no level of the network."""

    host: Way
    """From device to device through the host's memory."""


@dataclass(frozen=True, kw_only=True)
class Platform(PlatformFile):
    """A cluster as ParaDL's oracle sees it: levels of a network with latency and bandwidth."""

    mark: ClassVar[str] = "levels"
    other_mark: ClassVar[str] = "links"
    constants: ClassVar[tuple[str, ...]] = (
        "ring_efficiency", "contention", "activation_efficiency", "staged_bytes_per_s",
        "layer_overhead_s",
    )  # fmt: skip

    links_per_node: Count = 1
    """Network links of one node, each of the bandwidth of its level."""
    device: TrainedDevice
    levels: Annotated[tuple[Level, ...], MinLen(1)]
    """From the inside of a node outwards, largest_ring rising."""
    paths: Ways
    gradients: Mapping[str, Literal["direct", "staged"]]
    """How each strategy's gradients travel, device to device or through host memory."""

    @property
    def largest_ring(self) -> int:
        """Devices of the outermost level."""
        return self.levels[-1].largest_ring

    def level(self, ring: int) -> Link:
        """The slowest hop of a ring of ``ring`` devices that lie side by side.

        Raises:
            ConfigError: the platform has no ring of that size.
        """
        for level in self.levels:
            if ring <= level.largest_ring:
                return level.link
        raise ConfigError(
            f"{ring} devices are more than the platform's largest ring, {self.largest_ring}; "
            "ask for fewer, or add a level to the platform file"
        )

    def staged(self, strategy: str) -> bool:
        """Whether a strategy's gradients go through host memory."""
        return self.gradients.get(strategy) == "staged"

    def check(self, where: str) -> None:
        """Raise ConfigError as :meth:`PlatformFile.check`, or if levels do not grow outwards."""
        super().check(where)
        rings = [level.largest_ring for level in self.levels]
        if rings != sorted(set(rings)):
            raise ConfigError(
                f"{where}: levels: largest_ring is {rings}; write the inside of a node first, and "
                "each level larger than the one before"
            )


@dataclass(frozen=True, kw_only=True)
class Accelerator(Device):
    """A device of the oracle of transformers."""

    source: Name


@dataclass(frozen=True, kw_only=True)
class Rates(Form):
    """Links of a node."""

    node: Rate
    """Of one device to the others of its node, one way."""
    network: Rate
    """Of all network cards of a node together, one way."""


@dataclass(frozen=True, kw_only=True)
class HeldOut(Form):
    """Measured over predicted steps of rows that were held out."""

    low: Positive
    """5th percentile."""
    high: Positive
    """95th percentile."""
    source: Name


@dataclass(frozen=True, kw_only=True)
class Accelerators(PlatformFile):
    """A cluster as the oracle of transformers sees it: devices of a node, and links."""

    mark: ClassVar[str] = "links"
    other_mark: ClassVar[str] = "levels"
    constants: ClassVar[tuple[str, ...]] = (
        "matmul_efficiency", "matmul_width", "attention_efficiency", "memory_efficiency",
        "kernel_s", "host_layer_s", "host_collective_s", "host_softmax_s", "node_efficiency",
        "half_node_share", "collective_s", "uneven_vocabulary", "network_efficiency", "send_s",
        "update_efficiency",
    )  # fmt: skip

    device: Accelerator
    links: Rates
    interval: HeldOut
    fitted_on: Name = ""
    """Rows of the last fit."""

    @property
    def node_bytes_per_s(self) -> float:
        """What a device sends to the others of its node."""
        return self.links.node.bandwidth_bytes_per_s * self.constant("node_efficiency")

    @property
    def network_bytes_per_s(self) -> float:
        """What all network cards of a node send together."""
        return self.links.network.bandwidth_bytes_per_s * self.constant("network_efficiency")


Array = NDArray[Any]


class Fittable(Protocol):
    """What has constants that measurements can tell."""

    @property
    def fitted(self) -> Mapping[str, Constant]:
        """By name."""

    def with_constants(self, constants: Mapping[str, float]) -> Self:
        """The same with other values."""


_Platform = TypeVar("_Platform", bound=Fittable)

TRUST = 1.645
"""Standard errors on both sides of a 90 % interval."""
_TO_DEVIATION = 1.4826
"""Standard deviations of a normal distribution in a median absolute error."""


def read_table(path: Path, needed: Sequence[str]) -> pd.DataFrame:
    """Read a CSV table.

    Raises:
        ConfigError: it is unreadable, a column stands twice, rows have more values than there are
            columns, or one of the ``needed`` columns is missing.
    """
    try:
        table = pd.read_csv(path, skipinitialspace=True).rename(columns=str.strip)
        header = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0].dropna().str.strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is no text in UTF-8; save it as CSV in UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path}: cannot be read as a CSV table: {reason}") from None
    if len(header) == 1 and (sign := next((s for s in _OTHER_SIGNS if s in header.iloc[0]), "")):
        raise ConfigError(
            f"{path}: {sign!r} stands between its columns; write commas, and points in numbers"
        )
    if header.duplicated().any():
        twice = header[header.duplicated()].iloc[0]
        raise ConfigError(f"{path}: column {twice!r} stands twice; keep one")
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes the first column for names
        raise ConfigError(
            f"{path}: its rows have more values than its first line has columns; write a value for "
            "each column, and no comma after the last"
        )
    check_columns(table, needed, str(path))
    return table


_OTHER_SIGNS = (";", "\t", "|")


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


def cauchy(errors: Array, soft: float) -> Array:
    """Sizes of residuals whose squares grow as logarithms: broken runs hardly pull."""
    return np.asarray(soft * np.sqrt(np.log1p((errors / soft) ** 2)))


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
    loss: Callable[[Array, float], Array] = soft_l1,
    names: Sequence[str] | None = None,
) -> Fit:
    """Fit constants of a platform.

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
        loss: of errors; with another than soft L1 give groups.
        names: of the constants to fit; all that are not fixed if left out.

    Raises:
        ConfigError: there are fewer steps than constants.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - slow to import

    moved = [name for name, constant in platform.fitted.items() if not constant.fixed]
    names, count = list(names or moved), len(measured_s)
    if count < len(names):
        raise ConfigError(
            f"{count} row(s) cannot fit {len(names)} constants; give at least {len(names)}"
        )
    fitted = [platform.fitted[name] for name in names]
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
