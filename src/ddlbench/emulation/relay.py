"""The relay process: the switch between the nodes, and those inside them, in user space.

    python -m ddlbench.emulation.relay

::

    stdin    settings, then a JSON command a line ("set", "usage", "reset"); its end ends the relay
    stdout   one JSON line of answer each
    TUN      one device an end: read -> Switches.send -> ... until the frame is due -> write

One thread does all of this. It asks for real-time priority, as a relay that waits for a core delays
the frames; where a delay is short, it also asks the kernel to keep idle cores awake. It reports
what it gets. It measures its own load to see whether it keeps up::

    samples      .   .   .   .   .            .   .   .      at least a tenth of a second apart
    busiest          |<-- a second -->|                      the span with the most CPU time
    short run    |<-- all of it -->|                         if it is shorter than a second

:class:`RelayBackend` starts and controls it, for kernels without netem.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ddlbench.emulation.namespaces import (
    END_S,
    INTERFACE,
    EmulationFailed,
    Held,
    Space,
    burst_packets,
    end_by_closing_pipes,
    queue_bytes,
    set_up_interface,
)
from ddlbench.emulation.switch import FRAME_BYTES, Links, Switches, destination, is_ipv4, open_tun
from ddlbench.experiment.fabric import LinkCondition

# A relay that computes for this share of a second is late during parts of it.
SATURATED_SHARE = 0.9
_WINDOW_S, _APART_S = 1.0, 0.1
# Shorter runs are not judged: a few packets at once would fill them.
_SHORTEST_S = 0.02

Sample = tuple[float, float]  # wall clock and CPU time of this process, in seconds


class Load:
    """CPU time of this process since the last reset, in total and in its busiest second.

    Args:
        late_after_s: a frame counts as late if it is delivered this long after it was due.
    """

    def __init__(self, late_after_s: float) -> None:
        self._late_after_s = late_after_s
        self.reset()

    def reset(self) -> None:
        self._polled_s = 0.0
        self._start: Sample = (time.monotonic(), self._cpu_s())
        self._samples = deque([self._start])
        self._peak = 0.0
        self._frames = self._late = 0
        self._latest_s = 0.0

    def see(self, now_s: float) -> None:
        """Take a sample if one is due; call this before and after each wait."""
        if now_s - self._samples[-1][0] >= _APART_S:
            self._take((now_s, self._cpu_s()))

    def polled(self, cpu_s: float) -> None:
        """Take ``cpu_s`` of polling out of the load: a busier relay would not have polled."""
        self._polled_s += cpu_s

    def delivered(self, late_s: float) -> None:
        """Count a frame that was delivered ``late_s`` after it was due."""
        self._frames += 1
        if late_s > self._late_after_s:
            self._late += 1
            self._latest_s = max(self._latest_s, late_s)

    def to_dict(self) -> dict[str, Any]:
        here = (time.monotonic(), self._cpu_s())
        self._take(here)
        wall_s, share = here[0] - self._start[0], _share(self._start, here)
        peak = self._peak
        if _SHORTEST_S <= wall_s < _WINDOW_S:
            peak = share
        return {
            "cpu_s": here[1] - self._start[1],
            "wall_s": wall_s,
            "share_of_core": share,
            "busiest_second_share": max(peak, share),
            "saturated": peak >= SATURATED_SHARE,
            "frames": self._frames,
            "late_frames": self._late,
            "late_after_s": self._late_after_s,
            "latest_s": self._latest_s,
        }

    def _cpu_s(self) -> float:
        return time.process_time() - self._polled_s

    def _take(self, sample: Sample) -> None:
        """Compute the load of the second that ends with ``sample``."""
        # The second begins with the latest sample that is at least a second older.
        self._samples.append(sample)
        while len(self._samples) > 1 and sample[0] - self._samples[1][0] >= _WINDOW_S:
            self._samples.popleft()
        if sample[0] - self._samples[0][0] >= _WINDOW_S:
            self._peak = max(self._peak, _share(self._samples[0], sample))


def _share(begin: Sample, end: Sample) -> float:
    wall_s = end[0] - begin[0]
    return (end[1] - begin[1]) / wall_s if wall_s > 0 else 0.0


# Frames read from one node before those of the next.
_BATCH = 32
# A frame counts as late beyond this share of the delay, and beyond this time.
_LATE_SHARE, _LATE_S = 0.1, 0.0002
# A process wakes up 20 to 200 us late. That is a large part of a delay below the first of these
# times; the second is how long before a frame is due the relay starts to poll.
_SHORT_DELAY_S, _POLL_S = 0.002, 0.00015
# linux/prctl.h: how far the kernel may postpone a timer to bundle it with others.
_PR_SET_TIMERSLACK = 29


class Relay:
    """The switches, their devices, and the commands from stdin."""

    def __init__(self, settings: dict[str, Any]) -> None:
        opened = [open_tun(Path(item), settings["interface"]) for item in settings["namespaces"]]
        self.bundled = opened[0][1]
        self._devices = [device for device, _ in opened]
        self._nodes = {device: node for node, device in enumerate(self._devices)}
        self._targets = {
            socket.inet_aton(address): node for node, address in enumerate(settings["addresses"])
        }
        between, inside = (
            None if item is None else Links(**item)
            for item in (settings["links"], settings["inside"])
        )
        assert between is not None
        self._switches = Switches(
            len(opened), settings["per_node"], between, inside, random.Random().random
        )
        delays_s = [item.delay_s for item in (between, inside) if item is not None]
        is_short = any(0 < delay_s < _SHORT_DELAY_S for delay_s in delays_s)
        self.idle_cores = _keep_awake() if is_short else "sleep"
        self._poll_s = _POLL_S if is_short else 0.0
        self._load = Load(max(_LATE_SHARE * min(delays_s), _LATE_S))
        self._refused = 0
        self._unfinished_line = b""

    def run(self) -> None:
        sources = [sys.stdin.fileno(), *self._devices]
        while True:
            readable = self._wait(sources)
            self._load.see(time.monotonic())
            for source in readable:
                if source != sources[0]:
                    self._read(source)
                elif not self._run_commands():
                    return
            self._write()
            self._load.see(time.monotonic())

    def _wait(self, sources: Sequence[int]) -> list[int]:
        """Wait for a frame, a command, or the time when a frame is due; returns what is readable.

        Where a delay is short, the relay polls at the end of a wait::

            frame read   .- - - sleep - - -.- - - poll - - -.   frame due
        """
        next_s = self._switches.next_s()
        if next_s is None:
            return select.select(sources, [], [])[0]
        sleep_s = next_s - self._poll_s - time.monotonic()
        if sleep_s > 0:
            return select.select(sources, [], [], sleep_s)[0]
        readable: list[int] = select.select(sources, [], [], 0)[0]
        begin_cpu_s = time.process_time()
        while not readable and time.monotonic() < next_s:
            readable = select.select(sources, [], [], 0)[0]
        self._load.polled(time.process_time() - begin_cpu_s)
        return readable

    def _read(self, device: int) -> None:
        source = self._nodes[device]
        for _ in range(_BATCH):
            try:
                frame = os.read(device, FRAME_BYTES)
            except BlockingIOError:
                return
            # Multicast and foreign addresses have no target; a switch without uplink drops them.
            if is_ipv4(frame) and (target := self._targets.get(destination(frame))) is not None:
                self._switches.send(source, target, frame, time.monotonic())

    def _write(self) -> None:
        for due_s, _, target, frame in self._switches.arrived(time.monotonic()):
            try:
                os.write(self._devices[target], frame)
            except OSError:
                self._refused += 1
            self._load.delivered(time.monotonic() - due_s)

    def _run_commands(self) -> bool:
        """Run the commands on complete lines; False at the end of stdin."""
        data = os.read(sys.stdin.fileno(), 65536)
        *lines, self._unfinished_line = (self._unfinished_line + data).split(b"\n")
        for line in lines:
            _answer(self._run_command(json.loads(line)))
        return bool(data)

    def _run_command(self, command: dict[str, Any]) -> dict[str, Any]:
        if "set" in command:
            switch = self._switches.inside if command["inside"] else self._switches.between
            assert switch is not None
            switch.links = replace(switch.links, **command["set"])
            return {}
        if "reset" in command:
            self._load.reset()
            self._switches.reset_counts()
            self._refused = 0
            return {}
        return {
            **self._load.to_dict(),
            **self._switches.counts(),
            "refused_by_device": self._refused,
        }


def main() -> None:
    """Read the settings, make the devices, report this, and relay."""
    settings = json.loads(_first_line())
    try:
        relay = Relay(settings)
    except OSError as error:
        _answer({"error": f"{error.strerror}: {error.filename or '/dev/net/tun'}"})
        sys.exit(1)
    scheduling = _settle_down(settings["core"])
    described = {"bundled": relay.bundled, "core": settings["core"], "scheduling": scheduling}
    _answer({**described, "idle_cores": relay.idle_cores})
    # The objects so far live on, and the loop makes no reference cycles.
    gc.collect()
    gc.freeze()
    gc.disable()
    relay.run()


def _first_line() -> bytes:
    """Read the first line of stdin without a buffer, which would hold back later lines."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(sys.stdin.fileno(), 1)
        if not byte:
            sys.exit(1)
        line += byte
    return line


def _answer(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def _settle_down(core: int | None) -> str:
    """Move to ``core``, set exact timers, and take the highest allowed priority; returns it."""
    if core is not None:
        with suppress(OSError):
            os.sched_setaffinity(0, {core})
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        pass
    else:
        return "real-time"
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    except OSError:
        return "normal"
    return "nice -20"


def _keep_awake() -> str:
    """Have idle cores poll instead of sleep until this process ends, if this user may."""
    try:
        # The kernel applies the request while the file is open.
        device = os.open("/dev/cpu_dma_latency", os.O_WRONLY)
        os.write(device, struct.pack("i", 0))
    except OSError:
        return "sleep"
    return "poll"


_TUN = Path("/dev/net/tun")


class RelayBackend:
    """Links of a relay, a :class:`~ddlbench.emulation.namespaces.Backend`.

    The relay runs on the last core that this process may use.

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
            kinds = [item for item in (condition, self._inside) if item is not None]
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
            _sent_drops(Path(f"/proc/{node.pid}/net/dev").read_text(encoding="ascii"))
            for node in self._nodes
        )


def missing_tun() -> str | None:
    """Why no relay can run; None if one can."""
    try:
        os.close(os.open(_TUN, os.O_RDWR))
    except OSError as error:
        return f"the relay: {_TUN}: {error.strerror}"
    return None


def _links(condition: LinkCondition) -> Links:
    return Links(
        delay_s=condition.latency_s,
        bits_per_s=condition.bandwidth_bits_per_s,
        loss=condition.loss,
        queue_bytes=queue_bytes(condition),
        mtu=condition.mtu,
        bundled_packets=burst_packets(condition),
    )


def _sent_drops(text: str) -> int:
    """The "drop" column of packets sent by ``eth0`` in /proc/net/dev."""
    for line in text.splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == INTERFACE:
            return int(numbers.split()[11])
    return 0


if __name__ == "__main__":
    main()
