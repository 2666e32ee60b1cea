"""Compares what ranks trained with what one device trained, and says what that means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ddlbench.equivalence.errors import Kind
from ddlbench.equivalence.look import Expected
from ddlbench.equivalence.rounding import difference
from ddlbench.equivalence.trial import RankTraining
from ddlbench.experiment.cell import Cell

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of batch norm

_SERVER = "server"
_LOSSY_LOSS = 0.05  # share of a loss that numbers of fewer bits may change


@dataclass(frozen=True)
class Verdict:
    """Whether a strategy trains a network as one device does.

    Args:
        cell: the tiny cell that was tried.
        kind: of the verdict.
        difference: largest absolute difference of what was compared; None without a comparison, or
            if a value is not a number.
        reason: one sentence; None if there is nothing to say.
    """

    cell: Cell
    kind: Kind
    difference: float | None = None
    reason: str | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether somebody must look at it."""
        return self.kind in (Kind.DIFFERENT, Kind.FAILED)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "network": self.cell.network,
            "dataset": self.cell.dataset,
            "strategy": self.cell.strategy,
            "options": dict(self.cell.options),
            "geometry": self.cell.geometry,
            "batch_size": self.cell.batch_size,
            "verdict": self.kind,
            "difference": self.difference,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Scope:
    """What is compared.

    Args:
        statistics: whether batch norm's statistics are those of one device.
        first_loss: nothing but the first step's loss, to a few per cent.
    """

    statistics: bool = True
    first_loss: bool = False


@dataclass(frozen=True)
class _Gap:
    """A difference, and what it is of."""

    size: float
    tolerance: float
    place: str

    @property
    def excess(self) -> float:
        return self.size / self.tolerance if self.tolerance else float(self.size > 0) * 1e300


def compare(cell: Cell, expected: Expected, ranks: Sequence[RankTraining], scope: Scope) -> Verdict:
    """The verdict of a strategy whose ranks all trained."""
    if expected.noise.start:
        return Verdict(
            cell,
            Kind.UNSUPPORTED,
            None,
            "one seed gives two different networks, so no two runs begin alike; draw the weights "
            "from torch, numpy or random, without a seed of your own",
        )
    workers = [(number, rank) for number, rank in enumerate(ranks) if rank.role != _SERVER]
    gaps = list(_loss_gaps(expected, workers, scope))
    other_form = _other_losses(expected, workers)
    if not scope.first_loss:
        gaps += _state_gaps(expected, workers, scope)
        other_form = other_form or _other_form(expected, workers)
    worst = max(gaps, key=lambda gap: gap.excess, default=_Gap(0.0, 0.0, "nothing"))
    largest = _finite(max((gap.size for gap in gaps), default=0.0))
    if other_form:
        return Verdict(cell, Kind.DIFFERENT, largest, other_form)
    if worst.excess > 1:
        return Verdict(cell, Kind.DIFFERENT, largest, _says(worst))
    return Verdict(cell, Kind.EQUAL, largest, _remark(expected, scope))


def joined(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict of cells that differ in their balance: the worst, with its balance.

    A strategy that cannot train some cuts and is equal at others is equal, with a remark.
    """
    order = list(Kind)
    worst = min(verdicts, key=lambda verdict: order.index(verdict.kind))
    sizes = [verdict.difference for verdict in verdicts if verdict.difference is not None]
    others = [verdict for verdict in verdicts if verdict.kind != worst.kind]
    reason = worst.reason
    if others and worst.is_wrong:
        reason = f"{reason} (balance {worst.cell.option('balance')})"
    elif others and reason is None:
        reason = f"not with balance {others[0].cell.option('balance')}: {others[0].reason}"
    largest = max(sizes, default=None) if worst.kind == Kind.EQUAL else worst.difference
    return replace(worst, difference=largest, reason=reason)


def _finite(size: float) -> float | None:
    return size if size < float("inf") else None


def _says(gap: _Gap) -> str:
    if _finite(gap.size) is None:
        return f"{gap.place} is not a number, unlike on one device"
    return f"{gap.place} differs by {gap.size:.1e}"


def _remark(expected: Expected, scope: Scope) -> str | None:
    if scope.first_loss:
        return "only the first loss is compared, as its gradients are sent with fewer bits"
    if expected.noise.drawn:
        return "within what its random numbers change"
    return None


def _shard_of(expected: Expected, rank: RankTraining) -> int:
    """Whose state and losses a rank should have: its shard's, or those of all."""
    return rank.shard if rank.shard < len(expected.trained.states) else 0


def _loss_gaps(
    expected: Expected, workers: Sequence[tuple[int, RankTraining]], scope: Scope
) -> Iterator[_Gap]:
    for number, rank in workers:
        losses = expected.trained.losses[_shard_of(expected, rank)]
        pairs = list(zip(rank.losses, losses, strict=False))  # _other_losses counts them
        for step, (actual, wanted) in enumerate(pairs[:1] if scope.first_loss else pairs):
            size = difference(torch.tensor(actual).double(), torch.tensor(wanted).double())
            limit = expected.loss_tolerance
            if scope.first_loss:
                limit = max(limit, _LOSSY_LOSS * abs(wanted))
            yield _Gap(size, limit, f"the loss of step {step} on rank {number}")


def _other_losses(expected: Expected, workers: Sequence[tuple[int, RankTraining]]) -> str:
    """Which rank has another number of losses than there are steps; empty if none has."""
    for number, rank in workers:
        if len(rank.losses) not in (0, expected.steps):
            return f"rank {number} has losses of {len(rank.losses)} steps, not {expected.steps}"
    return ""


def _compared(name: str, scope: Scope) -> bool:
    return scope.statistics or not name.endswith(STATISTICS)


def _state_gaps(
    expected: Expected, workers: Sequence[tuple[int, RankTraining]], scope: Scope
) -> Iterator[_Gap]:
    for number, rank in workers:
        wanted = expected.trained.states[_shard_of(expected, rank)]
        for name, value in rank.state.items():
            same_form = name in wanted and value.shape == wanted[name].shape
            if same_form and _compared(name, scope):
                size = difference(value, wanted[name])
                yield _Gap(size, expected.tolerance_of(name), f"{name} of rank {number}")


def _other_form(expected: Expected, workers: Sequence[tuple[int, RankTraining]]) -> str:
    """What the ranks' weights lack or have besides; empty if they have those of one device."""
    wanted = expected.trained.states[0]
    missing = wanted.keys() - {name for _, rank in workers for name in rank.state}
    if missing:
        return f"no rank has {min(missing)}"
    for number, rank in workers:
        for name, value in rank.state.items():
            if name not in wanted:
                return f"rank {number} has {name}, which the network has not"
            if value.shape != wanted[name].shape:
                shapes = f"{tuple(value.shape)}, not {tuple(wanted[name].shape)}"
                return f"{name} of rank {number} has the shape {shapes}"
    return ""
