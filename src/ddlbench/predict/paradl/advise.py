"""Advice from the oracle: the best strategy, the limits of each, devices for a target time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ddlbench.common.errors import ConfigError
from ddlbench.predict.paradl.configuration import HYBRIDS, STRATEGIES, Projection, configuration_of
from ddlbench.predict.paradl.oracle import project, refused
from ddlbench.predict.paradl.platform import Platform
from ddlbench.predict.paradl.workload import Workload

SEGMENTS = 4
"""Micro-batches of a pipeline per stage: a bubble of at most a fifth (Huang et al. 2019)."""


@dataclass(frozen=True)
class Candidate:
    """One strategy on some devices; ``why`` is the reason if it cannot run, else empty."""

    projection: Projection
    epoch_s: float
    why: str


@dataclass(frozen=True)
class Reach:
    """How one strategy scales.

    Attributes:
        sizes: projections at rising numbers of devices of the platform.
        regimes: (devices, term): from this number on, this term of an iteration is the longest.
        communication_from: fewest devices with which communication takes longer than computation.
        stops: what ends the scaling, and at how many devices.
    """

    strategy: str
    sizes: tuple[Candidate, ...]
    regimes: tuple[tuple[int, str], ...]
    communication_from: int | None
    stops: str


def best(
    workload: Workload, platform: Platform, devices: int, batch: float, variant: str = "corrected"
) -> list[Candidate]:
    """Every strategy on ``devices`` at one global batch, by epoch time; those that can run first.

    Raises:
        ConfigError: ``devices`` or ``batch`` is not above 0.
    """
    if devices < 1 or batch <= 0:
        raise ConfigError(f"{devices} device(s) and a batch of {batch:g}: write numbers above 0")
    candidates = [
        _candidate(workload, platform, variant, strategy, devices=devices, batch=batch)
        for strategy in STRATEGIES
        if (strategy == "serial") == (devices == 1) and _fills_nodes(strategy, devices, platform)
    ]
    return sorted(candidates, key=lambda one: (bool(one.why), one.epoch_s))


def reach(
    workload: Workload,
    platform: Platform,
    batch: float,
    strategy: str,
    *,
    variant: str = "corrected",
    most: int | None = None,
) -> Reach:
    """One strategy at 1, 2, 4, ... devices, up to its limit, the platform's or ``most``.

    ``batch`` is the samples of a device (data), of a node (hybrids) or of all devices (others).
    """
    sizes = tuple(_grow(workload, platform, batch, strategy, variant=variant, most=most))
    runnable = [one for one in sizes if not one.why]
    regimes: list[tuple[int, str]] = []
    for one in runnable:
        term = one.projection.bottleneck
        if not regimes or regimes[-1][1] != term:
            regimes.append((one.projection.configuration.devices, term))
    outweighed = (
        one.projection.configuration.devices
        for one in runnable
        if one.projection.communication_s > one.projection.compute_s
    )
    refusals = [(one.projection.configuration.devices, one.why) for one in sizes if one.why]
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
    """Fewest devices with which each strategy ends an epoch in ``epoch_s``; None if it cannot.

    Raises:
        ConfigError: the time is not above 0.
    """
    if epoch_s <= 0:
        raise ConfigError(f"an epoch of {epoch_s:g} s: write a time above 0")
    smallest: list[tuple[str, Candidate | None]] = []
    for strategy in STRATEGIES:
        sizes = _grow(workload, platform, batch, strategy, variant=variant, most=most)
        in_time = (one for one in sizes if not one.why and one.epoch_s <= epoch_s)
        smallest.append((strategy, next(in_time, None)))
    return sorted(
        smallest, key=lambda one: one[1].projection.configuration.devices if one[1] else math.inf
    )


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
        if _fills_nodes(strategy, devices, platform) and (strategy == "serial" or devices > 1):
            groups = 1
            if strategy == "data":
                groups = devices
            elif strategy in HYBRIDS:
                groups = devices // platform.devices_per_node
            one = _candidate(
                workload, platform, variant, strategy, devices=devices, batch=batch * groups
            )
            yield one
            if strategy == "serial" or devices > one.projection.max_devices:
                return
        devices *= 2


def _fills_nodes(strategy: str, devices: int, platform: Platform) -> bool:
    """Whether a hybrid has whole nodes; true for all other strategies."""
    return strategy not in HYBRIDS or devices % platform.devices_per_node == 0


def _candidate(
    workload: Workload,
    platform: Platform,
    variant: str,
    strategy: str,
    *,
    devices: int,
    batch: float,
) -> Candidate:
    segments = max(1, min(int(batch), SEGMENTS * devices))
    config = configuration_of(strategy, devices, platform.devices_per_node, batch, segments)
    projection = project(variant, workload, platform, config)
    iterations = math.ceil(workload.samples_per_epoch / batch)
    return Candidate(projection, iterations * projection.iteration_s, refused(projection, platform))
