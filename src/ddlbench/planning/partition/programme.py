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
level above. Only the memory limit needs the demands (:mod:`ddlbench.planning.schedules.orders`):
stage ``k+1..j`` has ``ceil(d / r)`` mini-batches waiting and demands ``d' = r (1 + ceil(d / r))``.
Without a limit there is one demand, and the tables lose that axis.

With one level the result is the optimum under the limit. With several, a component passes only its
fastest arrangement upwards, not every trade of time for demand. With several, or with more than 128
devices, demands above 8 are rounded up to a coarse grid. So if a limit binds, a better plan may
exist, but every plan returned fits.

Among equal periods, no cut comes first, then the earliest cut, then the fewest replicas. (The
release takes the first in a Python set of objects, so its choice among equal ones can differ from
run to run; its period cannot.)

Source: PipeDream (Narayanan et al., SOSP 2019), section 3.1. O(N^3 M^2) for each level; many
machines of the outermost one go another way (:mod:`ddlbench.planning.partition.thresholds`).

A stage costs what the released optimizer counts, or what the paper does. It has ``r`` replicas,
each a component of ``G`` devices joined by links of ``B`` bytes/s; ``T`` seconds of one component,
``w`` bytes of weights, ``a_in``, ``a_out`` bytes across the stage's cuts::

    released   first stage   (T + 4 (r-1) w / (B r) / G) / r            computation + all-reduce
               others    max((T + 4 (r-1) w / (B r)) / r,  2 a_in / (B r),  2 a_out / (B r))
               where the last node of the network has no a_out

    paper      every stage   max(T, 2 (r-1) w / B) / r                  computation || all-reduce
               and each cut  2 a / B

Sources: ``released`` is ``optimizer/optimizer_graph_hierarchical.py`` of the PipeDream release with
``--activation_compression_ratio 1`` (without that argument it ignores the cuts); the order of
operations is kept, so that results are equal to the last bit. ``paper`` is the recurrence of
section 3.1 of PipeDream (Narayanan et al., SOSP 2019).

A branching network may be cut at PipeDream's states. A state is a closed set of nodes, what runs
before a cut. PipeDream names it by its *antichain*, the nodes in it that none of its other nodes
reads::

         +-> 1 -> 2 -+        states    {0} {0,1} {0,3} {0,1,2} {0,1,3} {0,1,2,3} all
    0 ---+           +--> 4   antichain  0    1     3      2       1,3     2,3     4
         +-----> 3 --+        sent       0   0,1   0,3    0,2    0,1,3   0,2,3     -   (release)
                                         0   0,1   0,3    0,2     1,3     2,3      -   (each once)

A stage is one state without an earlier one that it contains, so the programme of a chain serves: it
takes states that do not contain each other for a stage of infinite time.

``sent`` is what crosses a cut. The release counts the antichain, and of each of its nodes the
predecessors that something else reads. So a tensor counts once, and none that crosses is left out;
but a fork whose branches have all begun still counts (0 above). Cost models with ``antichains``
follow the release; the other ones count each tensor that crosses once. A tensor that no node reads
crosses to the loss.

Some networks have more states than can be listed: a block of four branches alone has hundreds, and
the release gives up. :mod:`ddlbench.planning.partition.stages` picks states of such a network.

The release departs from this in two ways that make a period too short. It never visits what only an
input joins to the first source. With several levels, it also takes the difference between two
states for a stage that do not contain each other.

Source: ``graph/graph.py`` (``antichain_dag``, ``augment_antichain``) of the PipeDream release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.schema import nearest
from ddlbench.planning.partition.graph import Array, LayerGraph, MemoryLimit, Node, States
from ddlbench.planning.partition.thresholds import Integers, Thresholds

Cuts = tuple[Array, Array]  # bytes into a stage, bytes out of it
Counts = int | Integers


@dataclass(frozen=True)
class Level:
    """One level of the machine: components joined by links, innermost level first.

    Args:
        machines: components of the level below in one component of this level.
        bandwidth_bytes_per_s: of the links between them.
    """

    machines: int
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        if self.machines < 1:
            raise ConfigError(f"machines {self.machines}: write 1 or more for each level")
        if not self.bandwidth_bytes_per_s > 0:
            raise ConfigError(
                f"bandwidth {self.bandwidth_bytes_per_s}: write bytes per second, more than 0"
            )


@dataclass(frozen=True)
class CostModel:
    """Seconds per mini-batch of a stage, for arrays.

    Attributes:
        first: ``(T, w, r, level, G)`` of a stage without a cut before it; T, w and r broadcast.
        other: ``(T, w, r, level, (a_in, a_out))`` of a stage after a cut; a_out is 0 at the end
            of the network.
        antichains: a cut through a graph is charged as in the release, see the
            top of this module.
    """

    first: Callable[[Array, Array, Counts, Level, int], Array]
    other: Callable[[Array, Array, Counts, Level, Cuts], Array]
    antichains: bool = False


def cut_outputs(states: States) -> Array:
    """Bytes that cross a cut after each state; shape (N,), 0 for the last."""
    outputs = states.output_bytes.copy()
    outputs[-1] = 0.0
    return outputs


def _released_first(time: Array, weights: Array, r: Counts, level: Level, inner: int) -> Array:
    reduce = (4 * (r - 1) * weights) / (level.bandwidth_bytes_per_s * r)
    return (time + reduce / inner) / r


def _released_other(time: Array, weights: Array, r: Counts, level: Level, cuts: Cuts) -> Array:
    stage = (time + (4 * (r - 1) * weights) / (level.bandwidth_bytes_per_s * r)) / r
    across = (2.0 * np.maximum(*cuts)) / (level.bandwidth_bytes_per_s * r)
    return np.maximum(stage, across)


def _paper_stage(time: Array, weights: Array, r: Counts, level: Level) -> Array:
    return np.maximum(time, 2 * (r - 1) * weights / level.bandwidth_bytes_per_s) / r


def _paper_other(time: Array, weights: Array, r: Counts, level: Level, cuts: Cuts) -> Array:
    stage = _paper_stage(time, weights, r, level)
    return np.maximum(stage, 2 * cuts[0] / level.bandwidth_bytes_per_s)


COST_MODELS = {
    "released": CostModel(_released_first, _released_other, antichains=True),
    "paper": CostModel(
        lambda time, weights, r, level, _: _paper_stage(time, weights, r, level), _paper_other
    ),
}


def cost_model(name: str) -> CostModel:
    """The model of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in COST_MODELS:
        raise ConfigError(f"unknown cost model {shown(name)}; {nearest(name, COST_MODELS)}")
    return COST_MODELS[name]


_MANY = 64
"""Machines of the outermost level, from which on it is solved by thresholds."""
_MOST_TABLED = 512
_MOST_EXACT = 128
"""Devices of one level whose demands are all kept apart under a memory limit."""
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
    ranks = math.prod(level.machines for level in levels)
    if straight and any(level.machines > len(states) for level in levels):
        return math.inf, []
    by_thresholds = memory is None and not straight and levels[-1].machines > _MANY
    _check_tables(levels[:-1] if by_thresholds else levels, memory)
    grid = np.zeros(1, dtype=np.int64)  # without a limit, all demands are alike
    if memory is not None:
        grid = memory.demands(ranks, exact=len(levels) == 1 and ranks <= _MOST_EXACT)
    component = _device(states, grid, memory)
    solved: list[_Table | _ManyMachines] = []
    inner = 1
    for number, level in enumerate(levels):
        final = number == len(levels) - 1
        if final and by_thresholds:
            solved.append(_ManyMachines(states, level, model, component, inner))
            break
        table = _Table(states, level, model, component, inner=inner, straight=straight, final=final)
        solved.append(table)
        component = table.component()
        inner = level.machines
    period = solved[-1].period_s
    if not np.isfinite(period):
        return period, []
    pieces = [Piece(0, len(states), 1, 0)]
    for level_of_stages in reversed(solved):
        pieces = [inside for piece in pieces for inside in level_of_stages.inside(piece)]
    return period, pieces


def _check_tables(levels: Sequence[Level], memory: MemoryLimit | None) -> None:
    """Refuse levels whose tables would take hours."""
    for level in levels:
        if level.machines > _MOST_TABLED:
            where = "below another level" if memory is None else "under a memory limit"
            raise ConfigError(
                f"{level.machines} machines {where}: the search among so many takes hours; "
                f"write at most {_MOST_TABLED}"
            )


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


class _ManyMachines:
    """The outermost level without a limit of memory, where tables of all numbers are too large."""

    def __init__(
        self, states: States, level: Level, model: CostModel, component: _Component, inner: int
    ) -> None:
        time = component.time_s[:, :, 0]
        weights = np.where(np.isfinite(states.time_s), states.parameter_bytes, 0.0)
        cuts = (np.roll(states.output_bytes, 1)[:, None], cut_outputs(states)[None, :])

        def times(replicas: Integers) -> Array:
            seconds = model.other(time, weights, replicas, level, cuts)
            seconds[:1] = model.first(time[:1], weights[:1], replicas[:1], level, inner)
            return seconds

        thresholds = Thresholds(times, len(states), level.machines)
        self.period_s, self._stages = thresholds.least(len(states) - 1, level.machines)

    def inside(self, piece: Piece) -> list[Piece]:
        """The stages that all machines make of the whole network, first to last."""
        return [Piece(first, last, r * piece.replicas, 0) for first, last, r in self._stages]


class _Table:
    """The programme of one level; all starts, or only node 0 on the outermost level.

    ``component`` is what one machine does with nodes i..j, ``inner`` the machines of the level
    below, or 1; ``straight``: one replica a stage.
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
        demand = self._rounded[r][start + 1 :, start + 1 :]  # of the stage after each cut
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

        waiting, later = self._waiting[r], np.s_[start, start + 1 :]
        least, cut, entry = least[:, waiting], cut[:, waiting], entry[:, waiting]
        better = (least < best.period_s[later]) | (
            (least == best.period_s[later]) & (cut < best.cut[later])
        )
        for table, value in (
            (best.period_s, least),
            (best.cut, cut),
            (best.replicas, np.full_like(cut, r)),
            (best.demand, entry),
        ):
            np.copyto(table[later], value, where=better)

    def _place(self, demand: Integers) -> Integers:
        place: Integers = np.minimum(np.searchsorted(self._grid, demand), len(self._grid) - 1)
        return place

    @property
    def period_s(self) -> float:
        """The period of the whole network on all machines."""
        return float(self.component().time_s[0, -1, 0])

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


@dataclass(frozen=True)
class GraphStates(States):
    """States of a graph, each before those that contain it; the last one holds all nodes.

    Attributes:
        nodes: of the graph.
        members: which nodes each state holds; bool, shape (N, nodes).
        sent_bytes: across a cut after each state; shape (N,).
    """

    nodes: tuple[Node, ...]
    members: NDArray[np.bool_] = field(repr=False)
    sent_bytes: Array = field(repr=False)
    fixed_bytes: float = 0.0

    @property
    def output_bytes(self) -> Array:
        return self.sent_bytes

    def spans(self, values: Sequence[float]) -> Array:
        """Differences of exact sums: nodes that take no time leave no rounding."""
        each = np.array(values, dtype=np.float64)
        until = np.array([math.fsum(each[held]) for held in self.members])
        before = np.concatenate(([0.0], until[:-1]))
        spans: Array = np.where(self._stages, until[None, :] - before[:, None], np.inf)
        return spans

    @property
    def _stages(self) -> NDArray[np.bool_]:
        """Whether state j contains state i - 1 and more."""
        held = self.members.astype(np.float32)  # exact: counts of nodes are far below 2^24
        sizes = self.members.sum(axis=1)
        within = (held @ held.T == sizes[:, None]) & (sizes[:, None] < sizes[None, :])
        return np.vstack([np.ones((1, len(sizes)), dtype=bool), within[:-1]])

    def order(self, cuts: Sequence[int]) -> list[int]:
        """The nodes, those of earlier stages first; ``cuts`` are the last state of each stage."""
        order: list[int] = []
        before = np.zeros(len(self.nodes), dtype=bool)
        for state in cuts:
            order += np.flatnonzero(self.members[state] & ~before).tolist()
            before = self.members[state]
        return order


def graph_states(graph: LayerGraph, closed: Iterable[int], antichains: bool) -> GraphStates:
    """States of a graph, to cut it after.

    ``closed`` are sets of nodes, among them that of all nodes. With ``antichains`` the tensors that
    cross a cut are counted as in the release.
    """
    states = sorted(closed, key=lambda state: (state.bit_count(), state))
    members = _unpacked(states, len(graph.nodes))
    sent = _antichain_sent(graph, states, members) if antichains else _sent_once(graph, members)
    sizes = np.array([node.output_bytes for node in graph.nodes])
    return GraphStates(graph.nodes, members, np.array([math.fsum(sizes[row]) for row in sent]))


def packed(held: NDArray[np.bool_]) -> int:
    """A set of bits from one truth value for each node."""
    return int.from_bytes(np.packbits(held, bitorder="little").tobytes(), "little")


def _unpacked(sets: Iterable[int], count: int) -> NDArray[np.bool_]:
    """Whether each set holds each of ``count`` nodes; shape (sets, count)."""
    content = b"".join(nodes.to_bytes(-(-count // 8), "little") for nodes in sets)
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, -(-count // 8))
    return np.unpackbits(rows, axis=1, count=count, bitorder="little").astype(np.bool_)


def all_states(graph: LayerGraph, most: int) -> list[int] | None:
    """The states that the release visits; None if they are more than ``most``.

    It goes on from a state with each node that reads from it, and takes what this node needs too.
    From a single source this visits every closed set of nodes. States that differ only in nodes
    that cost nothing are one: such a node runs where the first node that reads it does.
    """
    everything, free = (1 << len(graph.nodes)) - 1, _free_nodes(graph)
    if len(graph.nodes) - free.bit_count() > 4 * most:
        return None  # a state for almost every node at least
    start = graph.closures[lowest(everything & ~free or everything)]
    seen, ahead = {start}, [start]
    while ahead:
        state = ahead.pop()
        outside = next_nodes(graph, state) & ~free
        if not outside:  # the rest is joined to this by an input, or by what costs nothing
            outside = everything & ~state & ~free or everything & ~state
            outside &= -outside
        while outside:
            node = lowest(outside)
            outside &= outside - 1
            further = state | graph.closures[node]
            if further not in seen:
                if len(seen) == most:
                    return None
                seen.add(further)
                ahead.append(further)
    return list(seen)


def _free_nodes(graph: LayerGraph) -> int:
    """Nodes that cost nothing and need nothing that does."""
    free = 0
    for number, node in enumerate(graph.nodes):
        costs = node.time_s or node.output_bytes or node.parameter_bytes
        if not costs and graph.closures[number] & ~free == 1 << number:
            free |= 1 << number
    return free


def lowest(nodes: int) -> int:
    """The first node of a set."""
    return (nodes & -nodes).bit_length() - 1


def next_nodes(graph: LayerGraph, state: int) -> int:
    """The nodes outside a state that read from it."""
    readers, rest = 0, state
    while rest:
        readers |= graph.reader_sets[lowest(rest)]
        rest &= rest - 1
    return readers & ~state


def _sent_once(graph: LayerGraph, members: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which tensors cross: those that a node outside the state reads, or none does."""
    sent = np.zeros_like(members)
    for node, readers in enumerate(graph.readers):
        missing = ~members[:, sorted(readers)]
        sent[:, node] = members[:, node] & (missing.any(axis=1) if readers else True)
    return sent


def _antichain_sent(
    graph: LayerGraph, states: Sequence[int], members: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which tensors the release counts: the antichain's, and the forks before each of its nodes."""
    forks = []
    for node, closure in enumerate(graph.closures):
        before = closure & ~(1 << node)
        forks.append(
            sum(
                1 << other
                for other in range(node)
                if before >> other & 1 and graph.reader_sets[other] & ~closure
            )
        )
    counted = []
    for state, held in zip(states, members, strict=True):
        sent = 0
        for node in np.flatnonzero(held).tolist():
            if not graph.reader_sets[node] & state:
                sent |= 1 << node | forks[node]
        counted.append(sent)
    return _unpacked(counted, len(graph.nodes))
