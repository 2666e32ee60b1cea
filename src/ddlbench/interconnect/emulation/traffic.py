"""Traffic between two emulated nodes: starts an ``endpoint`` in each and reads what they found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ddlbench.interconnect.emulation.errors import EmulationFailed

__all__ = ["Nodes", "exchange", "ping"]

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
