"""The process groups of a cell's ranks, and the first message over each connection.

Groups use gloo (CPU) or NCCL (CUDA)::

    join_all        rank 0 .. n-1         once, before any other group
    every_rank      rank 0 .. n-1         the same ranks, with messages of their own
    side_by_side    | 0 1 | 2 3 | ...     one of several disjoint groups: the one of this rank

Their timeout is ``Context.patience_s``, because the libraries' own limits of some minutes are too
short for a step over a bad link. The supervisor ends a cell that hangs or lasts too long, and
reports which of the two it was.

Two ranks connect when they exchange their first message, and on CUDA both wait for the whole device
meanwhile. :func:`connect` sends these first messages one by one, before any receive is posted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from ddlbench.planning.plan import Process
from ddlbench.strategies.alone import backend_without_peers
from ddlbench.strategies.executor import Context

Channel = tuple[str, int, int]
"""Kind of its messages, the rank that sends, the rank that receives."""


def join_all(context: Context, process: Process, world_size: int) -> None:
    """Join the default group; every process of the cell calls this before its first collective."""
    device = context.devices[0]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if context.alone is not None:
        backend = backend_without_peers(context.alone)
    dist.init_process_group(
        backend=backend,
        store=context.store or dist.HashStore(),
        rank=process.rank,
        world_size=world_size,
        timeout=_patience(context),
    )


def every_rank(context: Context) -> dist.ProcessGroup:
    """Make another group of all ranks; every rank calls this."""
    group = dist.new_group(timeout=_patience(context))
    assert isinstance(group, dist.ProcessGroup)
    return group


def side_by_side(rank_groups: Sequence[Sequence[int]], context: Context) -> dist.ProcessGroup:
    """Make disjoint groups and return this rank's; every rank calls this with the same groups."""
    group, _ = dist.new_subgroups_by_enumeration(
        [list(ranks) for ranks in rank_groups], timeout=_patience(context)
    )
    assert isinstance(group, dist.ProcessGroup)
    return group


def _patience(context: Context) -> timedelta:
    return timedelta(seconds=context.patience_s)


def connect(
    channels: Iterable[Channel],
    rank: int,
    groups: Mapping[str, dist.ProcessGroup],
    device: torch.device,
) -> None:
    """Send one element over every channel of this rank.

    All ranks give the channels of all, in the same order, so that none deadlock.
    """
    for kind, source, target in channels:
        greeting = torch.zeros(1, device=device)
        if rank == source:
            dist.send(greeting, target, group=groups[kind])
        elif rank == target:
            dist.recv(greeting, source, group=groups[kind])
