"""The rendezvous of Horovod's ranks over gloo, without Horovod's own launcher.

::

    rank 0       hosts of all ranks -> server -> its address -> store
    every rank   address of the server <- store
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed import Store


@dataclass(frozen=True)
class HorovodPlace:
    """The place of a process among all ranks, on its node, and of its node among all nodes.

    Horovod tells nodes apart by the name ``host``: two nodes of one name would wait for each other.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    nodes: int
    host: str


@dataclass(frozen=True)
class Rendezvous:
    """Horovod's rendezvous server; rank 0 keeps ``server`` itself alive by this reference."""

    address: str
    port: int
    server: Any


def set_place(place: HorovodPlace, rendezvous: Rendezvous | None, interface: str | None) -> None:
    """Set the variables that Horovod's launcher would set.

    Args:
        place: of this process.
        rendezvous: None where the process is alone.
        interface: network interface; None lets gloo choose.
    """
    values = {
        "HOROVOD_RANK": place.rank,
        "HOROVOD_SIZE": place.size,
        "HOROVOD_LOCAL_RANK": place.local_rank,
        "HOROVOD_LOCAL_SIZE": place.local_size,
        "HOROVOD_CROSS_RANK": place.node,
        "HOROVOD_CROSS_SIZE": place.nodes,
        "HOROVOD_HOSTNAME": place.host,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    if interface is not None:
        values["HOROVOD_GLOO_IFACE"] = interface
    if rendezvous is not None:
        values["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = rendezvous.address
        values["HOROVOD_GLOO_RENDEZVOUS_PORT"] = rendezvous.port
    os.environ.update({name: str(value) for name, value in values.items()})


def join_rendezvous(
    store: Store, rank: int, hosts: Sequence[str], local_address: str
) -> Rendezvous:
    """Start the server on rank 0, and give every rank its address.

    Args:
        store: of these ranks only.
        rank: of this process.
        hosts: of all ranks, in their order.
        local_address: at which other ranks reach this host.
    """
    server = None
    if rank == 0:
        server, port = _serve(hosts)
        store.set("horovod/rendezvous", f"{local_address} {port}")
    address, port_text = store.get("horovod/rendezvous").decode().split()
    return Rendezvous(address, int(port_text), server)


def _serve(hosts: Sequence[str]) -> tuple[Any, int]:
    """Start Horovod's rendezvous server for ranks on these hosts; return it and its port."""
    assign = importlib.import_module("horovod.runner.common.util.hosts")
    http = importlib.import_module("horovod.runner.http.http_server")
    server = http.RendezvousServer(verbose=0)
    port: int = server.start()
    infos = [assign.HostInfo(name, count) for name, count in Counter(hosts).items()]
    server.init(assign.get_host_assignments(infos, len(hosts)))
    return server, port
