"""The best strategy, the limits of each, and devices for a target time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ddlbench.common.errors import ConfigError
from ddlbench.common.units import doubled
from ddlbench.predict.paradl.configuration import (
    HYBRIDS,
    STRATEGIES,
    Projection,
    configuration_of,
    groups_of,
)
from ddlbench.predict.paradl.oracle import project, refused
from ddlbench.predict.paradl.workload import Workload, load_workload
from ddlbench.predict.platform_file import Platform

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
        if self.batch_size <= 0:
            raise ConfigError(f"--batch-size {self.batch_size:g}: write a number above 0")

    @cached_property
    def workload(self) -> Workload:
        return load_workload(self.network)


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
        for strategy in STRATEGIES
        if _suits(strategy, devices, question.platform)
    ]
    return sorted(answers, key=lambda one: (bool(one.why), one.epoch_s))


def reach(question: Question, strategy: str) -> Reach:
    """One strategy at 1, 2, 4, ... devices, up to its limit, the platform's or ``max_devices``."""
    sizes = tuple(_scaling(question, strategy))
    regimes: list[tuple[int, str]] = []
    outweighed = []
    for one in sizes:
        if one.why:
            continue
        if not regimes or regimes[-1][1] != one.projection.bottleneck:
            regimes.append((one.devices, one.projection.bottleneck))
        if one.projection.communication_s > one.projection.compute_s:
            outweighed.append(one.devices)
    ring = question.platform.largest_ring
    stops, end = f"the platform: {ring} devices", f"{ring:,} devices (the platform)"
    if strategy == "serial":
        stops = end = "1 device"
    refusals = [one for one in sizes if one.why]
    if refusals:
        last = refusals[-1] if sizes[-1].why else refusals[0]
        stops = end = f"{last.devices} devices: {last.why}"
        most, layer = last.projection.max_devices, last.projection.limiting_layer
        if last.devices > most:
            end = f"{most:,} devices ({layer.removeprefix('the ')})"
    return Reach(strategy, sizes, tuple(regimes), next(iter(outweighed), None), stops, end)


def fewest(question: Question, epoch_s: float) -> dict[str, Answer | None]:
    """Fewest devices with which each strategy ends an epoch in ``epoch_s``; None if it cannot.

    Raises:
        ConfigError: the time is not above 0.
    """
    if epoch_s <= 0:
        raise ConfigError(f"an epoch of {epoch_s:g} s: write a time above 0")
    smallest = {
        strategy: next(
            (one for one in _scaling(question, strategy) if not one.why and one.epoch_s <= epoch_s),
            None,
        )
        for strategy in STRATEGIES
    }
    return dict(sorted(smallest.items(), key=lambda one: one[1].devices if one[1] else math.inf))


def _scaling(question: Question, strategy: str) -> Iterator[Answer]:
    platform = question.platform
    most = min(platform.largest_ring, question.max_devices or platform.largest_ring)
    for devices in doubled(1, most):
        if not _suits(strategy, devices, platform):
            continue
        groups = groups_of(strategy, devices, platform.devices_per_node)
        one = _answer(question, strategy, devices, question.batch_size * groups)
        yield one
        if devices > one.projection.max_devices:
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
