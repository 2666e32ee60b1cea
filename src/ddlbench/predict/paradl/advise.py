"""Uses of the oracle: the best strategy, the limits of each, devices for a target."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ddlbench.experiment.errors import ConfigError
from ddlbench.predict.paradl.configuration import HYBRIDS, STRATEGIES, Projection, question
from ddlbench.predict.paradl.oracle import project, refused
from ddlbench.predict.paradl.platform import Platform
from ddlbench.predict.paradl.workload import Workload

SEGMENTS = 4
"""Micro-batches of a pipeline for each stage: a bubble of at most a fifth (Huang et al. 2019)."""


@dataclass(frozen=True)
class Candidate:
    """One strategy on some devices; ``why`` it cannot run is empty when it can."""

    projection: Projection
    epoch_s: float
    why: str


@dataclass(frozen=True)
class Reach:
    """One strategy as it scales.

    Attributes:
        sizes: projections at rising numbers of devices that the platform has.
        regimes: (devices, term): from where on which term of an iteration is the longest.
        communication_from: devices from where on communication outweighs computation.
        stops: what ends the scaling, and where.
    """

    strategy: str
    sizes: tuple[Candidate, ...]
    regimes: tuple[tuple[int, str], ...]
    communication_from: int | None
    stops: str


def best(
    workload: Workload, platform: Platform, devices: int, batch: float, variant: str = "corrected"
) -> list[Candidate]:
    """Every strategy on ``devices`` at one global batch: what can run by epoch time, then the rest.

    Raises:
        ConfigError: numbers that no strategy can have.
    """
    if devices < 1 or batch <= 0:
        raise ConfigError(f"{devices} device(s) and a batch of {batch:g}: write numbers above 0")
    found = []
    for strategy in STRATEGIES:
        if (strategy == "serial") != (devices == 1) or not _whole(strategy, devices, platform):
            continue
        found.append(_candidate(workload, platform, variant, (strategy, devices, batch)))
    return sorted(found, key=lambda one: (bool(one.why), one.epoch_s))


def reach(
    workload: Workload,
    platform: Platform,
    batch: float,
    strategy: str,
    *,
    variant: str = "corrected",
    most: int | None = None,
) -> Reach:
    """One strategy at 1, 2, 4, ... devices, until it, the platform or ``most`` ends it.

    ``batch`` is samples of a device (data), of a node (hybrids), of all devices (others).
    """
    sizes = tuple(_grow(workload, platform, batch, strategy, variant=variant, most=most))
    runnable = [one for one in sizes if not one.why]
    regimes: list[tuple[int, str]] = []
    for one in runnable:
        term = one.projection.bottleneck
        if not regimes or regimes[-1][1] != term:
            regimes.append((one.projection.question.devices, term))
    outweighed = (
        one.projection.question.devices
        for one in runnable
        if one.projection.communication_s > one.projection.compute_s
    )
    refusals = [(one.projection.question.devices, one.why) for one in sizes if one.why]
    stops = f"the platform: {platform.largest_ring} devices"
    if strategy == "serial":
        stops = "1 device"
    if refusals:
        devices, why = refusals[-1] if sizes[-1].why else refusals[0]
        stops = f"{devices} devices: {why}"
    return Reach(strategy, sizes, tuple(regimes), next(outweighed, None), stops)


def target(
    workload: Workload,
    platform: Platform,
    batch: float,
    epoch_s: float,
    *,
    variant: str = "corrected",
    most: int | None = None,
) -> list[tuple[str, Candidate | None]]:
    """Fewest devices with which each strategy ends an epoch in ``epoch_s``; None where none does.

    Raises:
        ConfigError: the time is not above 0.
    """
    if epoch_s <= 0:
        raise ConfigError(f"an epoch of {epoch_s:g} s: write a time above 0")
    found: list[tuple[str, Candidate | None]] = []
    for strategy in STRATEGIES:
        sizes = _grow(workload, platform, batch, strategy, variant=variant, most=most)
        found.append(
            (strategy, next((one for one in sizes if not one.why and one.epoch_s <= epoch_s), None))
        )
    return sorted(found, key=lambda one: one[1].projection.question.devices if one[1] else math.inf)


def _grow(
    workload: Workload,
    platform: Platform,
    batch: float,
    strategy: str,
    *,
    variant: str,
    most: int | None,
) -> Iterator[Candidate]:
    devices, largest = 1, min(platform.largest_ring, most or platform.largest_ring)
    while devices <= largest:
        if _whole(strategy, devices, platform) and (strategy == "serial" or devices > 1):
            groups = {
                "data": devices,
                **dict.fromkeys(HYBRIDS, devices // platform.devices_per_node),
            }
            total = batch * max(1, groups.get(strategy, 1))
            one = _candidate(workload, platform, variant, (strategy, devices, total))
            yield one
            if strategy == "serial" or devices > one.projection.max_devices:
                return
        devices *= 2


def _whole(strategy: str, devices: int, platform: Platform) -> bool:
    """Hybrids fill nodes."""
    return strategy not in HYBRIDS or devices % platform.devices_per_node == 0


def _candidate(
    workload: Workload, platform: Platform, variant: str, wanted: tuple[str, int, float]
) -> Candidate:
    strategy, devices, batch = wanted
    segments = max(1, min(int(batch), SEGMENTS * devices))
    asked = question(strategy, devices, platform.devices_per_node, batch, segments)
    found = project(variant, workload, platform, asked)
    iterations = math.ceil(workload.samples_per_epoch / batch)
    return Candidate(found, iterations * found.iteration_s, refused(found, platform))
