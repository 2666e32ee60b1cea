"""PipeDream's hierarchical dynamic programme: where to cut, and how often to replicate.

Level by level from the innermost, ``best[i, j, m, d]`` is the least period of nodes i..j on ``m``
components of this level, if the stages that follow demand ``d`` mini-batches::

    nodes      i ............ k | k+1 ...... j | what follows
    devices    best on m - r    |  one stage,  |
                                |  r replicas  | demands d mini-batches
               <- demands d'    |

    best[i,j,m,d] = min( stage(i..j, m, d),
                         min_{k, r} max( best[i, k, m-r, d'], stage(k+1..j, r, d) ) )

The least period of nodes i..j on all components of a level is the time of one component of the
level above. Only the memory limit needs the demands (:mod:`ddlbench.planning.schedules.pipedream`):
stage ``k+1..j`` has ``ceil(d / r)`` mini-batches waiting and demands ``d' = r (1 + ceil(d / r))``.
Without a limit there is one demand, and the tables lose that axis.

With one level the result is the optimum under the limit. With several, a component passes only its
fastest arrangement upwards, not every trade of time for demand, and demands above 8 are rounded up
to a coarse grid. So if a limit binds, a better plan may exist, but every plan returned fits.

Among equal periods, no cut comes first, then the earliest cut, then the fewest replicas. (The
release takes the first in a Python set of objects, so its choice among equal ones can differ from
run to run; its period cannot.)

Source: PipeDream (Narayanan et al., SOSP 2019), section 3.1. O(N^3 M^2) for each level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddlbench.planning.partition.chain import Array, MemoryLimit, States
from ddlbench.planning.partition.cost import CostModel, Level, cut_outputs

Integers = NDArray[np.int64]
WHOLE = -1  # "no cut" among the choices


@dataclass(frozen=True)
class Piece:
    """Nodes ``[first, last)`` on so many replicas.

    ``waiting`` is the index in the grid of demands of the mini-batches that wait in each replica.
    """

    first: int
    last: int
    replicas: int
    waiting: int


@dataclass(frozen=True)
class _Component:
    """One component: its time for nodes i..j under a demand, and its own demand then.

    Shapes (N, N, D); the last axis goes over ``grid``, the demands. ``uniform``: its own demand is
    the same for all nodes, of shape (1, 1, D).
    """

    time_s: Array
    demand: Integers
    grid: Integers
    uniform: bool = False


@dataclass(frozen=True)
class _Best:
    """The programme's table for one number of components; shapes (starts, N, D).

    Attributes:
        period_s: least period.
        cut: last node before the last stage, or WHOLE.
        replicas: of the last stage.
        demand: of the first stage, as the stages pass it on.
    """

    period_s: Array
    cut: Integers
    replicas: Integers
    demand: Integers


def solve(
    states: States,
    levels: Sequence[Level],
    model: CostModel,
    straight: bool = False,
    memory: MemoryLimit | None = None,
) -> tuple[float, list[Piece]]:
    """Least period and its stages; an infinite period and no stages if nothing fits."""
    ranks = int(np.prod([level.machines for level in levels]))
    grid = np.zeros(1, dtype=np.int64)  # without a limit, all demands are alike
    if memory is not None:
        grid = memory.demands(ranks, exact=len(levels) == 1)
    component = _device(states, grid, memory)
    tables: list[_Table] = []
    inner = 1
    for level in levels:
        final = len(tables) == len(levels) - 1
        tables.append(
            _Table(states, level, model, component, inner=inner, straight=straight, final=final)
        )
        component = tables[-1].component()
        inner = level.machines
    period = float(component.time_s[0, -1, 0])
    if not np.isfinite(period):
        return period, []
    pieces = [Piece(0, len(states), 1, 0)]
    for table in reversed(tables):
        pieces = [inside for piece in pieces for inside in table.inside(piece)]
    return period, pieces


def _device(states: States, grid: Integers, memory: MemoryLimit | None) -> _Component:
    """One device: it runs its nodes one mini-batch at a time, where they fit."""
    time = np.repeat(states.time_s[:, :, None], len(grid), axis=2)
    demand = grid + 1
    if memory is not None:
        demand = np.array([memory.in_flight(int(waiting)) for waiting in grid])
        for place, waiting in enumerate(grid):
            fits = memory.fits(states, int(waiting))
            time[:, :, place] = np.where(fits, states.time_s, np.inf)
    return _Component(time, demand[None, None], grid, uniform=True)


class _Table:
    """The programme of one level; all starts, or only node 0 on the outermost level.

    Args:
        states: of the network.
        level: machines of this level and their links.
        model: cost of a stage.
        component: what one machine does with nodes i..j.
        inner: machines of the level below, or 1.
        straight: one replica a stage.
        final: this is the outermost level.
    """

    def __init__(
        self,
        states: States,
        level: Level,
        model: CostModel,
        component: _Component,
        *,
        inner: int,
        straight: bool,
        final: bool,
    ) -> None:
        self._machines = level.machines
        self._size, self._grid = len(states), component.grid
        self._uniform = component.uniform
        self._starts = 1 if final else self._size
        self._replicas = range(1, 2 if straight else level.machines + 1)
        self._waiting = {r: self._place(-(-self._grid // r)) for r in self._replicas}
        self._demand, self._rounded = {}, {}
        for r, waiting in self._waiting.items():
            demand = r * component.demand[..., : waiting[-1] + 1]
            shape = (self._size, self._size, demand.shape[-1])
            self._demand[r] = np.broadcast_to(demand, shape)
            self._rounded[r] = np.broadcast_to(self._place(demand), shape)
        weights = np.where(np.isfinite(states.time_s), states.parameter_bytes, 0.0)[:, :, None]
        outputs = cut_outputs(states)[None, :, None]
        inputs = np.roll(states.output_bytes, 1)[:, None, None]  # row i: what enters node i
        self._first, self._other = {}, {}
        for r in self._replicas:
            time = component.time_s[:, :, : self._waiting[r][-1] + 1]
            self._first[r] = model.first(
                time[: self._starts], weights[: self._starts], r, level, inner
            )
            self._other[r] = model.other(time, weights, r, level, (inputs, outputs))
        self._best: dict[int, _Best] = {}
        for machines in range(1, level.machines + 1):
            self._best[machines] = self._fill(machines)

    def _fill(self, machines: int) -> _Best:
        best = self._uncut(machines)
        for r in self._replicas:
            if r < machines:
                for start in range(self._starts):
                    self._try_cuts(best, start, machines - r, r)
        return best

    def _uncut(self, machines: int) -> _Best:
        shape = (self._starts, self._size, len(self._grid))
        period = np.full(shape, np.inf)
        demand = np.zeros(shape, dtype=np.int64)
        if machines in self._replicas:
            waiting = self._waiting[machines]
            period[:] = self._first[machines][:, :, waiting]
            demand[:] = self._demand[machines][: self._starts][:, :, waiting]
        return _Best(period, np.full(shape, WHOLE), np.full(shape, machines), demand)

    def _try_cuts(self, best: _Best, start: int, before: int, r: int) -> None:
        """Improves the table of ``before + r`` machines by a last stage of r replicas."""
        if start + 1 == self._size:
            return
        ahead = self._best[before]
        stage = self._other[r][start + 1 :, start + 1 :]
        cuts = np.arange(start, self._size - 1)
        demand = self._rounded[r][start + 1 :, start + 1 :]  # of the stage behind each cut
        if self._uniform:  # the same numbers, faster
            period = ahead.period_s[start, cuts][:, None, demand[0, 0]]
        else:
            period = ahead.period_s[start, cuts[:, None, None], demand]
        slower = np.maximum(period, stage)
        choice = slower.argmin(axis=0)[None]
        least = np.take_along_axis(slower, choice, axis=0)[0]
        demand = np.take_along_axis(demand, choice, axis=0)[0]
        cut = choice[0] + start
        entry = ahead.demand[start, cut, demand]

        waiting, behind = self._waiting[r], np.s_[start, start + 1 :]
        least, cut, entry = least[:, waiting], cut[:, waiting], entry[:, waiting]
        better = (least < best.period_s[behind]) | (
            (least == best.period_s[behind]) & (cut < best.cut[behind])
        )
        for table, value in (
            (best.period_s, least),
            (best.cut, cut),
            (best.replicas, np.full_like(cut, r)),
            (best.demand, entry),
        ):
            np.copyto(table[behind], value, where=better)

    def _place(self, demand: Integers) -> Integers:
        """Index in the grid of each demand, rounded up."""
        place: Integers = np.minimum(np.searchsorted(self._grid, demand), len(self._grid) - 1)
        return place

    def component(self) -> _Component:
        """All machines of this level as one component of the next."""
        best = self._best[self._machines]
        return _Component(best.period_s, best.demand, self._grid)

    def inside(self, piece: Piece) -> list[Piece]:
        """The stages that all machines of this level make of a piece, first to last."""
        stages: list[Piece] = []
        last, machines, demand = piece.last, self._machines, piece.waiting
        while True:
            at = (piece.first, last - 1, demand)
            cut, r = int(self._best[machines].cut[at]), int(self._best[machines].replicas[at])
            waiting = int(self._waiting[r][demand])
            first = piece.first if cut == WHOLE else cut + 1
            stages.append(Piece(first, last, r * piece.replicas, waiting))
            if cut == WHOLE:
                return stages[::-1]
            demand = int(self._rounded[r][first, last - 1, waiting])
            last, machines = first, machines - r
