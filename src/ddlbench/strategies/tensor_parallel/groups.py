"""Who belongs together: groups that share samples, the same place of every group, lines of a grid.

::

    4 devices a group, a grid of 2 x 2, 2 groups

    group 0    0  1        lines of height   0-2  1-3   4-6  5-7
               2  3        lines of width    0-1  2-3   4-5  6-7
    group 1    4  5        across groups     0-4  1-5   2-6  3-7
               6  7
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from ddlbench.strategies.executor import Context
from ddlbench.strategies.process_group import side_by_side
from ddlbench.strategies.tensor_parallel.shard_group import ShardGroup
from ddlbench.strategies.timing import SpanRecorder

__all__ = ["across", "groups_of", "join_team", "lines_of"]

Ranks = list[list[int]]
"""Teams that lie side by side: every rank is in one of them."""


def groups_of(world_size: int, size: int) -> Ranks:
    """Neighbouring ranks."""
    return [list(range(start, start + size)) for start in range(0, world_size, size)]


def across(groups: Sequence[Sequence[int]]) -> Ranks:
    """The same place of every group."""
    return [list(same) for same in zip(*groups, strict=True)]


def lines_of(groups: Sequence[Sequence[int]], sizes: Mapping[int, int]) -> dict[int, Ranks]:
    """The lines of every group's grid along each dimension; ranks of the last one are neighbours.

    Args:
        groups: of as many ranks as the grid has.
        sizes: dimension -> extent of the grid, the outermost first.
    """
    found = {}
    inner = len(groups[0])
    for dim, size in sizes.items():
        outer, inner = inner, inner // size
        found[dim] = [
            [group[start + offset + step * inner] for step in range(size)]
            for group in groups
            for start in range(0, len(group), outer)
            for offset in range(inner)
        ]
    return found


def join_team(teams: Ranks, rank: int, spans: SpanRecorder, context: Context) -> ShardGroup:
    """This rank's team; every rank of the world calls it with the same teams."""
    mine = next(ranks for ranks in teams if rank in ranks)
    if len(mine) == 1:
        return ShardGroup(0, 1, None, spans)
    group = side_by_side(teams, context)
    # NCCL builds a communicator at its first use, in which all must take part.
    dist.all_reduce(torch.zeros(1, device=context.devices[0]), group=group)
    return ShardGroup(mine.index(rank), len(mine), group, spans)
