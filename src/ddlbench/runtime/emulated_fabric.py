"""Ranks inside emulated nodes: the link between them is made, probed, and watched while they train.

::

    supervisor   nodes made -> probe -> refused, or:
       |-- rank 0   [into node 0] guard -> worker --.
       |-- rank 1   [into node 1] guard -> worker --+-- the link, made by a relay or by netem
       '-- meter    marks of rank 0: "measured" ... "done"   what the relay used between them

The ranks are children of this process as on a local site: they share its control group, time limit
and file systems, and signals reach them. On a cluster these are the job's own, and no srun step is
needed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from ddlbench.emulation import (
    EmulatedNodes,
    EmulationFailed,
    LinkMissed,
    available,
    require,
)
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.planning.strategy import DeviceKind
from ddlbench.runtime.fabric import FabricUnfit, FabricUnsupported, Rendezvous
from ddlbench.runtime.launch import LocalLaunch, Step
from ddlbench.runtime.progress import phase_in

# Nobody else lives in an emulated node, so every port of it is free.
_PORT = 29500
_CORES_FOR_A_RELAY = 3
# How often the relay is asked whether it is still there.
_LOOK_S = 5.0
# A machine that is busy for a moment makes links that are late for a moment.
_PROBES, _PAUSE_S = 3, 2.0
# Of NCCL, whose faster ways would go round the emulated link.
_SOCKETS = {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}


@dataclass(frozen=True)
class CpuShares:
    """Which cores the ranks may use, and which the relay.

    Args:
        ranks: cores of all ranks together.
        relay: core of the relay; empty where the kernel makes the link.
        shared: ranks and relay compete, as there are too few cores to part them.
    """

    ranks: tuple[int, ...]
    relay: tuple[int, ...]
    shared: bool


def cpu_shares(cores: set[int], backend: str) -> CpuShares:
    """The last core is the relay's, the others are the ranks', where there are three or more."""
    ordered = tuple(sorted(cores))
    if backend != "relay":
        return CpuShares(ordered, (), shared=False)
    if len(ordered) < _CORES_FOR_A_RELAY:
        return CpuShares(ordered, ordered[-1:], shared=True)
    return CpuShares(ordered[:-1], ordered[-1:], shared=False)


class RelayMeter:
    """What the relay uses while steps are measured.

    Args:
        nodes: whose relay.
    """

    def __init__(self, nodes: EmulatedNodes) -> None:
        self._nodes = nodes
        self._usage: dict[str, Any] | None = None
        self._over = "whole run"
        nodes.reset_usage()

    def see(self, line: str) -> None:
        """Look for the marks of the measured steps in a line that a rank printed."""
        phase = phase_in(line)
        if phase == "measured":
            self._nodes.reset_usage()
            self._over = "measured steps, not all of them"
        elif phase == "done":
            self._usage = self._nodes.usage()
            self._over = "measured steps"

    def check(self) -> None:
        """Raise EmulationFailed where the relay has ended."""
        self._nodes.usage()

    def usage(self) -> dict[str, Any]:
        """The relay's usage; ``over`` says during what."""
        return {**(self._usage or self._nodes.usage()), "over": self._over}


class EmulatedLaunch(LocalLaunch):
    """Each process inside its emulated node; the meter sees what they print."""

    def __init__(self, step: Step, inside: _Inside, meter: RelayMeter) -> None:
        super().__init__(step, place=inside)
        self._meter = meter

    def lines(self, deadline: float) -> Iterator[str | None]:
        """What the ranks print.

        Raises:
            EmulationFailed: the relay has ended; the ranks would wait for each other for ever.
        """
        look = time.monotonic() + _LOOK_S
        for line in super().lines(deadline):
            if line is not None:
                self._meter.see(line)
            if time.monotonic() >= look:
                self._meter.check()
                look = time.monotonic() + _LOOK_S
            yield line


class EmulatedFabric:
    """Emulated nodes and the links between them, probed.

    Args:
        name: of the fabric.
        condition: what it sets.
        nodes: its nodes.
        probe: what was measured of its links.
        device_kind: what ranks compute on.
        share_gpu: every node has this machine's first GPU; else they are dealt to them in order.
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
        """Rank 0 binds its port inside node 0."""
        return Rendezvous(self._nodes.address(0), _PORT, self._nodes.interface)

    def launch(self, step: Step, meeting: Rendezvous) -> EmulatedLaunch:
        """Start every process inside its node, on the ranks' cores."""
        inside = _Inside(self._nodes, step.devices_per_node, self._device_kind, self._share_gpu)
        with _confined(self._cpus.ranks):
            return EmulatedLaunch(step, inside, self._meter)

    def report(self) -> dict[str, Any]:
        """Setting, probe, what the relay used, and where all of it ran."""
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


@contextmanager
def emulated_fabric(
    name: str,
    condition: LinkCondition,
    nodes: int,
    device_kind: DeviceKind,
    share_gpu: bool = False,
) -> Iterator[EmulatedFabric]:
    """Inside it there are ``nodes`` emulated nodes whose links were probed and are as they should.

    Raises:
        FabricUnsupported: nodes, or such links, cannot be emulated here.
        FabricUnfit: delay or rate are not what the setting says, or the emulation broke down.
    """
    cannot = f"fabric {name} cannot be emulated here"
    reason = available(condition.backend)
    if reason is not None:
        raise FabricUnsupported(f"{cannot}: {reason}")
    try:
        with ExitStack() as stack:
            try:
                emulated = stack.enter_context(EmulatedNodes(condition, nodes))
            except ConfigError as error:  # a setting that this kernel does not have
                raise FabricUnsupported(f"{cannot}: {error}") from error
            probe = _probe(emulated)
            require(probe)
            yield EmulatedFabric(name, condition, emulated, probe, device_kind, share_gpu=share_gpu)
    except (EmulationFailed, LinkMissed) as error:
        raise FabricUnfit(f"fabric {name}: {error}") from error


def _probe(emulated: EmulatedNodes) -> dict[str, Any]:
    """The first probe whose links are as they should be, or the last; what earlier ones missed."""
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
    """Where the processes of a launch run: a ``launch.Place``."""

    nodes: EmulatedNodes
    devices_per_node: int
    device_kind: DeviceKind
    share_gpu: bool = False

    def command(self, node: int, command: Sequence[str]) -> list[str]:
        """The command that runs ``command`` inside ``node``."""
        return self.nodes.command(node, command)

    def environment(self, node: int) -> dict[str, str]:
        """A node's own GPUs; they talk by sockets, as nothing else goes through the link."""
        if self.device_kind == "cpu":
            return {}
        if self.share_gpu:
            return dict(_SOCKETS)
        first = node * self.devices_per_node
        every = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if every == [""]:
            every = [str(index) for index in range(first + self.devices_per_node)]
        own = every[first : first + self.devices_per_node]
        return {"CUDA_VISIBLE_DEVICES": ",".join(own), **_SOCKETS}


@contextmanager
def _confined(cores: tuple[int, ...]) -> Iterator[None]:
    """Processes that this thread starts inside it stay on ``cores``."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
