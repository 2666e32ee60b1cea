"""Links that a relay process makes, for kernels without netem: starts and controls the relay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddlbench.emulation.backend import INTERFACE, burst_packets, queue_bytes, set_up_interface
from ddlbench.emulation.namespaces import (
    END_S,
    EmulationFailed,
    Held,
    Space,
    end_by_closing_pipes,
)
from ddlbench.emulation.switch import Links
from ddlbench.experiment.fabric import LinkCondition

_TUN = Path("/dev/net/tun")


def missing_tun() -> str | None:
    """Why no relay can run; None if one can."""
    try:
        os.close(os.open(_TUN, os.O_RDWR))
    except OSError as error:
        return f"the relay: {_TUN}: {error.strerror}"
    return None


class RelayBackend:
    """The relay, on the last core that this process may use: a :class:`Backend`.

    ``nodes`` are the namespaces, ``per_node`` of them each node's; more than one are its devices.

    Raises:
        EmulationFailed: the relay does not start.
        ConfigError: the kernel lacks the congestion control.
    """

    name = "relay"
    header_bytes = 0

    def __init__(
        self,
        space: Space,
        nodes: Sequence[Held],
        addresses: Sequence[str],
        condition: LinkCondition,
        per_node: int = 1,
    ) -> None:
        self._nodes, self._condition, self._per_node = nodes, condition, per_node
        self._inside = condition.inside if per_node > 1 else None
        self._compensation_s = {False: 0.0, True: 0.0}  # between nodes, inside them
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [*space.enter(), sys.executable, "-m", "ddlbench.emulation.relay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._described = self._ask(self._settings(addresses))
            # The relay cuts what is too long for the slower kind of links.
            kinds = [one for one in (condition, self._inside) if one is not None]
            bundled = max(map(burst_packets, kinds))
            for node, address in zip(nodes, addresses, strict=True):
                set_up_interface(node, address, condition, bundled)
            self._lost_by_devices_before = 0
            self.reset_usage()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        end_by_closing_pipes(self._process)

    @contextmanager
    def without_loss(self) -> Iterator[None]:
        self._ask({"set": {"loss": 0.0}, "inside": False})
        try:
            yield
        finally:
            self._ask({"set": {"loss": self._condition.loss}, "inside": False})

    def correct(self, excess_s: float, inside: bool = False) -> None:
        """Shorten the relay's delay by the time that it needs to wake up, read and write."""
        condition = self._inside if inside else self._condition
        assert condition is not None
        self._compensation_s[inside] = min(max(excess_s, 0.0), condition.latency_s)
        delay_s = condition.latency_s - self._compensation_s[inside]
        self._ask({"set": {"delay_s": delay_s}, "inside": inside})

    def describe(self) -> dict[str, Any]:
        return {
            "backend": self.name,
            **self._described,
            **self._limits(self._condition, inside=False),
            **({} if self._inside is None else {"inside": self._limits(self._inside, inside=True)}),
        }

    def usage(self) -> dict[str, Any]:
        return {
            "backend": self.name,
            **self._ask({"usage": True}),
            "dropped_by_device": self._lost_by_devices() - self._lost_by_devices_before,
        }

    def reset_usage(self) -> None:
        self._ask({"reset": True})
        self._lost_by_devices_before = self._lost_by_devices()

    def _limits(self, condition: LinkCondition, *, inside: bool) -> dict[str, Any]:
        return {
            "bundled_packets": burst_packets(condition),
            "queue_bytes": queue_bytes(condition),
            "compensation_s": self._compensation_s[inside],
        }

    def _settings(self, addresses: Sequence[str]) -> dict[str, Any]:
        return {
            "namespaces": [f"/proc/{node.pid}/ns/net" for node in self._nodes],
            "addresses": list(addresses),
            "interface": INTERFACE,
            "per_node": self._per_node,
            "links": asdict(_links(self._condition)),
            "inside": None if self._inside is None else asdict(_links(self._inside)),
            "core": max(os.sched_getaffinity(0)),
        }

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send one JSON line to the relay and return its answer.

        Raises:
            EmulationFailed: the relay has ended, or answers with an error.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with self._lock:
            line = b""
            with suppress(OSError, ValueError):
                stdin.write(json.dumps(command).encode() + b"\n")
                stdin.flush()
                line = stdout.readline()
        if not line:
            raise EmulationFailed(f"the relay of the emulated links has ended: {self._reason()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EmulationFailed(f"the relay of the emulated links: {answer['error']}")
        return answer

    def _reason(self) -> str:
        if self._process.stderr is None or self._process.stderr.closed:
            return "it was closed"
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
            lines = self._process.stderr.read().decode(errors="replace").strip().splitlines()
            return lines[-1] if lines else f"status {self._process.returncode}"
        return "it does not answer"

    def _lost_by_devices(self) -> int:
        """Packets dropped at a full queue of a node's device, by the kernel's count."""
        return sum(
            sent_drops(Path(f"/proc/{node.pid}/net/dev").read_text(encoding="ascii"))
            for node in self._nodes
        )


def _links(condition: LinkCondition) -> Links:
    return Links(
        delay_s=condition.latency_s,
        bits_per_s=condition.bandwidth_bits_per_s,
        loss=condition.loss,
        queue_bytes=queue_bytes(condition),
        mtu=condition.mtu,
        bundled_packets=burst_packets(condition),
    )


def sent_drops(text: str) -> int:
    """The "drop" column of packets sent by ``eth0`` in /proc/net/dev."""
    for line in text.splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            return int(numbers.split()[11])
    return 0
