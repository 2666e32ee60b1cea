"""Tries strategies on networks, each in a world of ranks of its own, and gives verdicts.

::

    network -> look -> tiny cell -> what one device trains -> what the ranks train -> verdict
               once                 once for equal parts      a world a cell
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.equivalence.errors import Kind, TrialError, explain
from ddlbench.equivalence.look import Expected, Look, look_at
from ddlbench.equivalence.one_device import Reference, Timed, base_of, expect
from ddlbench.equivalence.rank_pool import RanksFailedError, Work, run_ranks
from ddlbench.equivalence.tiny_cell import tiny_cells
from ddlbench.equivalence.trial import RankTraining, Trial, train_rank
from ddlbench.equivalence.verdict import Scope, Verdict, compare, joined
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason
from ddlbench.planning.matrix import why_missing
from ddlbench.planning.planner import StrategyPlan, make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.trainable import why_not_trained
from ddlbench.runtime.preconditions import why_not_started

HANG_LIMIT_S = 60.0

_STEPS = 3  # the second has momentum; the third, weights that momentum changed
_STALE_STEPS = 4
_MOST_STEPS = 32  # of a round of local steps
_ALONE_LIMIT_S = 3600.0  # one device waits for nobody, but a large network takes long
_SLOWER = 20  # ranks on shared cores, than one device
_NO_ORDER = (
    "its updates come in no fixed order, so there are no weights to compare with; its synchronous "
    "mode can be checked"
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
    limit_s: float = HANG_LIMIT_S
    _looks: dict[Cell, Look] = field(default_factory=dict)
    _trained: dict[Reference, Timed] = field(default_factory=dict)

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
            return Verdict(cell, Kind.UNSUPPORTED, None, str(cells))
        return joined([self._of_tiny(tiny, look) for tiny in cells])

    def _of_tiny(self, cell: Cell, look: Look) -> Verdict:
        """The verdict of a cell that the strategy supports."""
        plan = make_plan(cell)
        scope = scope_of(plan)
        if scope is None:
            return Verdict(cell, Kind.UNSUPPORTED, None, _NO_ORDER)
        if (broken := why_not_started(plan)) is not None:
            return Verdict(cell, Kind.FAILED, None, str(broken))
        if (why := why_not_trained(look.traits, plan)) is not None:
            return Verdict(cell, Kind.UNSUPPORTED, None, str(why))
        if look.noise is None:
            reason = f"one device cannot train the network: {look.failure}"
            return Verdict(cell, Kind.FAILED, None, reason)
        trial = Trial(cell, steps_of(plan), look.floating)
        try:
            timed = self.trained(Reference.of(plan, trial.steps, trial.floating))
            limit_s = max(self.limit_s, _SLOWER * timed.train_s)
            ranks: list[RankTraining] = _in_world(train_rank, trial, plan.world_size, limit_s)
        except TrialError as error:
            # The network was built before, so the strategy cannot have this one.
            kind = Kind.UNSUPPORTED if error.outcome == "wrong input" else error.outcome
            return Verdict(cell, kind, None, error.reason)
        expected = Expected(timed.trained, look.noise, trial.floating, trial.steps)
        return compare(cell, expected, ranks, scope)

    def look(self, cell: Cell) -> Look:
        """What one device shows of the cell's network.

        Raises:
            TrialError: it cannot be built.
        """
        base = base_of(cell)
        if base not in self._looks:
            (self._looks[base],) = _in_world(look_at, base, 1, _ALONE_LIMIT_S)
        return self._looks[base]

    def trained(self, reference: Reference) -> Timed:
        """What one device trains; the same training is done once.

        Raises:
            TrialError: it cannot train that.
        """
        if reference not in self._trained:
            (self._trained[reference],) = _in_world(expect, reference, 1, _ALONE_LIMIT_S)
        return self._trained[reference]


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
    """What each rank returns.

    Raises:
        TrialError: a rank failed, or all hang.
    """
    try:
        (ranks,) = run_ranks(work, [item], world_size, limit_s, quiet=True)
    except RanksFailedError as failure:
        raise explain(failure, limit_s) from failure
    return ranks
