"""The rendezvous of Horovod's ranks over gloo, without Horovod's own launcher.

::

    every rank   its own address -> store
    rank 0       addresses of all ranks -> server -> its address -> store
    every rank   address of the server <- store

The server listens at the one address at which ranks reach it (the loopback of a run on one
machine), and answers only requests that name the secret of the run. Horovod's client knows no
secrets, but it asks for ``http://<address>:<port>/<scope>/<key>`` with an address that is any text.
So ranks give it ``<address>:<port>/<secret>``, and it asks for ``/<secret>:<port>/<scope>/<key>``.
"""

from __future__ import annotations

import importlib
import os
import secrets
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed import Store


@dataclass(frozen=True)
class Rendezvous:
    """Horovod's rendezvous server; rank 0 keeps ``server`` itself alive by this reference.

    Args:
        address: with the port and the secret, for Horovod's client.
        port: of the server.
        server: None on other ranks.
    """

    address: str
    port: int
    server: Any


def set_place(
    rank: int, hosts: Sequence[str], rendezvous: Rendezvous | None, interface: str | None
) -> None:
    """Set the variables that Horovod's launcher would set.

    Horovod tells nodes apart by the names in ``hosts``, of each rank: two nodes of one name would
    wait for each other. An interface of None lets gloo choose.
    """
    nodes = list(dict.fromkeys(hosts))
    local = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    values: dict[str, int | str] = {
        "RANK": rank,
        "SIZE": len(hosts),
        "LOCAL_RANK": local.index(rank),
        "LOCAL_SIZE": len(local),
        "CROSS_RANK": nodes.index(hosts[rank]),
        "CROSS_SIZE": len(nodes),
        "HOSTNAME": hosts[rank],
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
    }
    if interface is not None:
        values["GLOO_IFACE"] = interface
    if rendezvous is not None:
        values["GLOO_RENDEZVOUS_ADDR"] = rendezvous.address
        values["GLOO_RENDEZVOUS_PORT"] = rendezvous.port
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in values.items()})


def join_rendezvous(
    store: Store, rank: int, hosts: Sequence[str], local_address: str, secret: str | None = None
) -> Rendezvous:
    """Start the server on rank 0, and give every rank its address.

    Args:
        store: of these ranks only.
        rank: of this process.
        hosts: of all ranks, in their order.
        local_address: at which other ranks reach this host.
        secret: of the run, the same on all ranks; None has rank 0 make one, which the store tells.
    """
    server = None
    if rank == 0:
        path = secret or secrets.token_hex(16)
        server, port = _serve(hosts, local_address, path)
        # The store has no password, so it gets no secret that ranks have by another way.
        sent = "" if secret else path
        store.set("horovod/rendezvous", f"{local_address} {port} {sent}")
    address, port_text, sent = store.get("horovod/rendezvous").decode().split(" ")
    return Rendezvous(f"{address}:{port_text}/{secret or sent}", int(port_text), server)


def _serve(hosts: Sequence[str], address: str, secret: str) -> tuple[Any, int]:
    """Start Horovod's rendezvous server for ranks on these hosts; return it and its port."""
    assign = importlib.import_module("horovod.runner.common.util.hosts")
    http = importlib.import_module("horovod.runner.http.http_server")

    class Handler(http.RendezvousHandler):  # type: ignore[name-defined]  # untyped
        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            head, _, rest = str(self.path).removeprefix("/").partition("/")
            if secrets.compare_digest(head.partition(":")[0].encode(), secret.encode()):
                self.path: str = f"/{rest}"
                return True
            self.send_error(403)
            return False

    server = http.RendezvousHTTPServer((address, 0), Handler, 0)
    port: int = server.server_address[1]
    threading.Thread(target=server.serve_forever, name="rendezvous", daemon=True).start()
    infos = [assign.HostInfo(name, count) for name, count in Counter(hosts).items()]
    server.init(assign.get_host_assignments(infos, len(hosts)))
    return server, port
