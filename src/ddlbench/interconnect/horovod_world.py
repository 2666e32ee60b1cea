"""Horovod over a group of ranks, joined as ``strategies/horovod`` joins the ranks of a plan."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ddlbench.interconnect.group import Group
from ddlbench.runtime.network_address import address_of
from ddlbench.strategies.horovod.descriptor import Horovod
from ddlbench.strategies.horovod.rendezvous import serve_rendezvous

__all__ = ["horovod_world"]


@contextmanager
def horovod_world(hvd: Any, group: Group) -> Iterator[None]:
    """Inside it ``hvd`` spans ``group`` over gloo, with its own defaults for fusion and cycle."""
    server = _serve(group) if group.rank == 0 else None
    host, port = group.store.get("horovod/rendezvous").decode().split()
    # By host name, as Horovod itself knows hosts: nodes that share one count as one.
    hosts = group.hosts()
    names = list(dict.fromkeys(hosts))
    local = [rank for rank, name in enumerate(hosts) if name == hosts[group.rank]]
    values: dict[str, Any] = {
        "HOROVOD_RANK": group.rank,
        "HOROVOD_SIZE": len(group.members),
        "HOROVOD_LOCAL_RANK": local.index(group.rank),
        "HOROVOD_LOCAL_SIZE": len(local),
        "HOROVOD_CROSS_RANK": names.index(hosts[group.rank]),
        "HOROVOD_CROSS_SIZE": len(names),
        "HOROVOD_HOSTNAME": socket.gethostname(),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_FUSION_THRESHOLD": Horovod.options["fusion_threshold_bytes"]["default"],
        "HOROVOD_CYCLE_TIME": Horovod.options["cycle_time_s"]["default"] * 1e3,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
    }
    if group.interface is not None:
        values["HOROVOD_GLOO_IFACE"] = group.interface
    os.environ.update({name: str(value) for name, value in values.items()})
    hvd.init()
    try:
        yield
    finally:
        hvd.shutdown()
        if server is not None:
            server.stop()


def _serve(group: Group) -> Any:
    """The rendezvous server of this group."""
    server, port = serve_rendezvous(group.hosts())
    group.store.set("horovod/rendezvous", f"{address_of(group.interface)} {port}")
    return server
