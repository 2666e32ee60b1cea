"""Whether measured links are normal for a device, a fabric and a number of nodes.

::

    measured over expected time     low        1        high
    verdict                    fast  |      normal       |  slow

Expected times and intervals are those of :mod:`.collective_times`. Within an interval that is wider
than a factor of four no time is called normal. Nothing is said beyond twice as many nodes as the
library was fitted to.
Copies between two devices are compared with the data sheet: a copy reaches at least what a ring
does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted, size_text
from ddlbench.predict.collective_times import (
    LONG,
    OPERATIONS,
    SHORT,
    Groups,
    Library,
    Operation,
    seconds,
    size_class,
)
from ddlbench.predict.hardware import System

Verdict = Literal["normal", "slow", "fast", "cannot tell"]
_WIDE = 4.0
_OVER_SHEET = 1.02
"""What rounding adds to a rate that equals the data sheet's."""


@dataclass(frozen=True)
class Measured:
    """A sweep of one operation.

    Args:
        operation: which.
        nodes, devices_per_node: of its ranks.
        payload_bytes: of the whole buffer, of each point.
        time_s: of each point.
        name: for the reader, as the transport.
    """

    operation: str
    nodes: int
    devices_per_node: int
    payload_bytes: Sequence[float]
    time_s: Sequence[float]
    name: str = ""


@dataclass(frozen=True)
class Judged:
    """One point, or one pair of devices: ``value`` is in s of a message, in bytes/s of a copy."""

    what: str
    payload_bytes: float | None
    measured: float
    expected: float
    low: float
    high: float
    verdict: Verdict


def judged_sweep(sweep: Measured, system: System, library: Library) -> list[Judged]:
    """The verdict of each point.

    Raises:
        ConfigError: the operation is not known.
    """
    if sweep.operation not in OPERATIONS:
        raise ConfigError(
            f"{sweep.operation}: no time is expected of it; write one of {', '.join(OPERATIONS)}"
        )
    groups = Groups.of_system(system, len(sweep.time_s))
    payload = np.array(sweep.payload_bytes, dtype=float)
    expected_s = seconds(groups, payload, library, cast(Operation, sweep.operation))
    known = why_not(system, library) == ""
    verdicts = []
    for size, measured, expected in zip(payload, sweep.time_s, expected_s, strict=True):
        interval = library.intervals[size_class(float(size))]
        ends = float(expected * interval.low), float(expected * interval.high)
        verdict = _verdict(float(measured), *ends, tells=known)
        verdicts.append(
            Judged(sweep.operation, float(size), float(measured), float(expected), *ends, verdict)
        )
    return verdicts


def judged_pairs(
    rates: Sequence[tuple[str, float]], system: System, library: Library
) -> list[Judged]:
    """The verdict of copies between two devices of a node, named and in bytes/s one way.

    The interval reaches from the lowest normal rate of a ring to the data sheet. In a mesh two
    devices have some of all links, which the names do not tell.
    """
    sheet = system.device.link
    ring = library.constant("ring_share") * sheet.bytes_per_s
    low = ring / library.intervals[LONG].high
    high = sheet.bytes_per_s * _OVER_SHEET
    verdicts = []
    for name, rate in rates:
        verdict: Verdict = "cannot tell"
        if sheet.all_to_all:
            verdict = "slow" if rate < low else "fast" if rate > high else "normal"
        verdicts.append(Judged(name, None, rate, ring, low, sheet.bytes_per_s, verdict))
    return verdicts


def _verdict(measured: float, low: float, high: float, *, tells: bool) -> Verdict:
    if not tells:
        return "cannot tell"
    if measured > high:
        return "slow"
    if measured < low:
        return "fast"
    return "normal" if high <= _WIDE * low else "cannot tell"


def why_not(system: System, library: Library) -> str:
    """Why no point of a system can be judged; empty if it can."""
    link, most = system.device.link, library.most_nodes
    if system.nodes > 2 * most:
        return f"no fit has more than {counted(most, 'node')}, and {system.nodes} are over twice"
    if link.name not in ("NVLink", "NVSwitch") and not library.of_one_cluster:
        return f"no fit has devices with {link.name}"
    return ""


def overall(judged: Sequence[Judged]) -> tuple[Verdict, list[Judged]]:
    """The verdict of many points, and those that it counts: the longest class that tells.

    A third of them outside their interval decide, as one in ten lies outside by chance.
    """
    for decisive in _decisive(judged):
        verdicts = Counter(each.verdict for each in decisive)
        known = sum(verdicts.values()) - verdicts["cannot tell"]
        if known == 0:
            continue
        for verdict in ("slow", "fast"):
            if verdicts[verdict] * 3 >= known:
                return cast(Verdict, verdict), decisive
        return "normal", decisive
    return "cannot tell", list(judged)


def _decisive(judged: Sequence[Judged]) -> Iterator[list[Judged]]:
    pairs = [each for each in judged if each.payload_bytes is None]
    sizes = [each for each in judged if each.payload_bytes is not None]
    longest = [each for each in sizes if size_class(each.payload_bytes or 0) == LONG]
    yield pairs
    yield longest
    yield [each for each in sizes if size_class(each.payload_bytes or 0) != SHORT]


def sentence(judged: Sequence[Judged], system: System, library: Library, fabric: str = "") -> str:
    """One sentence on all points."""
    verdict, decisive = overall(judged)
    nodes = "one node" if system.nodes == 1 else f"{system.nodes} nodes"
    over = f" over {fabric}" if fabric and system.nodes > 1 else ""
    where = f"{nodes} of {system.devices_per_node} x {system.device.description}{over}"
    if verdict == "cannot tell":
        why = why_not(system, library) or "no point is long enough, or no interval narrow enough"
        return f"Cannot tell whether this is normal for {where}: {why}."
    is_pairs = decisive[0].payload_bytes is None
    outside = sum(each.verdict == verdict for each in decisive)
    ratios = [each.measured / each.expected for each in decisive]
    middle = f"{_factor(float(np.median(ratios)))} times the expected"
    what, quantity = ("copies", "rates") if is_pairs else ("messages", "times")
    if verdict == "normal":
        return f"Normal for {where}: {quantity} are {middle} in the median."
    impossible = ""
    if is_pairs and verdict == "fast":
        impossible = (
            f" The data sheet has {size_text(system.device.link.bytes_per_s)}/s one way: look at "
            "the unit, and whether both directions are added."
        )
    return (
        f"{verdict.capitalize()} for {where}: {outside} of {len(decisive)} {what} "
        f"lie outside the interval; {quantity} are {middle} in the median.{impossible}"
    )


def _factor(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.1g}"
