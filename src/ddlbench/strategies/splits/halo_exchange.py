"""The halo exchange: rows of neighbours that a layer's outputs read.

::

    input     | rank 0        | rank 1        |      kernel 3: one row of the neighbour
    needed    [ . . . . . . . . ]
                            [ . . . . . . . . ]
    output    | rank 0        | rank 1        |

    forward     rank 0  [ own rows ]        backward   rank 0  [ own gradients ]
                            | copy                                 ^ add
                rank 1      v [ own rows ]             rank 1      | [ own gradients ]

Where parts are thin, a halo comes from several ranks. Rows that no output reads are not sent.

Source: Dryden et al., "Improving Strong-Scaling of CNN Training by Exploiting Finer-Grained
Parallelism", IPDPS 2019.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ddlbench.strategies.splits.layout import Halo, Interval
from ddlbench.strategies.splits.shard_group import GridAxis


def exchange(rows: Tensor, halo: Halo, axis: GridAxis, fill: float) -> Tensor:
    """The rows that this rank's outputs read, padding included.

    Args:
        rows: this rank's part along ``axis.dim``.
        halo: the rows that each rank needs.
        axis: the ranks.
        fill: value of padding: 0, or minus infinity before a maximum.
    """
    if halo.is_needless:
        return rows
    result: Tensor = _Exchange.apply(rows, halo, axis, fill)
    return result


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, halo: Halo, axis: GridAxis, fill: float) -> Tensor:
        ctx.place = halo, axis
        return _collect(rows, halo, axis, fill)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _give_back(gradients[0], *ctx.place), None, None, None


def _collect(rows: Tensor, halo: Halo, axis: GridAxis, fill: float) -> Tensor:
    group, dim = axis.group, axis.dim
    own, wanted, kept = halo.owned[group.rank], halo.wanted[group.rank], halo.kept(group.rank)
    before, after = halo.padding[group.rank]
    held = wanted[1] - wanted[0]
    collected = rows.new_empty(_with_extent(rows, dim, before + held + after))
    collected.narrow(dim, 0, before).fill_(fill)
    collected.narrow(dim, before + held, after).fill_(fill)
    sends = [(r, _part(rows, dim, rs, own[0]).contiguous()) for r, rs in halo.sent(group.rank)]
    arriving = [(r, rs, _empty(rows, dim, rs)) for r, rs in halo.received(group.rank)]
    group.swap(sends, [(rank, tensor) for rank, _, tensor in arriving])
    origin = wanted[0] - before
    _part(collected, dim, kept, origin).copy_(_part(rows, dim, kept, own[0]))
    for _, interval, tensor in arriving:
        _part(collected, dim, interval, origin).copy_(tensor)
    return collected


def _give_back(gradient: Tensor, halo: Halo, axis: GridAxis) -> Tensor:
    """Each own row's gradient: the sum, in the order of ranks, over all ranks that read the row."""
    group, dim = axis.group, axis.dim
    own, kept = halo.owned[group.rank], halo.kept(group.rank)
    origin = halo.wanted[group.rank][0] - halo.padding[group.rank][0]
    sends = [
        (rank, _part(gradient, dim, rows, origin).contiguous())
        for rank, rows in halo.received(group.rank)
    ]
    arriving = [(r, rs, _empty(gradient, dim, rs)) for r, rs in halo.sent(group.rank)]
    group.swap(sends, [(rank, tensor) for rank, _, tensor in arriving])
    result = gradient.new_zeros(_with_extent(gradient, dim, own[1] - own[0]))
    _part(result, dim, kept, own[0]).copy_(_part(gradient, dim, kept, origin))
    for _, interval, tensor in arriving:
        _part(result, dim, interval, own[0]).add_(tensor)
    return result


def _part(tensor: Tensor, dim: int, interval: Interval, origin: int) -> Tensor:
    """The rows of ``interval`` in a tensor that begins with row ``origin``."""
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
