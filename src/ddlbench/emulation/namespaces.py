"""Namespaces that live as long as a process of ours holds them, and not a moment longer.

::

    this process --- pipe ---> [user namespace: only without root]
          |------- pipe ---> node0: network, host name, mounts
          '------- pipe ---> node1: ...            each is `cat`, which waits for the pipe's end

When this process ends, however it ends, the pipes close, the holders end, and the kernel removes
namespaces, devices and routes: nothing is left over, as nothing has a name outside.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType


class EmulationFailed(RuntimeError):  # noqa: N818 - a state of the machine, shown as such
    """Nodes or links could not be made, or ended before they should."""


_TOOLS = ("unshare", "nsenter", "mount", "hostname", "ip", "sh", "cat")
# Where a user's PATH often does not look.
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_NODE = ("net", "uts", "mount")
_HOLD = "echo ready; exec cat > /dev/null"
_SET_UP = 'set -e; hostname "$1"; ip link set lo up; mount --bind "$2" /etc/hosts; ' + _HOLD
_END_S = 5.0


def tool(name: str) -> str:
    """Path of a program; its bare name where there is none."""
    return shutil.which(name, path=_PATH) or name


def missing_tools() -> list[str]:
    """Programs that are needed and not there."""
    return [name for name in _TOOLS if shutil.which(name, path=_PATH) is None]


def run_tool(command: Sequence[str], text: str = "") -> str:
    """Run a program to its end; returns what it printed.

    Raises:
        EmulationFailed: it failed; with its own words.
    """
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, check=False, env=_environment()
    )
    if done.returncode:
        told = " ".join((done.stderr or done.stdout).split()) or f"status {done.returncode}"
        raise EmulationFailed(told)
    return done.stdout


class Held:
    """Namespaces and the process that holds them.

    Args:
        command: starts the holder; it prints a line when it is ready.
        kinds: of namespaces, as nsenter names them.

    Raises:
        EmulationFailed: they could not be made.
    """

    def __init__(self, command: Sequence[str], kinds: Sequence[str]) -> None:
        self._kinds = tuple(kinds)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A key that interrupts us must not end the nodes before what runs in them.
            start_new_session=True,
            env=_environment(),
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        if self._process.stdout.readline() != b"ready\n":
            told = self._process.stderr.read().decode(errors="replace")
            self.close()
            raise EmulationFailed(" ".join(told.split()) or "a namespace could not be made")

    @property
    def pid(self) -> int:
        """Of the holder."""
        return self._process.pid

    def enter(self, *only: str) -> list[str]:
        """What to put before a command so that it runs inside: in all namespaces, or some."""
        kinds = [kind for kind in self._kinds if not only or kind in only or kind == "user"]
        # With a user's rights, nobody's groups can be set.
        keep = ["--preserve-credentials"] if "user" in kinds else []
        flags = [f"--{kind}" for kind in kinds]
        return [tool("nsenter"), "--target", str(self.pid), *flags, *keep, "--"]

    def close(self) -> None:
        """Let go."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Space:
    """Where namespaces can be made: here, or with a user's rights in a user namespace."""

    def __init__(self) -> None:
        self._user: Held | None = None
        self._nodes: list[Held] = []

    def __enter__(self) -> Space:
        """Find out which.

        Raises:
            EmulationFailed: neither.
        """
        try:
            run_tool([tool("unshare"), "--net", "true"])
        except EmulationFailed:
            command = [tool("unshare"), "--user", "--map-root-user", "sh", "-c", _HOLD]
            self._user = Held(command, ("user",))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of all that was made here."""
        while self._nodes:
            self._nodes.pop().close()
        if self._user is not None:
            self._user.close()

    @property
    def is_rootless(self) -> bool:
        """Whether it is a user namespace."""
        return self._user is not None

    def enter(self) -> list[str]:
        """What to put before a command so that it may configure the nodes."""
        return [] if self._user is None else self._user.enter()

    def hold(self, name: str, hosts: str) -> Held:
        """A node: its own network (with loopback only), host name, and /etc/hosts.

        Args:
            name: host name.
            hosts: file that it sees as /etc/hosts.
        """
        flags = [f"--{kind}" for kind in _NODE]
        command = [*self.enter(), tool("unshare"), *flags, "sh", "-c", _SET_UP, "sh", name, hosts]
        held = Held(command, (("user", *_NODE) if self.is_rootless else _NODE))
        self._nodes.append(held)
        return held


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": _PATH, "LC_ALL": "C"}
