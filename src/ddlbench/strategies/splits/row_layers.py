"""Layers that compute on rows, after an exchange of the rows that their outputs read.

Convolutions and pooling read halos. Batch normalisation has the statistics of the unsplit layer::

    each rank     mean and variance of its own positions  --gather-->  of all (Chan et al. 1979)
    backward      sums of dy and of dy * xhat             --all-reduce-->  gradient of the input

Each rank has the gradients of weights, scale and shift for its own rows only; the caller must add
them up over ranks.

Rows of neighbours that a layer's outputs read are its halo::

    input     | rank 0        | rank 1        |      kernel 3: one row of the neighbour
    needed    [ . . . . . . . . ]
                            [ . . . . . . . . ]
    output    | rank 0        | rank 1        |

    forward     rank 0  [ own rows ]        backward   rank 0  [ own gradients ]
                            | copy                                 ^ add
                rank 1      v [ own rows ]             rank 1      | [ own gradients ]

Where parts are thin, a halo comes from several ranks. Rows that no output reads are not sent.

Sources: Dryden et al., "Improving Strong-Scaling of CNN Training by Exploiting Finer-Grained
Parallelism", IPDPS 2019; Kahira et al., section 3 (spatial).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ddlbench.strategies.splits.layout import Halo, Interval, Window, halo_of
from ddlbench.strategies.splits.shard_group import GridAxis, ShardGroup, total

# By the number of spatial dimensions.
FUNCTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


Sizes = Sequence[int]
"""Of a whole activation, (N, C, ...)."""


class _WithHalo(nn.Module):
    """Base of layers whose outputs read rows of neighbours: own rows -> own rows.

    ``window`` is the kernel, stride and dilation, ``around`` the padding before and after, along
    each dimension. That of the axes is in the halo, so ``padding`` has the others only.
    """

    fill = 0.0

    def __init__(
        self,
        window: tuple[Sizes, Sizes, Sizes],
        around: Sequence[tuple[int, int]],
        axes: Sequence[GridAxis],
        inputs: Sizes,
        outputs: Sizes,
    ) -> None:
        super().__init__()
        self.around, self.halos = list(around), []
        for axis in axes:
            kernel, stride, dilation = (sizes[axis.dim] for sizes in window)
            reads = Window(kernel, stride, dilation, *around[axis.dim])
            self.halos.append((halo_of(reads, axis.parts(inputs), axis.parts(outputs)), axis))
            self.around[axis.dim] = (0, 0)
        self.padding = tuple(before for before, _ in self.around)

    def with_halo(self, rows: Tensor) -> Tensor:
        """The rows that this rank's outputs read."""
        for halo, axis in self.halos:
            rows = exchange(rows, halo, axis, self.fill)
        return rows


class SpatialConvolution(_WithHalo):
    """A convolution of this rank's rows: own rows of the input -> own rows of the output.

    It takes over the parameters of ``layer``, which pads with zeros. Shapes are whole, (N, C, ...).
    """

    def __init__(self, layer: Any, axes: Sequence[GridAxis], inputs: Sizes, outputs: Sizes) -> None:
        window = layer.kernel_size, layer.stride, layer.dilation
        super().__init__(window, _padding(layer), axes, inputs, outputs)
        self.weight, self.bias = layer.weight, layer.bias
        self.stride, self.dilation, self.groups = layer.stride, layer.dilation, layer.groups
        # "same" with an even kernel pads more after than before; F.pad takes the last dim first.
        self.more = [size for low, high in reversed(self.around) for size in (0, high - low)]
        self.convolve = FUNCTIONS[len(self.around)]

    def forward(self, rows: Tensor) -> Tensor:
        rows = self.with_halo(rows)
        if any(self.more):
            rows = F.pad(rows, self.more)
        return self.convolve(
            rows, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


def _padding(layer: Convolution) -> list[tuple[int, int]]:
    """Padding before and after along each dimension; torch lists the last dimension first."""
    pairs = layer._reversed_padding_repeated_twice
    return [(pairs[place], pairs[place + 1]) for place in reversed(range(0, len(pairs), 2))]


_MAXIMUM: dict[int, Callable[..., Tensor]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE: dict[int, Callable[..., Tensor]] = {2: F.avg_pool2d, 3: F.avg_pool3d}
MAXIMA = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVERAGES = (nn.AvgPool2d, nn.AvgPool3d)


class _SpatialPooling(_WithHalo):
    """Base of poolings of this rank's rows."""

    def __init__(self, layer: Any, axes: Sequence[GridAxis], inputs: Sizes, outputs: Sizes) -> None:
        dims = len(inputs) - 2
        kernel, stride = _tuple(layer.kernel_size, dims), _tuple(layer.stride, dims)
        dilation = _tuple(getattr(layer, "dilation", 1), dims)
        around = [(size, size) for size in _tuple(layer.padding, dims)]
        super().__init__((kernel, stride, dilation), around, axes, inputs, outputs)
        self.dims, self.ceil_mode = dims, bool(layer.ceil_mode)
        self.kernel, self.stride, self.dilation = kernel, stride, dilation


class SpatialMaximum(_SpatialPooling):
    """Maximum pooling of this rank's rows."""

    fill = -torch.inf

    def forward(self, rows: Tensor) -> Tensor:
        window = self.kernel, self.stride, self.padding, self.dilation
        return _MAXIMUM[self.dims](self.with_halo(rows), *window, self.ceil_mode)


class SpatialAverage(_SpatialPooling):
    """Average pooling of this rank's rows.

    A mean is a sum over rows and halo, divided by torch's divisor at that place of the whole image.
    The divisor depends on whether padding counts, and is smaller where a window exceeds the edge.
    """

    divisors: Tensor

    def __init__(
        self,
        layer: nn.AvgPool2d | nn.AvgPool3d,
        axes: Sequence[GridAxis],
        inputs: Sizes,
        outputs: Sizes,
    ) -> None:
        super().__init__(layer, axes, inputs, outputs)
        parts = {axis.dim: axis.parts(outputs)[axis.group.rank] for axis in axes}
        padding = _tuple(layer.padding, self.dims)
        sizes = []
        for place in range(-self.dims, 0):
            first, end = parts.get(place, (0, outputs[place]))
            window = Window(self.kernel[place], self.stride[place], 1, padding[place])
            counted = (-padding[place], inputs[place] + padding[place])
            if not layer.count_include_pad:
                counted = (0, inputs[place])
            reads = [window.reads((index, index + 1)) for index in range(first, end)]
            edge = inputs[place] + padding[place]
            clipped = [(max(a, counted[0]), min(b, edge, counted[1])) for a, b in reads]
            sizes.append(torch.tensor([float(b - a) for a, b in clipped]))
        divisors = reduce(lambda product, size: product.unsqueeze(-1) * size, sizes)
        override = layer.divisor_override
        self.divisor = override or int(divisors.flatten()[0])
        self.is_uneven = override is None and bool((divisors != self.divisor).any())
        self.register_buffer("divisors", divisors, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        divisor, window = 1 if self.is_uneven else self.divisor, (self.kernel, self.stride)
        rows = self.with_halo(rows)
        means = _AVERAGE[self.dims](rows, *window, self.padding, self.ceil_mode, True, divisor)
        return means / self.divisors.to(means.dtype) if self.is_uneven else means


class WholeAverage(nn.Module):
    """The mean over all positions: own rows of (N, C, ...) -> (N, C, 1, ...) on every rank."""

    def __init__(self, group: ShardGroup, inputs: Sizes) -> None:
        super().__init__()
        self.group = group
        self.positions = prod(inputs[2:])

    def forward(self, rows: Tensor) -> Tensor:
        dims = tuple(range(2, rows.dim()))
        return total(rows.sum(dims, keepdim=True) / self.positions, self.group)


def _tuple(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value)


NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class SpatialBatchNorm(nn.Module):
    """A batch normalisation of this rank's rows with the statistics of all ranks.

    It takes over the parameters and running statistics of ``layer``. Inputs: whole, (N, C, ...).
    """

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    shares: Tensor

    def __init__(
        self, layer: nn.Module, axes: Sequence[GridAxis], group: ShardGroup, inputs: Sizes
    ) -> None:
        super().__init__()
        assert isinstance(layer, NORMS)
        self.weight, self.bias = layer.weight, layer.bias
        self.eps, self.momentum = layer.eps, layer.momentum
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(layer, name))
        self.group = group
        shares = torch.ones(1)
        for axis in axes:
            sizes = torch.tensor(axis.parts(inputs).sizes, dtype=torch.float64)
            shares = (shares[:, None] * (sizes / inputs[axis.dim])).flatten()
        self.register_buffer("shares", shares, persistent=False)
        self.positions = prod(inputs[2:])

    def forward(self, rows: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            mean, var = self.running_mean, self.running_var
            return F.batch_norm(rows, mean, var, self.weight, self.bias, eps=self.eps)
        result, mean, var = _Normalise.apply(rows, self.weight, self.bias, self)
        if self.training:
            self._update_running(mean, var, rows.shape[0] * self.positions)
        return result

    @torch.no_grad()
    def _update_running(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Update running statistics as torch does, with the unbiased variance."""
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        weight = self.momentum
        if weight is None:
            weight = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        unbiased = var * (count / max(count - 1, 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), weight)


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor | None, bias: Tensor | None, norm: SpatialBatchNorm
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean, var = _statistics(rows, norm)
        result = F.batch_norm(rows, mean, var, weight, bias, False, 0.0, norm.eps)
        ctx.norm = norm
        ctx.save_for_backward(rows, weight, mean, torch.rsqrt(var + norm.eps))
        ctx.mark_non_differentiable(mean, var)
        return result, mean, var

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        rows, weight, mean, inverse = ctx.saved_tensors
        norm: SpatialBatchNorm = ctx.norm
        dims = _all_but_channels(rows)
        gradient = gradients[0].to(mean.dtype)
        normal = (rows - _wide(mean, rows)) * _wide(inverse, rows)
        by_shift, by_scale = gradient.sum(dims), (gradient * normal).sum(dims)
        count = rows.shape[0] * norm.positions
        sums = norm.group.all_reduce(torch.cat([by_shift, by_scale])) / count
        mean_shift, mean_scale = sums.chunk(2)
        scale = inverse if weight is None else inverse * weight
        centred = gradient - _wide(mean_shift, rows) - normal * _wide(mean_scale, rows)
        by_rows = (centred * _wide(scale, rows)).to(rows.dtype)
        if weight is None:
            return by_rows, None, None, None
        return by_rows, by_scale.to(weight.dtype), by_shift.to(weight.dtype), None


def _statistics(rows: Tensor, norm: SpatialBatchNorm) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance of each channel over all ranks."""
    wide = rows.float() if rows.dtype in (torch.bfloat16, torch.float16) else rows
    own_var, own_mean = torch.var_mean(wide, _all_but_channels(rows), correction=0)
    means, variances = norm.group.stack(torch.cat([own_mean, own_var])).chunk(2, dim=1)
    shares = norm.shares.to(means.dtype)[:, None]
    mean = (shares * means).sum(0)
    return mean, (shares * (variances + (means - mean) ** 2)).sum(0)


def _all_but_channels(rows: Tensor) -> tuple[int, ...]:
    return (0, *range(2, rows.dim()))


def _wide(values: Tensor, like: Tensor) -> Tensor:
    """(C,) -> (C, 1, ...), which broadcasts with (N, C, ...)."""
    return values.view(-1, *[1] * (like.dim() - 2))


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
    return _Exchange.apply(rows, halo, axis, fill)


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
