"""Measures what emulated links do, and judges whether that is what their setting says.

::

    delay   echo requests answered by the other node's kernel; half a round trip is one way
    loss    small UDP packets at an easy pace, counted at the other end
    TCP     one connection for some round trips: told, not judged
    rate    UDP, a tenth more than the setting, with no loss; what comes out is the rate

In this order. Delay and rate are measured from every node to the next, around; loss and TCP from
node 0 to 1. An ``endpoint`` is started in each of two nodes and tells what it found.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from ddlbench.emulation.backend import Backend, burst_packets, queue_bytes
from ddlbench.emulation.namespaces import EmulationFailed
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.units import MBIT_PER_S, MS

# Share of the setting by which delay and rate may be off.
TOLERANCE = 0.1


class LinkMissed(RuntimeError):  # noqa: N818 - a state of the link, shown as such
    """A probed link is not what its setting says."""


def misses(setting: Mapping[str, Any], measured: Mapping[str, Any]) -> list[str]:
    """A sentence for each part of the setting that the link misses.

    Args:
        setting: fields of a ``LinkCondition``.
        measured: as ``probe`` writes it.
    """
    found = []
    for pair in measured["pairs"]:
        between = f"from node{pair['from']} to node{pair['to']}"
        found += _missed_delay(between, setting["latency_s"], pair["one_way_delay_s"])
        found += _missed_rate(between, setting["bandwidth_bits_per_s"], pair["rate_bits_per_s"])
    return found + _missed_loss(setting["loss"], measured["loss"])


def require(probed: Mapping[str, Any]) -> None:
    """Refuse a link that misses its setting.

    Raises:
        LinkMissed: saying in what, and by how much.
    """
    if probed["misses"]:
        raise LinkMissed("; ".join(probed["misses"]))


def _missed_delay(between: str, asked_s: float, found_s: float | None) -> list[str]:
    if found_s is None:
        return [f"no echo came back {between}"]
    # Without a delay nothing is set; what is measured is the machine's own.
    if not asked_s or _is_near(found_s, asked_s):
        return []
    return [
        f"the one-way delay {between} is {MS.text(found_s)}, the setting is "
        f"{MS.text(asked_s)} ({_off(found_s, asked_s)}, at most {TOLERANCE:.0%} may be)"
    ]


def _missed_rate(between: str, asked: float | None, found: float | None) -> list[str]:
    if asked is None:
        return []
    if found is None:
        return [f"the rate {between} could not be measured: too few packets came"]
    if _is_near(found, asked):
        return []
    return [
        f"the rate {between} is {MBIT_PER_S.text(found, '.6g')}, the setting is "
        f"{MBIT_PER_S.text(asked, '.6g')} "
        f"({_off(found, asked)}, at most {TOLERANCE:.0%} may be)"
    ]


def _missed_loss(asked: float, found: Mapping[str, Any]) -> list[str]:
    interval = found["wide_interval"]
    if interval["low"] <= asked <= interval["high"]:
        return []
    return [
        f"{found['lost']} of {found['sent']} packets were lost, the setting is {asked:.3%} "
        f"({interval['confidence']:.1%} interval {interval['low']:.3%} to {interval['high']:.3%})"
    ]


def _is_near(found: float, asked: float) -> bool:
    return abs(found - asked) <= TOLERANCE * asked


def _off(found: float, asked: float) -> str:
    return f"{(found - asked) / asked:+.0%}"


_ENDPOINT = Path(__file__).with_name("endpoint.py")
_LONGEST_S = 120.0


class Nodes(Protocol):
    """Where commands can be run, and how nodes are reached."""

    def command(self, node: int, command: Sequence[str]) -> list[str]:
        """The command that runs ``command`` inside ``node``."""
        ...

    def address(self, node: int) -> str:
        """Of a node."""
        ...


def ping(
    nodes: Nodes, source: int, target: int, *, count: int, interval_s: float, wait_s: float
) -> list[float]:
    """Round trips in seconds, from ``source`` to ``target``; those that came back.

    Raises:
        EmulationFailed: the sender fails.
    """
    settings = {"count": count, "interval_s": interval_s, "wait_s": wait_s}
    process = _start(nodes, source, "ping", address=nodes.address(target), **settings)
    round_trips_s: list[float] = _finish(process)["round_trips_s"]
    return round_trips_s


def exchange(
    nodes: Nodes,
    source: int,
    target: int,
    kind: str,
    *,
    sender: dict[str, Any],
    receiver: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One stream from ``source`` to ``target``: what the sender says, and what the receiver.

    Args:
        nodes: the network.
        source: node that sends.
        target: node that receives.
        kind: "udp" or "tcp".
        sender: arguments of its role in ``endpoint``, less address and port.
        receiver: the same of the other end.

    Raises:
        EmulationFailed: an end fails.
    """
    address = nodes.address(target)
    receiving = _start(nodes, target, f"{kind}_receive", address=address, **receiver)
    try:
        port = _line(receiving)["port"]
        sending = _start(nodes, source, f"{kind}_send", address=address, port=port, **sender)
        try:
            return _finish(sending), _finish(receiving)
        finally:
            _end(sending)
    finally:
        _end(receiving)


def _start(nodes: Nodes, node: int, role: str, **settings: Any) -> subprocess.Popen[str]:
    # Isolated: nothing of the caller's environment or folder gets in between.
    command = [sys.executable, "-I", str(_ENDPOINT), json.dumps({"role": role, **settings})]
    return subprocess.Popen(
        nodes.command(node, command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    return _parsed(process, process.stdout.readline())


def _finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        out, told = process.communicate(timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        _end(process)
        raise EmulationFailed(
            f"a probe of the link was not done after {_LONGEST_S:.0f} s"
        ) from None
    lines = out.strip().splitlines()
    return _parsed(process, lines[-1] if lines else "", told)


def _parsed(process: subprocess.Popen[str], line: str, told: str = "") -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        if not told and process.stderr is not None:
            told = process.stderr.read()
        words = told.strip().splitlines()
        last = words[-1] if words else f"exit status {process.wait()}"
        raise EmulationFailed(f"a probe of the link failed: {last}") from None
    return value


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(5)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


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
