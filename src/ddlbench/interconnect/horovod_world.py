"""Horovod over a group of ranks, joined as ``strategies/horovod`` joins the ranks of a plan."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ddlbench.interconnect.group import Group
from ddlbench.runtime.network_address import address_of
from ddlbench.strategies.horovod.descriptor import Horovod
from ddlbench.strategies.horovod.rendezvous import (
    HorovodPlace,
    host_names,
    join_rendezvous,
    set_place,
)

__all__ = ["horovod_world"]


@contextmanager
def horovod_world(hvd: Any, group: Group) -> Iterator[None]:
    """Inside it ``hvd`` spans ``group`` over gloo, with its own defaults for fusion and cycle."""
    size = len(group.members)
    meeting = join_rendezvous(group.store, group.rank, size, address_of(group.interface))
    # By host name, as Horovod itself knows hosts: nodes that share one count as one.
    hosts = host_names(group.store, size)
    names = list(dict.fromkeys(hosts))
    local = [rank for rank, name in enumerate(hosts) if name == hosts[group.rank]]
    place = HorovodPlace(
        rank=group.rank,
        size=size,
        local_rank=local.index(group.rank),
        local_size=len(local),
        node=names.index(hosts[group.rank]),
        nodes=len(names),
    )
    set_place(place, meeting, group.interface)
    options = Horovod.options
    os.environ["HOROVOD_FUSION_THRESHOLD"] = str(options["fusion_threshold_bytes"]["default"])
    os.environ["HOROVOD_CYCLE_TIME"] = str(options["cycle_time_s"]["default"] * 1e3)
    hvd.init()
    try:
        yield
    finally:
        hvd.shutdown()
        if meeting.server is not None:
            meeting.server.stop()
