"""Fabrics: the network between the ranks of a run, either the site's own or an emulated one.

::

    the site's own    rendezvous: a socket of this node             launch: here, or with srun
    emulated          rendezvous: a port inside emulated node 0     launch: ranks inside their nodes
                      report: setting, probe, usage of the relay
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any, Protocol

from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Reason
from ddlbench.runtime.launch import Launch, Step, launch
from ddlbench.runtime.network_address import listen, rendezvous_address


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


class Fabric(Protocol):
    """A network that is up."""

    def rendezvous(self) -> Rendezvous:
        """The address of the next launch's rendezvous."""

    def launch(self, step: Step, rendezvous: Rendezvous) -> Launch:
        """Start ``step`` over this network."""

    def report(self) -> dict[str, Any] | None:
        """The ``link`` part of a result; None for the site's own network."""


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
        assert rendezvous.listener is not None
        return launch(step, self._site, rendezvous.listener)

    def report(self) -> None:
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
