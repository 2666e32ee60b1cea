"""What makes a measurement wrong, and not only slow: pauses, a suspended job, single long steps.

::

    pauses       a rank stood still, by its guard (``pauses.py``)          1 % of the time or more
    suspension   of the job, by SLURM                                      1 % of the time or more
    stalls       ____|_________     steps many times their neighbours      5 % of the time or more

A step stalls if it is 8 times the median of its neighbours and a second longer. What recurs is how
the cell is, and no stall::

    a round of H steps with one communication         rounds are compared, not steps
    updates that come in their own order (PipeDream)  so many steps at once as there are devices
    batches of W loading processes come at once       W steps at once, if data is waited for
    the first step of an epoch, or after a stop       compared with others of its kind
    the first measured step                           a pipeline fills; compared with none
    long steps at many places                         none of them stalls
    packets are lost on an emulated link              TCP waits, which is what is measured there
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlbench.common.statistics import round_means
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import FEWEST_STEPS, Pauses
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime.rank_report import RankReport

_NEIGHBOURS = 10  # on each side
_TIMES = 8.0
_LONGER_S = 1.0
_STALLED_SHARE = 0.05  # of the measured time
_PAUSED_SHARE = 0.01
_FEW_STALLS = 3
_RECURRING_SHARE = 0.02  # of the steps
_LOADING_SHARE = 0.05  # of the measured time


@dataclass(frozen=True)
class Disturbance:
    """What disturbed the measured steps of a cell.

    Args:
        pauses: of the rank that stood still for longest.
        suspended_s: SLURM's; None if unknown.
        stalled_steps: numbers of the measured steps that stalled; the first step is 1.
        sentence: why the cell cannot be used; None if it can.
    """

    pauses: Pauses
    suspended_s: float | None
    stalled_steps: tuple[int, ...]
    sentence: str | None


def disturbance_of(
    cell: Cell, reports: Sequence[RankReport], *, lossy: bool, suspended_s: float | None
) -> Disturbance:
    """Judge the measured steps of a cell."""
    step_s = np.max([report.step_s for report in reports], axis=0)
    load_s = np.max([report.load_s for report in reports], axis=0)
    measured_s = float(step_s.sum())
    pauses = _pauses(reports)
    causes = []
    if suspended_s is not None and suspended_s > _PAUSED_SHARE * measured_s:
        causes.append(f"SLURM suspended the job for {suspended_s:.3g} s")
    if pauses.total_s > _PAUSED_SHARE * measured_s:
        who = _ranks(pauses.ranks, len(reports))
        causes.append(f"{who} stood still for {pauses.total_s:.3g} s")
    size = _compared_steps(cell, step_s, load_s)
    durations_s = size * np.max([round_means(report.step_s, size) for report in reports], axis=0)
    kinds = _kinds(cell, reports[0].steps_per_epoch, len(step_s), size)
    long = [] if lossy else stalls(durations_s, kinds)
    if long:
        causes.append(_longest(durations_s, long, size))
    return Disturbance(
        pauses=pauses,
        suspended_s=suspended_s,
        stalled_steps=tuple(
            step + 1 for place, _ in long for step in range(place * size, (place + 1) * size)
        ),
        sentence="; ".join(causes) or None,
    )


def stalls(
    durations_s: Sequence[float] | np.ndarray, kinds: Sequence[int]
) -> list[tuple[int, float]]:
    """Places of the durations that are many times their neighbours, and the neighbours' median.

    Args:
        durations_s: of steps, or of equally many steps each.
        kinds: of each; those of one kind are compared. :data:`FIRST` is compared with none.
    """
    values = np.asarray(durations_s, dtype=float)
    long: list[tuple[int, float]] = []
    if len(values) < FEWEST_STEPS:
        return long
    for kind in sorted(set(kinds) - {FIRST}):
        places = [place for place, kind_of_step in enumerate(kinds) if kind_of_step == kind]
        least = 2 if kind == WITHIN else 1
        for at, place in enumerate(places):
            near = places[max(0, at - _NEIGHBOURS) : at] + places[at + 1 : at + 1 + _NEIGHBOURS]
            if len(near) < least:
                continue
            usual_s = float(np.median(values[near]))
            if values[place] >= max(_TIMES * usual_s, usual_s + _LONGER_S):
                long.append((place, usual_s))
    excess_s = sum(float(values[place]) - usual_s for place, usual_s in long)
    recurring = len(long) > max(_FEW_STALLS, _RECURRING_SHARE * len(values))
    if recurring or excess_s < _STALLED_SHARE * float(values.sum()):
        return []
    return sorted(long)


# Kinds of steps: the later of two that are both true counts.
WITHIN, EPOCH_START, AFTER_STOP, FIRST = range(4)


def _kinds(cell: Cell, steps_per_epoch: int, steps: int, size: int) -> list[int]:
    """The kind of each ``size`` steps; a part of so many at the end is left out."""

    def kind(step: int) -> int:
        if step == 0:
            return FIRST
        stop = cell.checkpoint_every_steps and step % cell.checkpoint_every_steps == 0
        if stop:
            return AFTER_STOP
        return EPOCH_START if step % steps_per_epoch == 0 else WITHIN

    firsts = range(0, steps - size + 1, size)
    return [max(kind(step) for step in range(first, first + size)) for first in firsts]


def _compared_steps(cell: Cell, step_s: np.ndarray, load_s: np.ndarray) -> int:
    """How many steps at once are compared; one where each step does the same."""
    strategy = strategy_of(cell.strategy)
    size = strategy.round_steps(cell)
    if size == 1 and not strategy.is_synchronous(cell):
        size = cell.devices
    if load_s.sum() > _LOADING_SHARE * step_s.sum():
        size = size * -(-max(cell.loader_workers, 1) // size)  # whole rounds
    return size


def _pauses(reports: Sequence[RankReport]) -> Pauses:
    longest = max(reports, key=lambda report: sum(pause.seconds for pause in report.pauses))
    return Pauses(
        count=len(longest.pauses),
        total_s=sum((pause.seconds for pause in longest.pauses), 0.0),
        ranks=tuple(report.rank for report in reports if report.pauses),
    )


def _ranks(numbers: Sequence[int], world_size: int) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) == world_size:
        return f"all {world_size} ranks"
    return f"{len(numbers)} of {world_size} ranks"


def _longest(durations_s: np.ndarray, long: Sequence[tuple[int, float]], size: int) -> str:
    """``step 14 took 15.1 s, its neighbours 0.26 s``."""
    place, usual_s = max(long, key=lambda pair: durations_s[pair[0]])
    first, took = place * size + 1, f"took {durations_s[place]:.3g} s"
    if size == 1:
        text = f"step {first} {took}, its neighbours {usual_s:.3g} s"
    else:
        text = f"steps {first} to {first + size - 1} {took}, as many others {usual_s:.3g} s"
    others = len(long) - 1
    return text + (f" ({others} more took many times the usual)" if others else "")
