"""The process group of a cell's ranks, and groups within it: gloo (CPU) or NCCL (CUDA).

::

    join_all        rank 0 .. n-1         once, before any other group
    every_rank      rank 0 .. n-1         the same ranks; messages of their own
    side_by_side    | 0 1 | 2 3 | ...     this rank's team of several

They wait for each other as long as the supervisor lets them (``Context.patience_s``). Libraries
have limits of their own, some minutes, and a step over a bad link may take longer; a cell that
hangs or lasts too long is ended by the supervisor, which says which of the two it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from ddlbench.planning.strategy import Process
from ddlbench.strategies.executor import Context

__all__ = ["every_rank", "join_all", "side_by_side"]


def join_all(context: Context, process: Process, world_size: int) -> None:
    """Join the default group; every process of the cell calls it, before its first collective."""
    device = context.devices[0]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend="nccl" if device.type == "cuda" else "gloo",
        store=context.store or dist.HashStore(),
        rank=process.rank,
        world_size=world_size,
        timeout=_patience(context),
    )


def every_rank(context: Context) -> dist.ProcessGroup:
    """One more group of all ranks; all call it."""
    group = dist.new_group(timeout=_patience(context))
    assert isinstance(group, dist.ProcessGroup)
    return group


def side_by_side(teams: Sequence[Sequence[int]], context: Context) -> dist.ProcessGroup:
    """This rank's group of ``teams``, in which every rank is once; all call it with the same."""
    group, _ = dist.new_subgroups_by_enumeration(
        [list(ranks) for ranks in teams], timeout=_patience(context)
    )
    assert isinstance(group, dist.ProcessGroup)
    return group


def _patience(context: Context) -> timedelta:
    return timedelta(seconds=context.patience_s)
