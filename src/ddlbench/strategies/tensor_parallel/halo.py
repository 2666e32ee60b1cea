"""The halo exchange: each rank gets the rows that its outputs read, and gives gradients back.

::

    forward     rank 0  [ own rows ]        backward   rank 0  [ own gradients ]
                            | copy                                 ^ add
                rank 1      v [ own rows ]             rank 1      | [ own gradients ]

A halo may come from several ranks where parts are thin, and rows that nobody reads go nowhere.
Source: Dryden et al., "Improving Strong-Scaling of CNN Training by Exploiting Finer-Grained
Parallelism", IPDPS 2019; Kahira et al., section 3 (spatial).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ddlbench.strategies.tensor_parallel.layout import Halo, Interval
from ddlbench.strategies.tensor_parallel.shard_group import GridAxis

__all__ = ["exchange"]


def exchange(rows: Tensor, halo: Halo, line: GridAxis, fill: float) -> Tensor:
    """The rows that this rank's outputs read, padding included.

    Args:
        rows: this rank's part along ``line.dim``.
        halo: who needs what.
        line: the ranks.
        fill: what padding holds: 0, or minus infinity before a maximum.
    """
    if halo.is_needless:
        return rows
    result: Tensor = _Exchange.apply(rows, halo, line, fill)
    return result


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, halo: Halo, line: GridAxis, fill: float) -> Tensor:
        ctx.place = halo, line
        return _collect(rows, halo, line, fill)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _give_back(gradients[0], *ctx.place), None, None, None


def _collect(rows: Tensor, halo: Halo, line: GridAxis, fill: float) -> Tensor:
    team, dim = line.team, line.dim
    own, wanted, kept = halo.owned[team.rank], halo.wanted[team.rank], halo.kept(team.rank)
    before, after = halo.padding[team.rank]
    held = wanted[1] - wanted[0]
    collected = rows.new_empty(_with_extent(rows, dim, before + held + after))
    collected.narrow(dim, 0, before).fill_(fill)
    collected.narrow(dim, before + held, after).fill_(fill)
    sends = [(r, _part(rows, dim, rs, own[0]).contiguous()) for r, rs in halo.sent(team.rank)]
    arriving = [(r, rs, _empty(rows, dim, rs)) for r, rs in halo.received(team.rank)]
    team.swap(sends, [(rank, tensor) for rank, _, tensor in arriving])
    origin = wanted[0] - before
    _part(collected, dim, kept, origin).copy_(_part(rows, dim, kept, own[0]))
    for _, interval, tensor in arriving:
        _part(collected, dim, interval, origin).copy_(tensor)
    return collected


def _give_back(gradient: Tensor, halo: Halo, line: GridAxis) -> Tensor:
    """Each row's gradients from all ranks that read it, added up in the order of ranks."""
    team, dim = line.team, line.dim
    own, kept = halo.owned[team.rank], halo.kept(team.rank)
    origin = halo.wanted[team.rank][0] - halo.padding[team.rank][0]
    sends = [
        (rank, _part(gradient, dim, rows, origin).contiguous())
        for rank, rows in halo.received(team.rank)
    ]
    arriving = [(r, rs, _empty(gradient, dim, rs)) for r, rs in halo.sent(team.rank)]
    team.swap(sends, [(rank, tensor) for rank, _, tensor in arriving])
    result = gradient.new_zeros(_with_extent(gradient, dim, own[1] - own[0]))
    _part(result, dim, kept, own[0]).copy_(_part(gradient, dim, kept, origin))
    for _, interval, tensor in arriving:
        _part(result, dim, interval, own[0]).add_(tensor)
    return result


def _part(tensor: Tensor, dim: int, interval: Interval, origin: int) -> Tensor:
    """The positions of ``interval`` in a tensor whose first position is ``origin``."""
    first, behind = interval
    if first == behind:
        return tensor.narrow(dim, 0, 0)
    return tensor.narrow(dim, first - origin, behind - first)


def _empty(like: Tensor, dim: int, interval: Interval) -> Tensor:
    return like.new_empty(_with_extent(like, dim, interval[1] - interval[0]))


def _with_extent(like: Tensor, dim: int, extent: int) -> list[int]:
    shape = list(like.shape)
    shape[dim] = extent
    return shape
