"""Namespaces that exist exactly as long as a process of ours holds them, and links between them.

::

    this process --- pipe ---> [user namespace: only without root]
          |------- pipe ---> node0: network, host name, mounts
          '------- pipe ---> node1: ...            each is `cat`, which waits for the pipe's end

When this process ends, for whatever reason, the pipes close, the holders end, and the kernel
removes namespaces, devices and routes. Nothing remains, as nothing has a name outside.

A :class:`Backend` makes the links. Here is what both backends share: the address, MTU and
congestion control of ``eth0``, the depth of the queues, and how many packets may cross a link in
one bundle.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Protocol

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.fabric import LinkCondition


class EmulationFailed(RuntimeError):  # noqa: N818 - a state of the machine, shown as such
    """Nodes or links could not be made, or broke down."""


class HelperKilled(EmulationFailed):
    """A signal ended a helper program, which tells nothing of what this machine can do."""


_TOOLS = ("unshare", "nsenter", "mount", "hostname", "ip", "sh", "cat")
# A user's PATH often lacks the last two folders.
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_NODE = ("net", "uts", "mount")
_HOLD = "echo ready; exec cat > /dev/null"
_SET_UP = 'set -e; hostname "$1"; ip link set lo up; mount --bind "$2" /etc/hosts; ' + _HOLD
END_S = 5.0


def tool(name: str) -> str:
    """Path of a program; its bare name if it is not found."""
    return shutil.which(name, path=_PATH) or name


def missing_tools() -> list[str]:
    """Required programs that are not installed."""
    return [name for name in _TOOLS if shutil.which(name, path=_PATH) is None]


def run_tool(command: Sequence[str], text: str = "") -> str:
    """Run a program with ``text`` as its input; returns its output.

    Raises:
        EmulationFailed: it failed; with its error message.
        HelperKilled: a signal ended it.
    """
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=_environment(),
    )
    _refuse_killed(done.returncode, command)
    if done.returncode:
        message = " ".join((done.stderr or done.stdout).split())
        raise EmulationFailed(message or f"status {done.returncode}")
    return done.stdout


def _refuse_killed(status: int | None, command: Sequence[str]) -> None:
    if status is not None and status < 0:
        raise HelperKilled(f"{Path(command[0]).name} was ended by signal {-status}")


def end_by_closing_pipes(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes to a process, which ends it; kill it if it does not end within 5 seconds."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Held:
    """Namespaces, of the kinds that nsenter names, and the process that holds them.

    The command starts the holder, which prints "ready".

    Raises:
        EmulationFailed: the namespaces could not be made.
        HelperKilled: a signal ended the holder.
    """

    def __init__(self, command: Sequence[str], kinds: Sequence[str]) -> None:
        self._kinds = tuple(kinds)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # An interrupt from the keyboard must not end the nodes before the processes in them.
            start_new_session=True,
            env=_environment(),
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        if self._process.stdout.readline() != b"ready\n":
            message = self._process.stderr.read().decode(errors="replace")
            self.close()
            _refuse_killed(self._process.returncode, command)
            raise EmulationFailed(" ".join(message.split()) or "a namespace could not be made")

    @property
    def pid(self) -> int:
        return self._process.pid

    def enter(self, *only: str) -> list[str]:
        """The prefix of a command that runs it inside: in all namespaces, or in those given."""
        kinds = [kind for kind in self._kinds if not only or kind in only or kind == "user"]
        # A user without root's rights may not set groups.
        keep = ["--preserve-credentials"] if "user" in kinds else []
        flags = [f"--{kind}" for kind in kinds]
        return [tool("nsenter"), "--target", str(self.pid), *flags, *keep, "--"]

    def close(self) -> None:
        end_by_closing_pipes(self._process)


class Space:
    """Makes namespaces: directly, or inside a user namespace if this user is not root."""

    def __init__(self) -> None:
        self._user: Held | None = None
        self._nodes: list[Held] = []

    def __enter__(self) -> Space:
        """Try which way works.

        Raises:
            EmulationFailed: neither does.
        """
        try:
            run_tool([tool("unshare"), "--net", "true"])
        except HelperKilled:
            raise
        except EmulationFailed:
            command = [tool("unshare"), "--user", "--map-root-user", "sh", "-c", _HOLD]
            self._user = Held(command, ("user",))
        return self

    def __exit__(self, *_error: object) -> None:
        while self._nodes:
            self._nodes.pop().close()
        if self._user is not None:
            self._user.close()

    @property
    def is_rootless(self) -> bool:
        return self._user is not None

    def enter(self) -> list[str]:
        """The prefix of a command that may configure the nodes."""
        return [] if self._user is None else self._user.enter()

    def hold(self, name: str, hosts: str) -> Held:
        """Make a node with its own network (loopback only), host name and /etc/hosts."""
        flags = [f"--{kind}" for kind in _NODE]
        command = [*self.enter(), tool("unshare"), *flags, "sh", "-c", _SET_UP, "sh", name, hosts]
        held = Held(command, (("user", *_NODE) if self.is_rootless else _NODE))
        self._nodes.append(held)
        return held


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": _PATH, "LC_ALL": "C"}


INTERFACE = "eth0"
# It exists inside the namespaces only, so it cannot clash with a network outside.
NETWORK = "10.213.78.0/24"
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
# Large enough that a relay which is late by some milliseconds loses no packets.
_DEVICE_QUEUE_PACKETS = 5000


class Backend(Protocol):
    """The maker of the links.

    Attributes:
        name: as in a setting.
        header_bytes: of a packet beside IP's own, which take time on the links.
    """

    name: str
    header_bytes: int

    def without_loss(self) -> AbstractContextManager[None]:
        """Lose no packets on purpose within a ``with``, to probe the rate."""

    def correct(self, excess_s: float, inside: bool = False) -> None:
        """Shorten the one-way delay, which was measured to be ``excess_s`` above its setting.

        The delay is that between nodes, or of the links ``inside`` them.
        """

    def describe(self) -> dict[str, Any]:
        """How the links are made, for the result."""

    def usage(self) -> dict[str, Any]:
        """CPU time and losses since the last reset."""

    def reset_usage(self) -> None: ...


def set_up_interface(
    node: Held, address: str, condition: LinkCondition, bundled_packets: int
) -> None:
    """Configure ``eth0`` of a node and bring it up.

    ``bundled_packets`` is the largest bundle that the kernel may hand over.

    Raises:
        ConfigError: the kernel lacks the congestion control.
        EmulationFailed: ``ip`` refuses anything else.
    """
    _ip(
        node,
        f"link set dev {INTERFACE} mtu {condition.mtu} txqueuelen {_DEVICE_QUEUE_PACKETS} "
        f"gso_max_segs {bundled_packets}",
        f"address add {address}/{NETWORK.partition('/')[2]} dev {INTERFACE}",
        f"link set dev {INTERFACE} up",
    )
    # A namespace may not change the kernel's default, but its routes may name a congestion control.
    control = condition.congestion_control
    route = f"route replace {NETWORK} dev {INTERFACE} proto kernel scope link src {address}"
    try:
        _ip(node, f"{route} congctl {control}")
    except EmulationFailed as error:
        known = _AVAILABLE.read_text(encoding="ascii").split()
        if control in known:
            raise
        raise ConfigError(
            f"congestion_control {control!r}: this kernel has {', '.join(sorted(known))}"
        ) from error


def _ip(node: Held, *lines: str) -> None:
    run_tool(
        [*node.enter("net"), tool("ip"), "-batch", "-"], "".join(f"{line}\n" for line in lines)
    )


QUEUE_PACKETS = 1000  # netem's default; further packets are dropped at the tail
_LARGEST_BUNDLE_BYTES = 65_000


def queue_bytes(condition: LinkCondition) -> int:
    """Capacity of a link's queue; packets in transit do not count."""
    return QUEUE_PACKETS * condition.mtu


def netem_limit(condition: LinkCondition) -> int:
    """Limit of netem, which also counts packets in transit: the bandwidth-delay product."""
    rate = condition.bandwidth_bits_per_s
    if rate is None:
        # Without a rate nothing waits, and TCP's buffers limit the packets in transit.
        return 1_000_000
    return QUEUE_PACKETS + math.ceil(rate * condition.latency_s / 8 / condition.mtu)


def burst_packets(condition: LinkCondition) -> int:
    """Largest bundle, in packets of full size, that the kernel may hand over."""
    most = max(1, _LARGEST_BUNDLE_BYTES // condition.mtu)
    rate = condition.bandwidth_bits_per_s
    if rate is None:
        return most
    return min(most, max(1, int(rate * condition.burst_s / 8 / condition.mtu)))
