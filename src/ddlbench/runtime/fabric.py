"""Fabrics: the network between the ranks of a run, either the site's own or an emulated one.

::

    the site's own    rendezvous: a socket of this node             launch: here, or with srun
    emulated          rendezvous: a port inside emulated node 0     launch: ranks inside their nodes
                      report: setting, probe, usage of the relay

Emulated links are probed before, and watched during, training::

    supervisor   nodes made -> probe -> refused, or:
       |-- rank 0   [into node 0] guard -> worker --.
       |-- rank 1   [into node 1] guard -> worker --+-- the link, made by a relay or by netem
       '-- meter    marks of rank 0: "measured" ... "done"   what the relay used between them

The ranks are children of this process, as on a local site. They share its control group, time limit
and file systems, and receive its signals, so on a cluster no srun step is needed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.emulation import EmulatedNodes, EmulationFailed, LinkMissed, available, require
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Reason
from ddlbench.planning.plan import Process
from ddlbench.planning.strategy import DeviceKind
from ddlbench.runtime.addresses import listen, rendezvous_address
from ddlbench.runtime.launch import Launch, LocalLaunch, Step, launch, visible_devices
from ddlbench.runtime.torchrun import TorchrunLaunch
from ddlbench.runtime.watchdog import phase_in


class FabricUnsupported(RuntimeError):  # noqa: N818 - a state of the machine, shown as such
    """This machine cannot emulate the fabric; the message says why."""


class FabricUnfit(RuntimeError):  # noqa: N818 - a state of the link, shown as such
    """An emulated link could not be made, or misses its setting."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of one launch find each other: ``host`` and ``port`` of rank 0's store."""

    host: str
    port: int
    interface: str | None  # None lets libraries choose
    listener: socket.socket | None = None  # bound for rank 0; None if rank 0 binds the port


# What starts the processes of a cell over a site's own network, by the site's key ``starter``. It
# takes the bound socket of the rendezvous over.
STARTERS: Mapping[str, Callable[[Step, Site, socket.socket], Launch]] = {
    "auto": launch,
    "torchrun": TorchrunLaunch,
}


class SiteFabric:
    """The site's own network, as it is."""

    def __init__(self, site: Site, nodes: int) -> None:
        self._site, self._nodes = site, nodes

    def rendezvous(self) -> Rendezvous:
        """A free port of this node; a socket holds it until rank 0 takes it over."""
        host, interface = rendezvous_address(self._site, self._nodes)
        listener = listen(host)
        return Rendezvous(host, listener.getsockname()[1], interface, listener)

    def launch(self, step: Step, rendezvous: Rendezvous) -> Launch:
        """Start ``step`` over this network."""
        assert rendezvous.listener is not None
        return STARTERS[self._site.starter](step, self._site, rendezvous.listener)

    def report(self) -> None:
        """The ``link`` part of a result, which only an emulated network has."""
        return None


def fault_of(report: dict[str, Any] | None) -> Reason | None:
    """Why measurements over a link are invalid, by its fabric's report; None if they are valid."""
    # A relay that is never idle limits the link, whatever the setting says.
    if report is None or not report["usage"]["saturated"]:
        return None
    usage = report["usage"]
    share = usage.get("busiest_second_share", usage["share_of_core"])
    return Reason(
        "link_unfit",
        f"the relay of fabric {report['fabric']} used {share:.0%} of its core in a second "
        f"({usage['over']}), so it was slower than the link that it stands for; lower "
        "bandwidth_mbit_per_s, raise mtu, or give the relay a core of its own",
    )


_PORT = 29500  # nothing else runs in an emulated node, so any port is free
_CORES_FOR_A_RELAY = 3
_CHECK_RELAY_S = 5.0
# If other work delays the links for a moment, a later probe can still pass.
_PROBES, _PAUSE_S = 6, 5.0
# NCCL's faster transports would bypass the emulated link.
_SOCKETS = {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}
_SOCKETS_INSIDE = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


@dataclass(frozen=True)
class CpuShares:
    """Cores of the ranks and of the relay."""

    ranks: tuple[int, ...]  # of all ranks together
    relay: tuple[int, ...]  # empty if the kernel makes the links
    shared: bool  # ranks and relay compete for too few cores


def cpu_shares(cores: set[int], backend: str) -> CpuShares:
    """Give the relay the last core, and the ranks the others if there are at least three."""
    ordered = tuple(sorted(cores))
    if backend != "relay":
        return CpuShares(ordered, (), shared=False)
    if len(ordered) < _CORES_FOR_A_RELAY:
        return CpuShares(ordered, ordered[-1:], shared=True)
    return CpuShares(ordered[:-1], ordered[-1:], shared=False)


class RelayMeter:
    """Measures what the relay of ``nodes`` uses during the measured steps."""

    def __init__(self, nodes: EmulatedNodes) -> None:
        self._nodes = nodes
        self._usage: dict[str, Any] | None = None
        self._over = "whole run"
        nodes.reset_usage()

    def see(self, line: str) -> None:
        """Read a line that a rank printed; its marks begin and end the measurement."""
        phase = phase_in(line)
        if phase == "measured":
            self._nodes.reset_usage()
            self._over = "measured steps, not all of them"
        elif phase == "done":
            self._usage = self._nodes.usage()
            self._over = "measured steps"

    def check(self) -> None:
        self._nodes.usage()

    def usage(self) -> dict[str, Any]:
        """The relay's usage; ``over`` names the time that it covers."""
        return {**(self._usage or self._nodes.usage()), "over": self._over}


class EmulatedLaunch(LocalLaunch):
    """Runs each process inside its emulated node and shows every printed line to the meter."""

    def __init__(self, step: Step, inside: _Inside, meter: RelayMeter) -> None:
        super().__init__(step, place=inside)
        self._meter = meter

    def lines(self, deadline: float) -> Iterator[str | None]:
        """Lines that the ranks print.

        Raises:
            EmulationFailed: the relay has ended, so the ranks would wait for each other forever.
        """
        next_check = time.monotonic() + _CHECK_RELAY_S
        for line in super().lines(deadline):
            if line is not None:
                self._meter.see(line)
            if time.monotonic() >= next_check:
                self._meter.check()
                next_check = time.monotonic() + _CHECK_RELAY_S
            yield line


class EmulatedFabric:
    """Emulated nodes whose links have been probed: a :class:`Fabric`.

    With ``share_gpu`` every node uses this machine's first GPU; else each node gets its own GPUs.
    """

    def __init__(
        self,
        name: str,
        condition: LinkCondition,
        nodes: EmulatedNodes,
        probe: dict[str, Any],
        device_kind: DeviceKind,
        *,
        share_gpu: bool = False,
    ) -> None:
        self._name, self._condition, self._device_kind = name, condition, device_kind
        self._share_gpu = share_gpu
        self._nodes, self._probe, self._meter = nodes, probe, RelayMeter(nodes)
        self._cpus = cpu_shares(os.sched_getaffinity(0), str(nodes.usage()["backend"]))

    def rendezvous(self) -> Rendezvous:
        return Rendezvous(self._nodes.address(0), _PORT, self._nodes.interface)

    def launch(self, step: Step, rendezvous: Rendezvous) -> EmulatedLaunch:
        inside = _Inside(
            self._nodes,
            step.devices_per_node,
            self._device_kind,
            self._share_gpu,
            links_inside=self._condition.inside is not None,
        )
        with _confined(self._cpus.ranks):
            return EmulatedLaunch(step, inside, self._meter)

    def report(self) -> dict[str, Any]:
        return {
            "fabric": self._name,
            "setting": self._condition.to_dict(),
            "probe": self._probe,
            "usage": self._meter.usage(),
            "cpus": {
                "ranks": list(self._cpus.ranks),
                "relay": list(self._cpus.relay),
                "shared": self._cpus.shared,
            },
            "host": socket.gethostname(),
        }


Fabric = SiteFabric | EmulatedFabric
"""A network that is up."""


@contextmanager
def fabric_up(site: Site, name: str, geometry: tuple[int, int]) -> Iterator[Fabric]:
    """Bring up the fabric ``name`` of ``site`` for the time of a ``with``, and check its links.

    ``geometry`` is the number of nodes, and of devices of each.

    Raises:
        FabricUnsupported: this machine cannot emulate nodes, or not with such links.
        FabricUnfit: delay or rate of a link miss the setting, or the emulation broke down.
    """
    if not site.emulates(name):
        yield SiteFabric(site, geometry[0])
        return
    condition = site.fabrics[name]
    cannot = f"fabric {name} cannot be emulated here"
    try:
        reason = available(condition.backend)
        if reason is not None:
            raise FabricUnsupported(f"{cannot}: {reason}")
        with ExitStack() as stack:
            try:
                emulated = stack.enter_context(EmulatedNodes(condition, *geometry))
            except ConfigError as error:  # this kernel lacks the congestion control
                raise FabricUnsupported(f"{cannot}: {error}") from error
            probe = _probe(emulated)
            require(probe)
            yield EmulatedFabric(
                name, condition, emulated, probe, site.device, share_gpu=site.devices_share_gpu
            )
    except (EmulationFailed, LinkMissed) as error:
        raise FabricUnfit(f"fabric {name}: {error}") from error


def _probe(emulated: EmulatedNodes) -> dict[str, Any]:
    """The first probe that meets the setting, else the last, with the misses of earlier ones."""
    earlier: list[list[str]] = []
    while True:
        probe = emulated.probe()
        if probe["ok"] or len(earlier) + 1 == _PROBES:
            return {**probe, "earlier_misses": earlier}
        earlier.append(probe["misses"])
        time.sleep(_PAUSE_S)
        emulated.calibrate()


@dataclass(frozen=True)
class _Inside:
    """Inside an emulated node, at the links of a process's first device: a ``launch.Place``."""

    nodes: EmulatedNodes
    devices_per_node: int
    device_kind: DeviceKind
    share_gpu: bool = False
    links_inside: bool = False

    def command(self, process: Process, command: Sequence[str]) -> list[str]:
        return self.nodes.command(process.node, command, process.devices[0])

    def environment(self, process: Process) -> dict[str, str]:
        """Show a node its own GPUs, and have NCCL use sockets, which go through the link."""
        if self.device_kind == "cpu":
            return {}
        sockets = {**_SOCKETS, **(_SOCKETS_INSIDE if self.links_inside else {})}
        if self.share_gpu:
            return sockets
        first = process.node * self.devices_per_node
        name, visible = visible_devices()
        if visible is None:
            visible = [str(index) for index in range(first + self.devices_per_node)]
        devices = visible[first : first + self.devices_per_node]
        return {name: ",".join(devices), **sockets}


@contextmanager
def _confined(cores: tuple[int, ...]) -> Iterator[None]:
    """Keep the processes that this thread starts within a ``with`` on ``cores``."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
