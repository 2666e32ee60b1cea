"""Tries strategies on networks, each in a world of ranks of its own, and gives verdicts.

A verdict compares what ranks trained with what one device trained.

::

    network -> look -> tiny cell -> what one device trains -> what the ranks train -> verdict
               once                 once for equal parts      a world a cell
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.equivalence.look import Expected, Look, look_at, tiny_cells
from ddlbench.equivalence.one_device import (
    RankTraining,
    Trained,
    Training,
    base_of,
    expect,
    train_rank,
)
from ddlbench.equivalence.rank_pool import RanksFailedError, Work, run_ranks
from ddlbench.equivalence.rounding import Kind, TrialError, difference, explain
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason
from ddlbench.planning.matrix import why_missing
from ddlbench.planning.planner import StrategyPlan, make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.trainable import why_not_cut, why_not_trained
from ddlbench.runtime.job import why_not_started

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
            "optimizer": self.cell.optimizer,
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
            steps = counted(len(rank.losses), "step")
            return f"rank {number} has losses of {steps}, not {expected.steps}"
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


_HANG_LIMIT_S = 60.0

_STEPS = 3  # the second has momentum; the third, weights that momentum changed
_STALE_STEPS = 4
_MOST_STEPS = 32  # of a round of local steps
_ALONE_LIMIT_S = 3600.0  # one device waits for nobody, but a large network takes long
_SLOWER = 20  # ranks on shared cores, than one device
_NO_REPLAY = (
    "its ranks may train with older weights, and it has no replay that trains the same on one "
    "device; a synchronous mode of it can be checked"
)


@dataclass
class Examination:
    """Verdicts on strategies; what one device trains is kept from one to the next.

    Args:
        geometry: nodes, and devices of a node.
        batch_size: of every mini-batch; by default the smallest that serves.
        limit_s: how long ranks may say nothing, if the network is small.
    """

    geometry: tuple[int, int] = (1, 2)
    batch_size: int | None = None
    limit_s: float = _HANG_LIMIT_S
    _looks: dict[tuple[Cell, bool], Look] = field(default_factory=dict)
    _trained: dict[Training, Trained] = field(default_factory=dict)

    def verdict_of(self, cell: Cell) -> Verdict:
        """Train a tiny cell as one device and as the strategy does, and compare.

        Args:
            cell: network, dataset, strategy, options and settings; geometry and batch size are
                chosen anew.

        Raises:
            ConfigError: the network cannot be built, or the strategy is not known.
        """
        try:
            return self._verdict_of(plain(cell))
        except TrialError as error:
            if error.outcome == "wrong input":
                raise ConfigError(error.reason) from error
            return Verdict(cell, error.outcome, None, error.reason)

    def _verdict_of(self, cell: Cell) -> Verdict:
        strategy = strategy_of(cell.strategy)
        lacking = why_missing(strategy)
        if lacking is not None:
            return Verdict(cell, Kind.UNSUPPORTED, None, str(lacking))
        look = self.look(cell)
        cells = tiny_cells(cell, look.blocks, self.geometry, self.batch_size)
        if isinstance(cells, Reason):
            nodes, devices = self.geometry
            cell = cell.with_(nodes=nodes, devices_per_node=devices)
            # Of a network that is one block, the cause says more than that one block is too few.
            uncut = why_not_cut(look.traits, cell) if cells.code == "too_few_blocks" else None
            return Verdict(cell, Kind.UNSUPPORTED, None, str(uncut or cells))
        return joined([self._of_tiny(tiny, look) for tiny in cells])

    def _of_tiny(self, cell: Cell, look: Look) -> Verdict:
        """The verdict of a cell that the strategy supports."""
        plan = make_plan(cell)
        scope = scope_of(plan)
        if scope is None:
            return Verdict(cell, Kind.UNSUPPORTED, None, _NO_REPLAY)
        if (broken := why_not_started(plan)) is not None:
            return Verdict(cell, Kind.FAILED, None, str(broken))
        if (why := why_not_trained(look.traits, plan)) is not None:
            return Verdict(cell, Kind.UNSUPPORTED, None, str(why))
        if look.noise is None:
            reason = f"one device cannot train the network: {look.failure}"
            return Verdict(cell, Kind.FAILED, None, reason)
        training = Training(cell, steps_of(plan), look.floating)
        try:
            trained = self.trained(Training.of(plan, training.steps, look.floating))
            limit_s = max(self.limit_s, _SLOWER * trained.train_s)
            ranks: list[RankTraining] = _in_world(train_rank, training, plan.world_size, limit_s)
        except TrialError as error:
            # The network was built before, so the strategy cannot have this one.
            kind = Kind.UNSUPPORTED if error.outcome == "wrong input" else error.outcome
            return Verdict(cell, kind, None, error.reason)
        expected = Expected(trained, look.noise, look.floating, training.steps)
        return compare(cell, expected, ranks, scope)

    def look(self, cell: Cell) -> Look:
        """What one device shows of the cell's network.

        Raises:
            TrialError: it cannot be built.
        """
        float64 = strategy_of(cell.strategy).float64
        kind = base_of(cell), float64
        if kind not in self._looks:
            look = partial(look_at, float64=float64)
            (self._looks[kind],) = _in_world(look, base_of(cell), 1, _ALONE_LIMIT_S)
        return self._looks[kind]

    def trained(self, training: Training) -> Trained:
        """What one device trains; the same training is done once.

        Raises:
            TrialError: it cannot train that.
        """
        if training not in self._trained:
            (self._trained[training],) = _in_world(expect, training, 1, _ALONE_LIMIT_S)
        return self._trained[training]


def plain(cell: Cell) -> Cell:
    """The cell without what its short training does not need: compiling, checkpoints, data."""
    return cell.with_(
        repeat=0,
        precision="fp32",
        compile=False,
        validate=False,
        checkpoint_every_steps=0,
        data_source="synthetic",
        threads_per_device=1,
        fabric="default",
    )


def scope_of(plan: StrategyPlan) -> Scope | None:
    """What of a plan's training can be compared; None if nothing can."""
    strategy, cell = plan.strategy, plan.cell
    if strategy.precision(cell) != cell.precision:
        return Scope(first_loss=True)
    if not strategy.replay and not strategy.is_synchronous(cell, plan.details):
        return None
    # Of several ranks with the same blocks, each has the statistics of its own samples.
    of_each = bool(strategy.replay) and strategy.replayed_networks(plan) > 1
    alone = all(process.num_shards == process.turns == 1 for process in plan.processes)
    return Scope(statistics=alone or of_each)


def steps_of(plan: StrategyPlan) -> int:
    """A few steps: more if weights are old, or a whole round without messages."""
    strategy = plan.strategy
    if strategy.is_synchronous(plan.cell, plan.details):
        return _STEPS
    return min(_MOST_STEPS, max(_STALE_STEPS, strategy.round_steps(plan.cell)))


def _in_world(work: Work, item: Any, world_size: int, limit_s: float) -> list[Any]:
    """What each rank returns; a TrialError if one fails, or all hang."""
    try:
        (ranks,) = run_ranks(work, [item], world_size, limit_s, quiet=True)
    except RanksFailedError as failure:
        raise explain(failure, limit_s) from failure
    return ranks
