"""Pooling over rows: windows as a convolution's, a maximum or a mean in place of the weights.

A mean is a sum over the rows at hand, divided by what torch would divide it by at that place of the
whole image: padding counts or does not, and windows that hang over the edge are smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddlbench.strategies.tensor_parallel.collectives import total
from ddlbench.strategies.tensor_parallel.halo import exchange
from ddlbench.strategies.tensor_parallel.layout import Halo, Window, halo_of
from ddlbench.strategies.tensor_parallel.shard_group import GridAxis, ShardGroup

__all__ = [
    "AVERAGES",
    "MAXIMA",
    "SpatialAverage",
    "SpatialMaximum",
    "WholeAverage",
]

_MAXIMUM: dict[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE: dict[int, Callable[..., Tensor]] = {2: F.avg_pool2d, 3: F.avg_pool3d}
MAXIMA = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVERAGES = (nn.AvgPool2d, nn.AvgPool3d)


class _SpatialPooling(nn.Module):
    """What maximum and mean share: each rank gets the rows that its outputs read."""

    fill = 0.0

    def __init__(
        self, layer: Any, lines: Sequence[GridAxis], inputs: Sequence[int], outputs: Sequence[int]
    ) -> None:
        super().__init__()
        dims = len(inputs) - 2
        self.dims, self.ceil_mode = dims, bool(layer.ceil_mode)
        self.kernel = _tuple(layer.kernel_size, dims)
        self.stride = _tuple(layer.stride, dims)
        self.dilation = _tuple(getattr(layer, "dilation", 1), dims)
        padding = list(_tuple(layer.padding, dims))
        self.halos: list[tuple[Halo, GridAxis]] = []
        for line in lines:
            place = line.dim
            window = Window(
                self.kernel[place],
                self.stride[place],
                self.dilation[place],
                padding[place],
                padding[place],
            )
            self.halos.append((halo_of(window, line.parts(inputs), line.parts(outputs)), line))
            padding[place] = 0  # comes with the halo
        self.padding = tuple(padding)

    def with_halo(self, rows: Tensor) -> Tensor:
        """The rows that this rank's outputs read."""
        for halo, line in self.halos:
            rows = exchange(rows, halo, line, self.fill)
        return rows


class SpatialMaximum(_SpatialPooling):
    """Maximum pooling over this rank's rows."""

    fill = -torch.inf

    def forward(self, rows: Tensor) -> Tensor:
        """Own rows of the input -> own rows of the output."""
        return _MAXIMUM[self.dims](
            self.with_halo(rows),
            self.kernel,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
        )


class SpatialAverage(_SpatialPooling):
    """Average pooling over this rank's rows."""

    divisors: Tensor

    def __init__(
        self,
        layer: nn.AvgPool2d | nn.AvgPool3d,
        lines: Sequence[GridAxis],
        inputs: Sequence[int],
        outputs: Sequence[int],
    ) -> None:
        super().__init__(layer, lines, inputs, outputs)
        own = {line.dim: line.parts(outputs)[line.team.rank] for line in lines}
        padding = _tuple(layer.padding, self.dims)
        sizes = []
        for place in range(-self.dims, 0):
            first, behind = own.get(place, (0, outputs[place]))
            window = Window(self.kernel[place], self.stride[place], 1, padding[place])
            counted = (-padding[place], inputs[place] + padding[place])
            if not layer.count_include_pad:
                counted = (0, inputs[place])
            reads = [window.reads((index, index + 1)) for index in range(first, behind)]
            edge = inputs[place] + padding[place]
            clipped = [(max(a, counted[0]), min(b, edge, counted[1])) for a, b in reads]
            sizes.append(torch.tensor([float(b - a) for a, b in clipped]))
        divisors = _outer(sizes)
        given = layer.divisor_override
        self.divisor = given or int(divisors.flatten()[0])
        self.is_uneven = given is None and bool((divisors != self.divisor).any())
        self.register_buffer("divisors", divisors, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Own rows of the input -> own rows of the output."""
        means = _AVERAGE[self.dims](
            self.with_halo(rows),
            self.kernel,
            self.stride,
            self.padding,
            self.ceil_mode,
            True,
            1 if self.is_uneven else self.divisor,
        )
        return means / self.divisors.to(means.dtype) if self.is_uneven else means


class WholeAverage(nn.Module):
    """The mean over all positions: each rank adds up its own, and they are added up.

    Args:
        team: all ranks of the grid.
        inputs: whole shape, (N, C, ...).
    """

    def __init__(self, team: ShardGroup, inputs: Sequence[int]) -> None:
        super().__init__()
        self.team = team
        self.positions = prod(inputs[2:])

    def forward(self, rows: Tensor) -> Tensor:
        """Own rows -> (N, C, 1, ...), the same on every rank."""
        dims = tuple(range(2, rows.dim()))
        return total(rows.sum(dims, keepdim=True) / self.positions, self.team)


def _outer(sizes: Sequence[Tensor]) -> Tensor:
    """Products of one of each."""
    result = sizes[0]
    for size in sizes[1:]:
        result = result.unsqueeze(-1) * size
    return result


def _tuple(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value)
