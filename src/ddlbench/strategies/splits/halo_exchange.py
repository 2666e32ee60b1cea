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
    first_row, kept = halo.owned[group.rank][0], halo.kept(group.rank)
    (start, end), (before, after) = halo.wanted[group.rank], halo.padding[group.rank]
    collected = rows.new_empty(_with_extent(rows, dim, before + end - start + after))
    collected.narrow(dim, 0, before).fill_(fill)
    collected.narrow(dim, before + end - start, after).fill_(fill)
    sent, received = halo.sent(group.rank), halo.received(group.rank)
    arrived = _swapped(rows, first_row, axis, sent, received)
    _part(collected, dim, kept, start - before).copy_(_part(rows, dim, kept, first_row))
    for interval, tensor in arrived:
        _part(collected, dim, interval, start - before).copy_(tensor)
    return collected


def _give_back(gradient: Tensor, halo: Halo, axis: GridAxis) -> Tensor:
    """Each own row's gradient: the sum, in the order of ranks, over all ranks that read the row."""
    group, dim = axis.group, axis.dim
    (first_row, end), kept = halo.owned[group.rank], halo.kept(group.rank)
    origin = halo.wanted[group.rank][0] - halo.padding[group.rank][0]
    sent, received = halo.received(group.rank), halo.sent(group.rank)
    arrived = _swapped(gradient, origin, axis, sent, received)
    result = gradient.new_zeros(_with_extent(gradient, dim, end - first_row))
    _part(result, dim, kept, first_row).copy_(_part(gradient, dim, kept, origin))
    for interval, tensor in arrived:
        _part(result, dim, interval, first_row).add_(tensor)
    return result


def _swapped(
    tensor: Tensor,
    origin: int,
    axis: GridAxis,
    sent: list[tuple[int, Interval]],
    received: list[tuple[int, Interval]],
) -> list[tuple[Interval, Tensor]]:
    """Send rows of a tensor that begins with row ``origin``; the rows that arrive."""
    parts = [(rank, _part(tensor, axis.dim, rows, origin).contiguous()) for rank, rows in sent]
    arriving = [
        (rank, tensor.new_empty(_with_extent(tensor, axis.dim, end - first)))
        for rank, (first, end) in received
    ]
    axis.group.swap(parts, arriving)
    return [(rows, part) for (_, rows), (_, part) in zip(received, arriving, strict=True)]


def _part(tensor: Tensor, dim: int, interval: Interval, origin: int) -> Tensor:
    """The rows of ``interval`` in a tensor that begins with row ``origin``."""
    first, end = interval
    if first == end:
        return tensor.narrow(dim, 0, 0)
    return tensor.narrow(dim, first - origin, end - first)


def _with_extent(like: Tensor, dim: int, extent: int) -> list[int]:
    shape = list(like.shape)
    shape[dim] = extent
    return shape
