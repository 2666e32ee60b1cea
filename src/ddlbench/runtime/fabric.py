"""The network that the ranks of one run talk over, under the name that a cell gives it (fabric).

::

    the site's own    rendezvous: a socket of this node             launch: here, or with srun
    emulated          rendezvous: a port inside emulated node 0     launch: ranks inside their nodes
                      report: what was set, what a probe found, what the relay used
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Reason
from ddlbench.runtime.launch import Launch, Step, launch
from ddlbench.runtime.network_address import listen, meeting_point


class FabricUnsupported(RuntimeError):  # noqa: N818 - a state of the machine, shown as such
    """An emulated fabric cannot be made on this machine; the sentence says why."""


class FabricUnfit(RuntimeError):  # noqa: N818 - a state of the link, shown as such
    """An emulated link could not be made, or is not what its setting says."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of one launch find each other.

    Args:
        host, port: where rank 0 serves the store.
        interface: network interface to talk over; None lets libraries choose.
        listener: bound socket for rank 0; None where rank 0 binds the port itself.
    """

    host: str
    port: int
    interface: str | None
    listener: socket.socket | None = None


class Fabric(Protocol):
    """A network that is up."""

    def rendezvous(self) -> Rendezvous:
        """Where the ranks of the next launch rendezvous."""
        ...

    def launch(self, step: Step, meeting: Rendezvous) -> Launch:
        """Start ``step`` over it."""
        ...

    def report(self) -> dict[str, Any] | None:
        """What a result says of the link (``link``); None where it is the site's own."""
        ...


class SiteFabric:
    """The site's own network, under whatever condition its owner set."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def rendezvous(self) -> Rendezvous:
        """A free port of this node, held by a socket until rank 0 has it."""
        host, interface = meeting_point(self._site)
        listener = listen(host)
        return Rendezvous(host, listener.getsockname()[1], interface, listener)

    def launch(self, step: Step, meeting: Rendezvous) -> Launch:
        """Start ``step`` on this machine, or over the nodes of this job."""
        assert meeting.listener is not None
        return launch(step, self._site, meeting.listener)

    def report(self) -> None:
        """Nothing was set here."""


@contextmanager
def fabric_up(site: Site, name: str, nodes: int) -> Iterator[Fabric]:
    """Inside it, the network that ``name`` stands for at ``site`` is up, for ``nodes`` nodes.

    Raises:
        FabricUnsupported: this machine cannot emulate it.
        FabricUnfit: the emulated link is not what its setting says.
    """
    if not site.emulates(name):
        yield SiteFabric(site)
        return
    # Here, as most runs emulate nothing.
    from ddlbench.runtime.emulated_fabric import emulated_fabric  # noqa: PLC0415

    condition, shared = site.fabrics[name], site.devices_share_gpu
    with emulated_fabric(name, condition, nodes, site.device, shared) as fabric:
        yield fabric


def fault_of(report: dict[str, Any] | None) -> Reason | None:
    """Why what was measured over a link is not valid; None when it is.

    A relay that is never idle is the limit itself, whatever the setting says.

    Args:
        report: of the link; see ``Fabric.report``.
    """
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
