"""Batch normalisation over all rows of all ranks of a team: the unsplit layer's statistics.

::

    each rank     mean and variance of its own positions  --gather-->  of all (Chan et al. 1979)
    backward      sums of dy and of dy * xhat             --all-reduce-->  gradient of the input

Gradients of scale and shift are those of the own rows alone, as a convolution's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddlbench.strategies.tensor_parallel.shard_group import GridAxis, ShardGroup

__all__ = ["NORMS", "SpatialBatchNorm"]

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class SpatialBatchNorm(nn.Module):
    """A batch normalisation over this rank's rows; statistics are those of all ranks.

    Args:
        layer: the whole layer; its parameters and running statistics are taken over.
        lines: the ranks along each split dimension, first dimension first.
        team: all ranks of the grid, the last line's ranks next to each other.
        inputs: whole shape, (N, C, ...).
    """

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    shares: Tensor

    def __init__(
        self, layer: nn.Module, lines: Sequence[GridAxis], team: ShardGroup, inputs: Sequence[int]
    ) -> None:
        super().__init__()
        assert isinstance(layer, NORMS)
        self.weight, self.bias = layer.weight, layer.bias
        self.eps, self.momentum = layer.eps, layer.momentum
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(layer, name))
        self.team = team
        shares = torch.ones(1)
        for line in lines:
            sizes = torch.tensor(line.parts(inputs).sizes, dtype=torch.float64)
            shares = (shares[:, None] * (sizes / inputs[line.dim])).flatten()
        self.register_buffer("shares", shares, persistent=False)
        self.positions = prod(inputs[2:])

    def forward(self, rows: Tensor) -> Tensor:
        """Own rows -> own rows."""
        if not self.training and self.running_mean is not None:
            mean, var = self.running_mean, self.running_var
            return F.batch_norm(rows, mean, var, self.weight, self.bias, eps=self.eps)
        result, mean, var = _Normalise.apply(rows, self.weight, self.bias, self)
        if self.training:
            self._follow(mean, var, rows.shape[0] * self.positions)
        output: Tensor = result
        return output

    @torch.no_grad()
    def _follow(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Running statistics as torch keeps them: the variance without bias."""
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
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        rows, weight, mean, inverse = ctx.saved_tensors
        norm: SpatialBatchNorm = ctx.norm
        dims = _all_but_channels(rows)
        gradient = gradients[0].to(mean.dtype)
        normal = (rows - _wide(mean, rows)) * _wide(inverse, rows)
        by_shift, by_scale = gradient.sum(dims), (gradient * normal).sum(dims)
        count = rows.shape[0] * norm.positions
        sums = norm.team.all_reduce(torch.cat([by_shift, by_scale])) / count
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
    means, variances = norm.team.stack(torch.cat([own_mean, own_var])).chunk(2, dim=1)
    shares = norm.shares.to(means.dtype)[:, None]
    mean = (shares * means).sum(0)
    return mean, (shares * (variances + (means - mean) ** 2)).sum(0)


def _all_but_channels(rows: Tensor) -> tuple[int, ...]:
    return (0, *range(2, rows.dim()))


def _wide(values: Tensor, like: Tensor) -> Tensor:
    """(C,) -> (C, 1, ...), to meet (N, C, ...)."""
    return values.view(-1, *[1] * (like.dim() - 2))
