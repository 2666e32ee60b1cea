"""ParaDL's oracle: an iteration of each strategy, its limits, and devices for a target time.

Limits: the most devices of a strategy, and the layer that limits them (Table III, last column). As
printed, a spatial split is a grid over width and height, and every convolution counts. Corrected,
a split is along one dimension, as is the cost of its halo, with at least one row per device. The
first convolution of channel parallelism stays whole, as an image has three channels. For this
project's strategies linear layers count too, and the dimensions along which the rows lie.

Memory of the fullest device: Table III counts every activation twice, as a layer's output and as
the next one's input. It doubles both for their gradients, which never live all at once, and it
leaves out the optimizer. Corrected:

    4 [ b (|x_1| + sum_l |y_l|)  outputs kept for the backward pass
      + b max_l (|x_l| + |y_l|)  gradients on both sides of the layer that goes backward
      + (2 + states) |w| ]       weights, gradients, optimizer

A split divides some of it: filters and channels divide the weights of split convolutions (outputs
are gathered and stay whole), space the activations of the split layers, a pipeline both by stage,
with all micro-batches in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from math import prod

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import GB, counted, duration_text
from ddlbench.common.statistics import doubled
from ddlbench.predict.hardware import Platform
from ddlbench.predict.paradl import authors_code, corrected, printed
from ddlbench.predict.paradl.authors_code import ITEM_BYTES, Terms
from ddlbench.predict.paradl.configuration import (
    HYBRIDS,
    STRATEGIES,
    Configuration,
    Projection,
    configuration_of,
    groups_of,
)
from ddlbench.predict.paradl.corrected import stage_bounds, weight_shares
from ddlbench.predict.paradl.workload import Layer, Workload, load_workload


def corrected_bytes(workload: Workload, platform: Platform, config: Configuration) -> float:
    """Bytes of the fullest device."""
    states = platform.device.optimizer_states
    layers = workload.layers
    if config.strategy == "pipeline":
        bounds = stage_bounds(workload, platform, config.devices)
        return max(
            _bytes(layers[start:end], config.batch, [1.0] * (end - start),
                   sum(layer.weights for layer in layers[start:end]), states)
            for start, end in bounds
        )  # fmt: skip
    p = config.inside
    shares = [1.0] * len(layers)
    weights = float(workload.weights)
    if config.strategy in ("spatial", "data+spatial"):
        count = workload.spatial_layers
        shares = [1 / p if index < count else 1.0 for index in range(len(layers))]
        if config.project_split is not None:
            shares = list(config.project_split.shares)
    elif config.strategy in ("filter", "channel", "data+filter"):
        parts = zip(layers, weight_shares(workload, config), strict=True)
        weights = sum(layer.weights * share for layer, share in parts)
    return _bytes(layers, config.group_batch, shares, weights, states)


def _bytes(
    layers: Sequence[Layer], batch: float, shares: Sequence[float], weights: float, states: float
) -> float:
    kept = layers[0].x * shares[0]
    kept += sum(layer.y * share for layer, share in zip(layers, shares, strict=True))
    going = max((layer.x + layer.y) * share for layer, share in zip(layers, shares, strict=True))
    return ITEM_BYTES * (batch * (kept + going) + (2 + states) * weights)


Limit = tuple[int, str]
_WITH_WEIGHTS = ("conv", "linear")


def published_limit(workload: Workload, config: Configuration) -> Limit:
    """Most devices, and what limits them, as a layer (Table III: W_l H_l of inputs)."""
    convolutions = _of_kinds(workload, "conv")
    split = workload.layers[: workload.spatial_layers]
    return _limit(
        workload,
        config,
        convolutions,
        min((layer.x // layer.channels, layer.name) for layer in split),
    )


def corrected_limit(workload: Workload, config: Configuration) -> Limit:
    """Most devices, and the layer or other thing that limits them."""
    divided = (
        _of_kinds(workload, "conv")
        if config.project_split is None
        else _of_kinds(workload, *_WITH_WEIGHTS)
    )
    if config.strategy == "channel":
        divided = divided[1:] or divided
    split = workload.layers[: workload.spatial_layers]
    # The rows of an output; along several dimensions the product of its extents.
    rows = min(
        (prod(layer.output[dim] for dim in config.split_dims), layer.name) for layer in split
    )
    limit = _limit(workload, config, divided, rows)
    if config.strategy in HYBRIDS:  # a group has a sample or more
        return min(limit, (int(config.batch) * config.inside, "the batch"))
    return limit


def _limit(
    workload: Workload, config: Configuration, divided: list[Layer], spatial: Limit
) -> Limit:
    filters = min((layer.filters, layer.name) for layer in divided)
    channels = min((layer.channels, layer.name) for layer in divided)
    samples = int(config.batch)
    return {
        "serial": (1, "one device"),
        "data": (samples, "the batch"),
        "filter": filters,
        "channel": channels,
        "spatial": spatial,
        "data+filter": (samples * filters[0], f"the batch and {filters[1]}"),
        "data+spatial": (samples * spatial[0], f"the batch and {spatial[1]}"),
        "pipeline": (len(workload.layers), "the number of layers"),
    }[config.strategy]


def _of_kinds(workload: Workload, *kinds: str) -> list[Layer]:
    return [layer for layer in workload.layers if layer.kind in kinds]


@dataclass(frozen=True)
class Variant:
    """One way to evaluate Table III."""

    terms: Mapping[str, Callable[[Workload, Platform, Configuration], Terms]]
    memory_bytes: Callable[[Workload, Platform, Configuration], float]
    limit: Callable[[Workload, Configuration], tuple[int, str]]


VARIANTS = {
    "authors-code": Variant(authors_code.TERMS, authors_code.memory_bytes, published_limit),
    "printed-table": Variant(printed.TERMS, authors_code.memory_bytes, published_limit),
    "corrected": Variant(corrected.TERMS, corrected_bytes, corrected_limit),
}


def terms_of(variant: str, workload: Workload, platform: Platform, config: Configuration) -> Terms:
    """Seconds of one iteration, by term: of computation, of communication.

    Raises:
        ConfigError: as :func:`project`.
    """
    terms = VARIANTS[variant].terms
    if config.strategy not in terms:
        raise ConfigError(f"{variant} has no row for {config.strategy}; it has {', '.join(terms)}")
    return terms[config.strategy](workload, platform, config)


def project(
    variant: str, workload: Workload, platform: Platform, config: Configuration
) -> Projection:
    """Seconds and bytes of one iteration, also beyond the strategy's limits.

    The variant is a key of :data:`VARIANTS`.

    Raises:
        ConfigError: a variant without the strategy, or more devices than the platform has.
    """
    computation, communication = terms_of(variant, workload, platform, config)
    evaluated = VARIANTS[variant]
    memory_bytes = evaluated.memory_bytes(workload, platform, config)
    limit = evaluated.limit(workload, config)
    return Projection(config, computation, communication, memory_bytes, *limit)


def refused(projection: Projection, platform: Platform) -> str:
    """The reason if a strategy cannot run like this; empty if it can."""
    config, capacity = projection.configuration, platform.device.memory_bytes
    if config.devices > projection.max_devices:
        most = counted(projection.max_devices, "device")
        return f"at most {most}, limited by {projection.limiting_layer}"
    if projection.memory_bytes > capacity:
        needed = GB.text(projection.memory_bytes, ".1f")
        return f"needs {needed} of {GB.text(capacity, '.1f')} a device"
    return ""


SEGMENTS = 4
"""Micro-batches of a pipeline per stage: a bubble of at most a fifth (Huang et al. 2019)."""


@dataclass(frozen=True)
class Question:
    """What is trained, on which devices.

    Args:
        network: name of the workload, or its file.
        platform: the devices.
        batch_size: samples of all devices; where numbers of devices are compared, of a device
            (data), of a node (hybrids) or of all devices (others).
        variant: of the oracle.
        max_devices: that are tried; all of the platform if left out.
    """

    network: str
    platform: Platform
    batch_size: float
    variant: str = "corrected"
    max_devices: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"--batch-size {self.batch_size:g}: write 1 or more")

    @cached_property
    def workload(self) -> Workload:
        return load_workload(self.network)

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies that the variant has a row for."""
        return tuple(name for name in STRATEGIES if name in VARIANTS[self.variant].terms)

    @property
    def most_devices(self) -> int:
        """That are tried."""
        return min(self.platform.largest_ring, self.max_devices or self.platform.largest_ring)


@dataclass(frozen=True)
class Answer:
    """One strategy on some devices; ``why`` is the reason if it cannot run, else empty."""

    projection: Projection
    epoch_s: float
    why: str

    @property
    def strategy(self) -> str:
        return self.projection.configuration.strategy

    @property
    def devices(self) -> int:
        return self.projection.configuration.devices


@dataclass(frozen=True)
class Reach:
    """How one strategy scales.

    Attributes:
        sizes: answers at rising numbers of devices of the platform.
        regimes: (devices, term): from this number on, this term of an iteration is the longest.
        communication_from: fewest devices with which communication takes longer than computation.
        stops: what ends the scaling, and at how many devices.
        end: the same in few words.
    """

    strategy: str
    sizes: tuple[Answer, ...]
    regimes: tuple[tuple[int, str], ...]
    communication_from: int | None
    stops: str
    end: str


def best(question: Question, devices: int) -> list[Answer]:
    """Every strategy on ``devices`` at one global batch, by epoch time; those that can run first.

    Raises:
        ConfigError: ``devices`` is not above 0.
    """
    if devices < 1:
        raise ConfigError(f"{devices} devices: write a number above 0")
    answers = [
        _answer(question, strategy, devices, question.batch_size)
        for strategy in question.strategies
        if _suits(strategy, devices, question.platform)
    ]
    return sorted(answers, key=lambda answer: (bool(answer.why), answer.epoch_s))


def reach(question: Question, strategy: str) -> Reach:
    """One strategy at 1, 2, 4, ... devices, up to its limit, the platform's or ``max_devices``."""
    sizes = tuple(_scaling(question, strategy, doubled(1, question.most_devices)))
    regimes: list[tuple[int, str]] = []
    outweighed = []
    for answer in sizes:
        if answer.why:
            continue
        if not regimes or regimes[-1][1] != answer.projection.bottleneck:
            regimes.append((answer.devices, answer.projection.bottleneck))
        if answer.projection.communication_s > answer.projection.compute_s:
            outweighed.append(answer.devices)
    most = question.most_devices
    limit = "the platform" if most == question.platform.largest_ring else "--max-devices"
    stops, end = f"{limit}: {counted(most, 'device')}", f"{counted(most, 'device')} ({limit})"
    if strategy == "serial":
        stops = end = "1 device"
    if (refusal := _last_refusal(sizes)) is not None:
        stops = end = f"{counted(refusal.devices, 'device')}: {refusal.why}"
        most, layer = refusal.projection.max_devices, refusal.projection.limiting_layer
        if refusal.devices > most:
            end = f"{most:,} devices ({layer.removeprefix('the ')})"
    return Reach(strategy, sizes, tuple(regimes), next(iter(outweighed), None), stops, end)


def _last_refusal(sizes: Sequence[Answer]) -> Answer | None:
    """The first refusal after which none can run; None if the largest size can."""
    after = list(takewhile(lambda answer: bool(answer.why), reversed(sizes)))
    return after[-1] if after else None


def fewest(question: Question, epoch_s: float) -> dict[str, Answer | str]:
    """Fewest devices with which each strategy ends an epoch in ``epoch_s``, or why it cannot.

    Raises:
        ConfigError: the time is not above 0.
    """
    if epoch_s <= 0:
        raise ConfigError(f"an epoch of {epoch_s:g} s: write a time above 0")
    smallest = {name: _fewest(question, name, epoch_s) for name in question.strategies}

    def devices(entry: tuple[str, Answer | str]) -> float:
        return math.inf if isinstance(entry[1], str) else entry[1].devices

    return dict(sorted(smallest.items(), key=devices))


def _fewest(question: Question, strategy: str, epoch_s: float) -> Answer | str:
    sizes = []
    for answer in _scaling(question, strategy, range(1, question.most_devices + 1)):
        if not answer.why and answer.epoch_s <= epoch_s:
            return answer
        sizes.append(answer)
    able = [answer for answer in sizes if not answer.why]
    if able:
        fastest = min(able, key=lambda answer: answer.epoch_s)
        return f"{duration_text(fastest.epoch_s)} at best, on {counted(fastest.devices, 'device')}"
    if not sizes:
        whole = f"whole nodes of {question.platform.devices_per_node} devices"
        return f"it needs {whole if strategy in HYBRIDS else 'two devices or more'}"
    return sizes[0].why


def _scaling(question: Question, strategy: str, counts: Iterable[int]) -> Iterator[Answer]:
    """Answers on those of the rising numbers of devices that suit, up to the first too large."""
    platform = question.platform
    for devices in counts:
        if not _suits(strategy, devices, platform):
            continue
        groups = groups_of(strategy, devices, platform.devices_per_node)
        answer = _answer(question, strategy, devices, question.batch_size * groups)
        yield answer
        if devices > answer.projection.max_devices:
            return


def _suits(strategy: str, devices: int, platform: Platform) -> bool:
    """Serial is of one device alone, all others of several; a hybrid has whole nodes."""
    whole = strategy not in HYBRIDS or devices % platform.devices_per_node == 0
    return whole and (strategy == "serial") == (devices == 1)


def _answer(question: Question, strategy: str, devices: int, batch: float) -> Answer:
    workload, platform = question.workload, question.platform
    segments = max(1, min(int(batch), SEGMENTS * devices))
    config = configuration_of(strategy, devices, platform.devices_per_node, batch, segments)
    projection = project(question.variant, workload, platform, config)
    iterations = math.ceil(workload.samples_per_epoch / batch)
    return Answer(projection, iterations * projection.iteration_s, refused(projection, platform))
