"""Emulated nodes on one machine, each with its own network, host name and /etc/hosts."""

from __future__ import annotations

import ipaddress
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from ddlbench.emulation.backend import INTERFACE, NETWORK, Backend
from ddlbench.emulation.namespaces import EmulationFailed, Held, Space, missing_tools, tool
from ddlbench.emulation.netem import Netem, missing_netem
from ddlbench.emulation.probe import one_way_delay, probe
from ddlbench.emulation.relay_backend import RelayBackend, missing_tun
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.fabric import LinkCondition

# Addresses .11, .12, ...
_FIRST_ADDRESS = 11
_MOST_NODES = 240
# Entering the mount namespace changes the working folder, but not the environment.
_GO_BACK = 'sh -c \'cd "$0" && exec "$@"\' "$(pwd -P)" "$@"'


def available(backend: str = "auto") -> str | None:
    """Why nodes cannot be emulated here with a backend ("auto" for any); None if they can."""
    lacking = missing_tools()
    if lacking:
        return f"{', '.join(lacking)} not in PATH (util-linux, iproute2, hostname)"
    try:
        with Space() as space, tempfile.NamedTemporaryFile() as hosts:
            space.hold("trial", hosts.name)
            return _choice(backend, space)[1]
    except EmulationFailed as error:
        return f"no namespaces can be made: {error}"


def _choice(backend: str, space: Space) -> tuple[str, str | None]:
    """The chosen backend, and why it cannot work; None if it can."""
    if backend in ("auto", "netem"):
        lacking = missing_netem(space)
        if lacking is None or backend == "netem":
            return "netem", lacking
        without_relay = missing_tun()
        return "relay", without_relay and f"{lacking}; {without_relay}"
    return "relay", missing_tun()


class EmulatedNodes:
    """Nodes joined by equal links, for the time of a ``with``.

    Args:
        condition: of every link.
        nodes: number of nodes, 2 to 240.

    Attributes:
        interface: network interface of every node.
        hosts: host name -> address, in /etc/hosts of every node.

    Raises:
        ConfigError: another number of nodes.
    """

    interface = INTERFACE

    def __init__(self, condition: LinkCondition, nodes: int) -> None:
        if not 2 <= nodes <= _MOST_NODES:
            raise ConfigError(f"{nodes} emulated nodes: write 2 to {_MOST_NODES}")
        first = ipaddress.ip_network(NETWORK).network_address + _FIRST_ADDRESS
        self.hosts = {f"node{index}": str(first + index) for index in range(nodes)}
        self._condition = condition
        self._held: list[Held] = []
        self._backend: Backend | None = None
        self._up = ExitStack()

    def __enter__(self) -> EmulatedNodes:
        """Make namespaces and links.

        Raises:
            ConfigError: this machine lacks a tool, the backend or the congestion control.
            EmulationFailed: this machine refuses a part of the setup.
        """
        lacking = missing_tools()
        if lacking:
            raise ConfigError(f"emulated nodes need {', '.join(lacking)}; install or add to PATH")
        with ExitStack() as stack:
            space = stack.enter_context(Space())
            # Each node mounts this file, so its name is not needed once they are up.
            with tempfile.NamedTemporaryFile("w", prefix="ddlbench-hosts-") as hosts:
                hosts.write(self._hosts_text())
                hosts.flush()
                Path(hosts.name).chmod(0o644)
                self._held = [space.hold(name, hosts.name) for name in self.hosts]
                self._backend = self._links(space, hosts.name, stack)
            self.calibrate()
            self._backend.reset_usage()
            self._up = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove links and namespaces; processes that still run inside lose their network."""
        self._held, self._backend = [], None
        self._up.close()

    def command(self, node: int, command: Sequence[str]) -> list[str]:
        """The command that runs ``command`` inside a node, in the caller's folder and environment.

        It keeps its process id throughout, so a signal to it reaches the command.

        Raises:
            EmulationFailed: the nodes are not up.
        """
        self._running()
        enter = shlex.join(self._held[node].enter())
        return [tool("sh"), "-c", f"exec {enter} {_GO_BACK}", "sh", *command]

    def address(self, node: int) -> str:
        return self.hosts[f"node{node}"]

    def probe(self, congestion_controls: Sequence[str] = ()) -> dict[str, Any]:
        """Measure the links: ``setting``, ``measured``, ``ok``, ``misses``; see ``require``.

        Args:
            congestion_controls: whose goodput to report, besides the condition's own.

        Raises:
            EmulationFailed: a measurement failed.
        """
        backend = self._running()
        report = probe(self, len(self.hosts), self._condition, backend, congestion_controls)
        backend.reset_usage()
        return report

    def calibrate(self) -> None:
        """Correct the delay by what this machine adds to it now.

        Raises:
            EmulationFailed: a measurement failed.
        """
        backend, latency_s = self._running(), self._condition.latency_s
        if latency_s:
            backend.correct(0.0)
            measured_s = one_way_delay(self, (0, 1), self._condition, backend)
            if measured_s is not None:
                backend.correct(measured_s - latency_s)

    def describe(self) -> dict[str, Any]:
        """How the links are made: backend, and core, priority and compensation of a relay."""
        return self._running().describe()

    def usage(self) -> dict[str, Any]:
        """CPU time and losses of the links since ``reset_usage``.

        ``saturated``: the relay limited the link, so measurements over it are invalid. CPU times
        of netem are None, as the kernel does not count them.

        Raises:
            EmulationFailed: the relay has ended.
        """
        return self._running().usage()

    def reset_usage(self) -> None:
        self._running().reset_usage()

    def _links(self, space: Space, hosts: str, stack: ExitStack) -> Backend:
        chosen, lacking = _choice(self._condition.backend, space)
        if lacking is not None:
            raise ConfigError(f"links cannot be emulated here: {lacking}")
        addresses = list(self.hosts.values())
        if chosen == "netem":
            return Netem(space, hosts, self._held, addresses, self._condition)
        relay = RelayBackend(space, self._held, addresses, self._condition)
        return stack.enter_context(closing(relay))

    def _running(self) -> Backend:
        if self._backend is None:
            raise EmulationFailed("the emulated nodes are not up; use them inside `with`")
        return self._backend

    def _hosts_text(self) -> str:
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        return "\n".join([*lines, *(f"{ip} {name}" for name, ip in self.hosts.items()), ""])
