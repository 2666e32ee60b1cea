"""Measures emulated links and checks them against their setting.

::

    delay   echo requests to the other node's kernel; half a round trip
    loss    small UDP packets at a low rate, counted at the other end
    TCP     goodput of one connection over some round trips: reported, but not checked
    rate    UDP at 1.1 times the setting, without loss: the rate of arrivals

The measurements run in this order: delay and rate from every node to the next in a ring, and
inside each node from its first device to its last; loss and TCP from node 0 to node 1. An
``endpoint`` runs at both ends and reports its counts.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from ddlbench.common.quantities import MBIT_PER_S, MS
from ddlbench.emulation.namespaces import (
    QUEUE_PACKETS,
    Backend,
    EmulationFailed,
    burst_packets,
    queue_bytes,
)
from ddlbench.experiment.fabric import LinkCondition

# Largest relative error of delay and rate.
TOLERANCE = 0.1


class LinkMissed(RuntimeError):  # noqa: N818 - a state of the link, shown as such
    """A probed link misses its setting."""


def misses(setting: Mapping[str, Any], measured: Mapping[str, Any]) -> list[str]:
    """A sentence for each field of a ``LinkCondition`` that the probed links miss."""
    return list(_misses(setting, measured))


def _misses(setting: Mapping[str, Any], measured: Mapping[str, Any]) -> Iterator[str]:
    for pair in measured["pairs"]:
        yield from _missed_pair(f"from node{pair['from']} to node{pair['to']}", setting, pair)
    for pair in measured.get("inside", {}).get("pairs", ()):
        between = f"from device {pair['from']} to device {pair['to']} of node{pair['node']}"
        yield from _missed_pair(between, setting["inside"], pair)
    loss = measured["loss"]
    interval = None if loss is None else loss["wide_interval"]
    if interval is not None and not interval["low"] <= setting["loss"] <= interval["high"]:
        yield (
            f"{loss['lost']} of {loss['sent']} packets were lost, the setting is "
            f"{setting['loss']:.3%} ({interval['confidence']:.1%} interval "
            f"{interval['low']:.3%} to {interval['high']:.3%})"
        )


def require(probed: Mapping[str, Any]) -> None:
    """Refuse a link that misses its setting.

    Raises:
        LinkMissed: the message says what it misses, and by how much.
    """
    if probed["misses"]:
        raise LinkMissed("; ".join(probed["misses"]))


def _missed_pair(
    between: str, setting: Mapping[str, Any], pair: Mapping[str, Any]
) -> Iterator[str]:
    delay_s, wanted_s = pair["one_way_delay_s"], setting["latency_s"]
    if delay_s is None:
        yield f"no echo came back {between}"
    elif wanted_s:  # else the delay is the machine's own
        yield from _missed(f"the one-way delay {between}", delay_s, wanted_s, MS.text)
    rate, wanted = pair["rate_bits_per_s"], setting["bandwidth_bits_per_s"]
    if wanted is not None and rate is None:
        yield f"the rate {between} could not be measured: too few packets came"
    elif wanted is not None:
        text = partial(MBIT_PER_S.text, form=".6g")
        yield from _missed(f"the rate {between}", rate, wanted, text)


def _missed(
    quantity: str, measured: float, setting: float, text: Callable[[float], str]
) -> Iterator[str]:
    if abs(measured - setting) > TOLERANCE * setting:
        yield (
            f"{quantity} is {text(measured)}, the setting is {text(setting)} "
            f"({measured / setting - 1:+.0%}, at most {TOLERANCE:.0%} is allowed)"
        )


_ENDPOINT = Path(__file__).with_name("endpoint.py")
_LONGEST_S = 120.0


class Ends(Protocol):
    """Ends of links of one kind: the nodes, or the devices of a node."""

    def command(self, end: int, command: Sequence[str], /) -> list[str]:
        """The command that runs ``command`` at ``end``."""

    def address(self, end: int, /) -> str: ...


def ping(
    ends: Ends, source: int, target: int, *, count: int, interval_s: float, wait_s: float
) -> list[float]:
    """Round-trip times in seconds from ``source`` to ``target``, without lost ones.

    Raises:
        EmulationFailed: the sender fails.
    """
    settings = {"count": count, "interval_s": interval_s, "wait_s": wait_s}
    with _endpoint(ends, source, "ping", address=ends.address(target), **settings) as process:
        round_trips_s: list[float] = _finish(process)["round_trips_s"]
    return round_trips_s


def exchange(
    ends: Ends,
    source: int,
    target: int,
    kind: str,
    *,
    sender: dict[str, Any],
    receiver: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run one stream from ``source`` to ``target``; returns the reports of sender and receiver.

    Args:
        ends: of the links.
        source: end that sends.
        target: end that receives.
        kind: "udp" or "tcp".
        sender: arguments of the sender's role in ``endpoint``, without address and port.
        receiver: arguments of the receiver's role, likewise.

    Raises:
        EmulationFailed: an end fails.
    """
    to = ends.address(target)
    with _endpoint(ends, target, f"{kind}_receive", address=to, **receiver) as receiving:
        assert receiving.stdout is not None
        port = _parsed(receiving, receiving.stdout.readline())["port"]
        with _endpoint(ends, source, f"{kind}_send", address=to, port=port, **sender) as sending:
            return _finish(sending), _finish(receiving)


@contextmanager
def _endpoint(ends: Ends, end: int, role: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """Start an ``endpoint`` at an end; it is killed at the end of the ``with``."""
    # -I: isolated from the caller's environment variables and folder.
    command = [sys.executable, "-I", str(_ENDPOINT), json.dumps({"role": role, **settings})]
    process = subprocess.Popen(
        ends.command(end, command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        output, errors = process.communicate(timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        raise EmulationFailed(f"a link probe was not done after {_LONGEST_S:.0f} s") from None
    return _parsed(process, output.strip().rpartition("\n")[2], errors)


def _parsed(process: subprocess.Popen[str], line: str, errors: str = "") -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        if not errors and process.stderr is not None and not process.stderr.closed:
            errors = process.stderr.read()
        last = errors.strip().rpartition("\n")[2] or f"exit status {process.wait()}"
        raise EmulationFailed(f"a probe of the link failed: {last}") from None
    return value


# They take half a second, so that a short disturbance does not change the median. They are close
# together, as packets are while ranks communicate: at 20 ms apart the delays are longer.
_ECHOES, _LEAST_ECHOES, _MOST_ECHOES = 100, 10, 400
_ECHO_INTERVAL_S = 0.005
_LOSS_PACKETS, _LOSS_PACKETS_PER_S, _LOSS_S = 20_000, 10_000.0, 10.0
_LOSS_PAYLOAD_BYTES = 100
_HEADERS_BYTES = 28  # of IP, and of UDP or of an echo
_OFFERED, _SETTLE_S, _MEASURE_S, _LONGER_S = 1.1, 0.3, 1.0, 0.5
# The first interval is reported. One correct link in twenty lies outside it, so the check uses the
# second.
_CONFIDENCE, _WIDE_CONFIDENCE = 0.95, 0.999


def one_way_delay(
    ends: Ends, pair: tuple[int, int], condition: LinkCondition, backend: Backend
) -> float | None:
    """One-way delay between a pair of ends in seconds; None if too few echoes came back.

    This is half the median round trip, less the time in which the two links transmit the echo. The
    setting counts from the last bit of a packet, and at low rates this time matters.
    """
    echoes = min(_MOST_ECHOES, math.ceil(_ECHOES / (1 - condition.loss) ** 2))
    round_trips_s = ping(
        ends,
        *pair,
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
    nodes: Ends,
    of_node: Sequence[Ends],
    devices: int,
    condition: LinkCondition,
    backend: Backend,
    *,
    congestion_controls: Sequence[str] = (),
) -> dict[str, Any]:
    """Measure the links of emulated nodes: ``setting``, ``measured``, ``ok`` and ``misses``.

    The goodput of ``congestion_controls`` is reported besides that of the condition's own. A single
    node has no loss, and the goodput is that inside it. ``of_node`` are the ``devices`` of each
    node, as ends of the links inside it; one without such links.

    Raises:
        EmulationFailed: a measurement failed.
    """
    count = len(of_node)
    inside = condition.inside if devices > 1 else None
    backend.reset_usage()
    ring = [(node, (node + 1) % count) for node in range(count)] if count > 1 else []
    # Links inside a node are alike, so one pair stands for the others.
    across = (0, devices - 1)
    # Delays first: what a stream leaves in the queue of a slow link would delay the echoes.
    delays = [one_way_delay(nodes, pair, condition, backend) for pair in ring]
    delays_inside = (
        [one_way_delay(ends, across, inside, backend) for ends in of_node] if inside else []
    )
    loss = _loss(nodes, condition) if ring else None
    ends, between = (nodes, condition) if ring else (of_node[0], inside or condition)
    controls = dict.fromkeys((None, *congestion_controls))
    goodputs = [_goodput(ends, between, control) for control in controls]
    with backend.without_loss():
        rates = [_rate(nodes, *pair, condition) for pair in ring]
    measured = {
        "links": backend.describe(),
        **_summary(condition, ring, delays, rates),
        "loss": loss,
        "tcp": goodputs,
    }
    setting: dict[str, Any] = {**condition.to_dict(), "nodes": count}
    if inside is not None:
        setting["devices_per_node"] = devices
        rates_inside = [_rate(ends, *across, inside) for ends in of_node]
        summary = _summary(inside, [across] * count, delays_inside, rates_inside)
        summary["pairs"] = [{"node": node, **entry} for node, entry in enumerate(summary["pairs"])]
        measured["inside"] = summary
    measured["usage"] = backend.usage()
    missed = misses(setting, measured)
    return {"setting": setting, "measured": measured, "ok": not missed, "misses": missed}


def _summary(
    condition: LinkCondition,
    pairs: Sequence[tuple[int, int]],
    delays: Sequence[float | None],
    rates: Sequence[float | None],
) -> dict[str, Any]:
    """Delay and rate of each pair, and those furthest from the setting."""
    return {
        "one_way_delay_s": _furthest(delays, condition.latency_s),
        "rate_bits_per_s": _furthest(rates, condition.bandwidth_bits_per_s),
        "pairs": [
            {"from": source, "to": target, "one_way_delay_s": delay_s, "rate_bits_per_s": rate}
            for (source, target), delay_s, rate in zip(pairs, delays, rates, strict=True)
        ],
    }


def _rate(ends: Ends, source: int, target: int, condition: LinkCondition) -> float | None:
    """Bits per second, as IP counts them; None without a setting, or if too few packets arrived."""
    setting = condition.bandwidth_bits_per_s
    if setting is None:
        return None
    payload_bytes = condition.mtu - _HEADERS_BYTES
    packets_per_s = _OFFERED * setting / 8 / condition.mtu
    offered_s = _SETTLE_S + _MEASURE_S + _LONGER_S
    _, received = exchange(
        *(ends, source, target, "udp"),
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
    # Packets that still wait in the queue would delay the next measurement.
    time.sleep(min(queue_bytes(condition) * 8 / setting, _OFFERED * offered_s))
    if received["seconds"] < _MEASURE_S / 2:
        return None
    packets: float = received["bytes"] / payload_bytes
    return packets * condition.mtu * 8 / float(received["seconds"])


def _loss(ends: Ends, condition: LinkCondition) -> dict[str, Any]:
    """Packets sent and lost, with exact binomial intervals (Clopper and Pearson 1934)."""
    packets_per_s = _LOSS_PACKETS_PER_S
    if condition.bandwidth_bits_per_s is not None:
        wire_bytes = _LOSS_PAYLOAD_BYTES + _HEADERS_BYTES
        packets_per_s = min(packets_per_s, condition.bandwidth_bits_per_s / 8 / wire_bytes / 2)
    packets = max(1, min(_LOSS_PACKETS, int(packets_per_s * _LOSS_S)))
    sent, received = exchange(
        *(ends, 0, 1, "udp"),
        sender={
            "payload_bytes": _LOSS_PAYLOAD_BYTES,
            "bundle": 1,
            "packets_per_s": packets_per_s,
            "packets": packets,
            # What a full queue drops is not lost on the way.
            "catch_up_packets": QUEUE_PACKETS // 10,
        },
        receiver={
            "settle_s": 0.0,
            "measure_s": 0.0,
            "expected": packets,
            "quiet_s": 1.0 + 2 * condition.latency_s,
        },
    )
    # Packets that the receiver's full buffer dropped did cross the link.
    lost = max(0, sent["sent"] - received["reads"] - received["dropped_by_socket"])
    return {
        "sent": sent["sent"],
        "lost": lost,
        "share": lost / sent["sent"],
        "interval": _interval(lost, sent["sent"], _CONFIDENCE),
        "wide_interval": _interval(lost, sent["sent"], _WIDE_CONFIDENCE),
    }


def _interval(lost: int, sent: int, confidence: float) -> dict[str, float]:
    from scipy.stats import binomtest  # noqa: PLC0415 - slow to import

    interval = binomtest(lost, sent).proportion_ci(confidence, method="exact")
    return {"low": float(interval.low), "high": float(interval.high), "confidence": confidence}


def _goodput(ends: Ends, condition: LinkCondition, control: str | None) -> dict[str, Any]:
    """Goodput of one connection; None, and the reason, if the connection fails."""
    round_trip_s = 2 * condition.latency_s
    settle_s, measure_s = max(0.5, 5 * round_trip_s), max(1.0, 10 * round_trip_s)
    try:
        sent, received = exchange(
            *(ends, 0, 1, "tcp"),
            sender={"control": control, "seconds": settle_s + measure_s + 10.0},
            receiver={"settle_s": settle_s, "measure_s": measure_s},
        )
    except EmulationFailed as error:
        return {
            "congestion_control": control or condition.congestion_control,
            "goodput_bits_per_s": None,
            "failure": str(error),
        }
    return {
        "congestion_control": sent["congestion_control"],  # as the socket reports it
        "goodput_bits_per_s": received["bytes"] * 8 / received["seconds"],
        "failure": None,
    }


def _furthest(values: Sequence[float | None], setting: float | None) -> float | None:
    """The value furthest from the setting; None if a value is missing."""
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return None
    return max(known, key=lambda value: abs(value - (setting or 0.0)))
