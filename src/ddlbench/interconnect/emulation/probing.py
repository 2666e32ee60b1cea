"""Measures what emulated links do: delay, loss, TCP's goodput, rate; in this order.

::

    delay   echo requests answered by the other node's kernel; half a round trip is one way
    loss    small UDP packets at an easy pace, counted at the other end
    TCP     one connection for some round trips: told, not judged
    rate    UDP, a tenth more than the setting, with no loss; what comes out is the rate

Delay and rate are measured from every node to the next, around; loss and TCP from node 0 to 1.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from ddlbench.experiment.fabric import LinkCondition
from ddlbench.interconnect.emulation.backend import Backend
from ddlbench.interconnect.emulation.errors import EmulationFailed
from ddlbench.interconnect.emulation.judge import misses
from ddlbench.interconnect.emulation.shape import burst_packets, queue_bytes
from ddlbench.interconnect.emulation.traffic import Nodes, exchange, ping

__all__ = ["one_way_delay", "probe"]

# Half a second of them, so that the median knows nothing of what holds a machine up for a moment;
# and close together, as packets are while ranks talk: 20 ms apart they are measured to be later.
_ECHOES, _LEAST_ECHOES, _MOST_ECHOES = 100, 10, 400
_ECHO_INTERVAL_S = 0.005
_LOSS_PACKETS, _LOSS_PACKETS_PER_S, _LOSS_S = 20_000, 10_000.0, 10.0
_LOSS_PAYLOAD_BYTES = 100
_HEADERS_BYTES = 28  # of IP, and of UDP or of an echo
_OFFERED, _SETTLE_S, _MEASURE_S, _LONGER_S = 1.1, 0.3, 1.0, 0.5
# The first interval is told. One honest link of twenty lies outside it, so the second judges.
_CONFIDENCE, _WIDE_CONFIDENCE = 0.95, 0.999


def one_way_delay(
    nodes: Nodes, pair: tuple[int, int], condition: LinkCondition, backend: Backend
) -> float | None:
    """Seconds from one node of a pair to the other; None when too few echoes came back.

    Half the median round trip, less the time that an echo itself takes on the two links that it
    crosses: the setting counts from its last bit, and at low rates that is a share of it.
    """
    echoes = min(_MOST_ECHOES, math.ceil(_ECHOES / (1 - condition.loss) ** 2))
    round_trips_s = ping(
        *(nodes, *pair),
        count=echoes,
        interval_s=_ECHO_INTERVAL_S,
        wait_s=1.0 + 3 * condition.latency_s,
    )
    if len(round_trips_s) < _LEAST_ECHOES:
        return None
    rate = condition.bandwidth_bits_per_s
    echo_bytes = _HEADERS_BYTES + backend.header_bytes
    return median(round_trips_s) / 2 - (2 * echo_bytes * 8 / rate if rate else 0.0)


def probe(
    nodes: Nodes,
    count: int,
    condition: LinkCondition,
    backend: Backend,
    congestion_controls: Sequence[str] = (),
) -> dict[str, Any]:
    """What was set, what was measured, and what is missed.

    Args:
        nodes: the network.
        count: number of nodes.
        condition: what was set.
        backend: of the links.
        congestion_controls: to report goodput of, beside the condition's own.

    Raises:
        EmulationFailed: nothing can be measured.
    """
    backend.reset_usage()
    ring = [(node, (node + 1) % count) for node in range(count)]
    delays = [one_way_delay(nodes, pair, condition, backend) for pair in ring]
    loss = _loss(nodes, condition)
    controls = dict.fromkeys((None, *congestion_controls))
    goodputs = [_goodput(nodes, condition, control) for control in controls]
    with backend.without_loss():
        rates = [_rate(nodes, *pair, condition) for pair in ring]
    pairs = [
        {"from": source, "to": target, "one_way_delay_s": delay_s, "rate_bits_per_s": rate}
        for (source, target), delay_s, rate in zip(ring, delays, rates, strict=True)
    ]
    measured = {
        "links": backend.describe(),
        "one_way_delay_s": _furthest(delays, condition.latency_s),
        "rate_bits_per_s": _furthest(rates, condition.bandwidth_bits_per_s),
        "pairs": pairs,
        "loss": loss,
        "tcp": goodputs,
        "usage": backend.usage(),
    }
    setting = {**condition.to_dict(), "nodes": count}
    found = misses(setting, measured)
    return {"setting": setting, "measured": measured, "ok": not found, "misses": found}


def _rate(nodes: Nodes, source: int, target: int, condition: LinkCondition) -> float | None:
    """Bits per second, as IP counts them; None without a setting, or where too little came."""
    asked = condition.bandwidth_bits_per_s
    if asked is None:
        return None
    payload_bytes = condition.mtu - _HEADERS_BYTES
    packets_per_s, offered_s = (
        _OFFERED * asked / 8 / condition.mtu,
        _SETTLE_S + _MEASURE_S + _LONGER_S,
    )
    _, received = exchange(
        *(nodes, source, target, "udp"),
        sender={
            "payload_bytes": payload_bytes,
            "bundle": burst_packets(condition),
            "packets_per_s": packets_per_s,
            "packets": math.ceil(packets_per_s * offered_s),
        },
        receiver={
            "settle_s": _SETTLE_S,
            "measure_s": _MEASURE_S,
            "expected": None,
            "quiet_s": 1.0,
        },
    )
    # What still waits would be in the way of who comes next.
    time.sleep(min(queue_bytes(condition) * 8 / asked, _OFFERED * offered_s))
    if received["seconds"] < _MEASURE_S / 2:
        return None
    packets: float = received["bytes"] / payload_bytes
    return packets * condition.mtu * 8 / float(received["seconds"])


def _loss(nodes: Nodes, condition: LinkCondition) -> dict[str, Any]:
    """Packets sent and lost, with exact binomial intervals (Clopper and Pearson 1934)."""
    pace = _LOSS_PACKETS_PER_S
    if condition.bandwidth_bits_per_s is not None:
        wire_bytes = _LOSS_PAYLOAD_BYTES + _HEADERS_BYTES
        pace = min(pace, condition.bandwidth_bits_per_s / 8 / wire_bytes / 2)
    packets = max(1, min(_LOSS_PACKETS, int(pace * _LOSS_S)))
    sent, received = exchange(
        *(nodes, 0, 1, "udp"),
        sender={
            "payload_bytes": _LOSS_PAYLOAD_BYTES,
            "bundle": 1,
            "packets_per_s": pace,
            "packets": packets,
        },
        receiver={
            "settle_s": 0.0,
            "measure_s": 0.0,
            "expected": packets,
            "quiet_s": 1.0 + 2 * condition.latency_s,
        },
    )
    # What the receiver's own buffer had no room for did cross the link.
    lost = max(0, sent["sent"] - received["reads"] - received["dropped_by_socket"])
    return {
        "sent": sent["sent"],
        "lost": lost,
        "share": lost / sent["sent"],
        "interval": _interval(lost, sent["sent"], _CONFIDENCE),
        "wide_interval": _interval(lost, sent["sent"], _WIDE_CONFIDENCE),
    }


def _interval(lost: int, sent: int, confidence: float) -> dict[str, float]:
    from scipy.stats import binomtest  # noqa: PLC0415 - takes its time

    interval = binomtest(lost, sent).proportion_ci(confidence, method="exact")
    return {"low": float(interval.low), "high": float(interval.high), "confidence": confidence}


def _goodput(nodes: Nodes, condition: LinkCondition, control: str | None) -> dict[str, Any]:
    """Of one connection; without a number, and with the reason, where none comes about."""
    round_trip_s = 2 * condition.latency_s
    settle_s, measure_s = max(0.5, 5 * round_trip_s), max(1.0, 10 * round_trip_s)
    found: dict[str, Any] = {
        "congestion_control": control or condition.congestion_control,
        "goodput_bits_per_s": None,
        "failure": None,
    }
    try:
        sent, received = exchange(
            *(nodes, 0, 1, "tcp"),
            sender={"control": control, "seconds": settle_s + measure_s + 10.0},
            receiver={"settle_s": settle_s, "measure_s": measure_s},
        )
    except EmulationFailed as error:
        return {**found, "failure": str(error)}
    # What the socket says that it has, not what it was to have.
    found["congestion_control"] = sent["congestion_control"]
    found["goodput_bits_per_s"] = received["bytes"] * 8 / received["seconds"]
    return found


def _furthest(values: Sequence[float | None], asked: float | None) -> float | None:
    """Of what the pairs have, what is furthest from the setting; None where one has nothing."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return max(known, key=lambda value: abs(value - (asked or 0.0)))
