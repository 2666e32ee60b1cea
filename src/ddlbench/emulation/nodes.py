"""Emulated nodes on one machine, each with its own network, host name and /etc/hosts.

If devices have links of their own inside a node, each device has its own network, too; the host
name stays the node's::

    one end a node          node0 .11        node1 .12
    one end a device        node0 .11 .12    node1 .13 .14       "node1" is .14 on the device .14,
                                                                 and .13 everywhere else
"""

from __future__ import annotations

import ipaddress
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.emulation.namespaces import (
    INTERFACE,
    NETWORK,
    Backend,
    EmulationFailed,
    Held,
    HelperKilled,
    Space,
    missing_tools,
    tool,
)
from ddlbench.emulation.netem import Netem, missing_netem
from ddlbench.emulation.probe import Ends, one_way_delay, probe
from ddlbench.emulation.relay import RelayBackend, missing_tun
from ddlbench.experiment.fabric import LinkCondition

# Addresses .11, .12, ...
_FIRST_ADDRESS = 11
_MOST_ENDS = 240
# Entering the mount namespace changes the working folder, but not the environment.
_GO_BACK = 'sh -c \'cd "$0" && exec "$@"\' "$(pwd -P)" "$@"'


def available(backend: str = "auto") -> str | None:
    """Why nodes cannot be emulated here with a backend ("auto" for any); None if they can.

    Raises:
        HelperKilled: a signal ended a program that tried it.
    """
    lacking = missing_tools()
    if lacking:
        return f"{', '.join(lacking)} not in PATH (util-linux, iproute2, hostname)"
    try:
        with Space() as space, tempfile.NamedTemporaryFile() as hosts:
            space.hold("trial", hosts.name)
            return _choice(backend, space)[1]
    except HelperKilled:
        raise
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
        nodes: number of nodes, from 2 on; from 1 on if their devices have links inside them.
        devices_per_node: ends of the links inside each node, if the condition has any.

    Attributes:
        interface: network interface of every node.
        hosts: host name -> address of the node's first device, in /etc/hosts of every node.

    Raises:
        ConfigError: another number of nodes, or more than 240 ends.
    """

    interface = INTERFACE

    def __init__(self, condition: LinkCondition, nodes: int, devices_per_node: int = 1) -> None:
        per_node = 1 if condition.inside is None else devices_per_node
        fewest, most = 1 if per_node > 1 else 2, _MOST_ENDS // per_node
        if not fewest <= nodes <= most:
            each = "" if per_node == 1 else f" of {per_node} devices"
            raise ConfigError(f"{counted(nodes, 'emulated node')}{each}: write {fewest} to {most}")
        first = ipaddress.ip_network(NETWORK).network_address + _FIRST_ADDRESS
        self._addresses = [str(first + index) for index in range(nodes * per_node)]
        self.hosts = {f"node{index}": self._addresses[index * per_node] for index in range(nodes)}
        self._per_node = per_node
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
            # Each end mounts its file, so the names are not needed once they are up.
            with tempfile.TemporaryDirectory(prefix="ddlbench-hosts-") as folder:
                Path(folder).chmod(0o755)
                self._held = [
                    space.hold(name, self._write_hosts(Path(folder), name, address))
                    for name, address in self._names()
                ]
                self._backend = self._links(space, str(Path(folder) / self._addresses[0]), stack)
            self.calibrate()
            self._backend.reset_usage()
            self._up = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        """Remove links and namespaces; processes that still run inside lose their network."""
        self._held, self._backend = [], None
        self._up.close()

    def command(self, node: int, command: Sequence[str], device: int = 0) -> list[str]:
        """The command that runs ``command`` inside a node, in the caller's folder and environment.

        It keeps its process id throughout, so a signal to it reaches the command.

        Raises:
            EmulationFailed: the nodes are not up.
        """
        self._running()
        enter = shlex.join(self._held[self._end(node, device)].enter())
        return [tool("sh"), "-c", f"exec {enter} {_GO_BACK}", "sh", *command]

    def address(self, node: int, device: int = 0) -> str:
        return self._addresses[self._end(node, device)]

    def probe(self, congestion_controls: Sequence[str] = ()) -> dict[str, Any]:
        """Measure the links: ``setting``, ``measured``, ``ok``, ``misses``; see ``require``.

        Args:
            congestion_controls: whose goodput to report, besides the condition's own.

        Raises:
            EmulationFailed: a measurement failed.
        """
        backend = self._running()
        of_node = [_DevicesOf(self, node) for node in range(len(self.hosts))]
        report = probe(
            *(self, of_node, self._per_node, self._condition, backend),
            congestion_controls=congestion_controls,
        )
        backend.reset_usage()
        return report

    def calibrate(self) -> None:
        """Correct the delay by what this machine adds to it now.

        Raises:
            EmulationFailed: a measurement failed.
        """
        backend, inside = self._running(), self._condition.inside
        if len(self.hosts) > 1:
            self._calibrate(self, self._condition, backend, inside=False)
        if inside is not None and self._per_node > 1:
            self._calibrate(_DevicesOf(self, 0), inside, backend, inside=True)

    @staticmethod
    def _calibrate(ends: Ends, condition: LinkCondition, backend: Backend, *, inside: bool) -> None:
        if not condition.latency_s:
            return
        backend.correct(0.0, inside)
        measured_s = one_way_delay(ends, (0, 1), condition, backend)
        if measured_s is not None:
            backend.correct(measured_s - condition.latency_s, inside)

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
        if chosen == "netem":
            return Netem(space, hosts, self._held, self._addresses, self._condition)
        relay = RelayBackend(space, self._held, self._addresses, self._condition, self._per_node)
        return stack.enter_context(closing(relay))

    def _running(self) -> Backend:
        if self._backend is None:
            raise EmulationFailed("the emulated nodes are not up; use them inside `with`")
        return self._backend

    def _end(self, node: int, device: int) -> int:
        """Number of the namespace of a node's device, or of the node as a whole."""
        return node * self._per_node + (device if self._per_node > 1 else 0)

    def _names(self) -> list[tuple[str, str]]:
        names = [name for name in self.hosts for _ in range(self._per_node)]
        return list(zip(names, self._addresses, strict=True))

    def _write_hosts(self, folder: Path, own_name: str, own_address: str) -> str:
        """Write /etc/hosts of an end, in which its own name is its own address."""
        known = {**self.hosts, own_name: own_address}
        lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{ip} {n}" for n, ip in known.items())]
        path = folder / own_address
        path.write_text("\n".join([*lines, ""]), encoding="ascii")
        path.chmod(0o644)
        return str(path)


class _DevicesOf:
    """The devices of one node: ends of the links inside it."""

    def __init__(self, nodes: EmulatedNodes, node: int) -> None:
        self._nodes, self._node = nodes, node

    def command(self, end: int, command: Sequence[str], /) -> list[str]:
        return self._nodes.command(self._node, command, end)

    def address(self, end: int, /) -> str:
        return self._nodes.address(self._node, end)
