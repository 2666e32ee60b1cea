"""Steps between whole and split activations, each with the gradient that belongs to it.

=============  ==================  =====================  =====================================
step           forward             backward               where
=============  ==================  =====================  =====================================
``share``      nothing             all-reduce (sum)       a whole input that all read a part of
``gather``     all-gather          own part               parts become whole, on every rank
``take``       own part            all-gather             whole becomes parts
``total``      all-reduce (sum)    nothing                partial sums become whole
=============  ==================  =====================  =====================================

*Whole* means the same values on every rank, and behind it every rank computes the same; so the
gradient of a whole activation is whole as well. Megatron-LM (Shoeybi et al. 2019, section 3)
calls ``share`` f and ``total`` g.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ddlbench.strategies.tensor_parallel.layout import Parts
from ddlbench.strategies.tensor_parallel.shard_group import ShardGroup

__all__ = ["gather", "share", "take", "total"]


def share(whole: Tensor, team: ShardGroup) -> Tensor:
    """A whole tensor of which this rank computes with all, for a part of the outputs."""
    result: Tensor = _Share.apply(whole, team)
    return result


def gather(part: Tensor, dim: int, parts: Parts, team: ShardGroup) -> Tensor:
    """The whole, of which each rank has one of ``parts`` along ``dim``."""
    result: Tensor = _Gather.apply(part, dim, parts, team)
    return result


def take(whole: Tensor, dim: int, parts: Parts, team: ShardGroup) -> Tensor:
    """This rank's part of a whole tensor."""
    result: Tensor = _Take.apply(whole, dim, parts, team)
    return result


def total(addend: Tensor, team: ShardGroup) -> Tensor:
    """The sum over the ranks."""
    result: Tensor = _Total.apply(addend, team)
    return result


def _own(whole: Tensor, dim: int, parts: Parts, team: ShardGroup) -> Tensor:
    first, behind = parts[team.rank]
    return whole.narrow(dim, first, behind - first)


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, team: ShardGroup) -> Tensor:
        ctx.team = team
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.team.all_reduce(gradients[0]), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, dim: int, parts: Parts, team: ShardGroup) -> Tensor:
        ctx.place = dim, parts, team
        return team.all_gather(part, dim, parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _own(gradients[0], *ctx.place).contiguous(), None, None, None


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, dim: int, parts: Parts, team: ShardGroup) -> Tensor:
        ctx.place = dim, parts, team
        return _own(whole, dim, parts, team).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        dim, parts, team = ctx.place
        return team.all_gather(gradients[0], dim, parts), None, None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, addend: Tensor, team: ShardGroup) -> Tensor:
        return team.all_reduce(addend)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None
