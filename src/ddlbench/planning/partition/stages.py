"""Partitions: the stages of least period, and the period of stages as they are placed.

The programme finds the stages (:mod:`ddlbench.planning.partition.programme`). A cost model also
gives the period of given stages on given nodes::

    stage      on one node     the model's stage over the links of a node
               on n nodes      d replicas on each: the stage on d over the links of a node, that n
                               times over those between nodes; uneven: all over those between nodes
    cut        links of a node if both its stages are on that one node, else between nodes
    period     the longest of them

For stages that PipeDream's programme made for one level this is the programme's own period. With
two levels they may differ: the programme treats all nodes alike, while ranks are numbered stage by
stage. This period is of the stages as they run.

If a network has too many states to list, some are picked: coarse first, then near the best cuts::

    orders     . | . . | . . | . . | .      the narrowest cut in each part of several orders
    cut              *       *              the best partition at these
    near           . * .   . * .            states around its cuts: of the orders, and with a node
    cut            *           *            more or less; again, as long as the period falls

So a partition that is returned exists and costs what it says, but a better one may exist. Each
tensor that crosses a cut counts once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal

import numpy as np

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import making_command
from ddlbench.experiment.links import Links, read_links
from ddlbench.experiment.paths import links_file
from ddlbench.experiment.profile import Profile
from ddlbench.planning.partition.graph import Array, Chain, LayerGraph, MemoryLimit, States
from ddlbench.planning.partition.programme import (
    CostModel,
    GraphStates,
    Level,
    Piece,
    all_states,
    cost_model,
    graph_states,
    lowest,
    next_nodes,
    packed,
    solve,
)
from ddlbench.planning.pipeline import Stage
from ddlbench.planning.schedules.orders import warmups

_CutsOf = Callable[[GraphStates], tuple[float, Sequence[int]]]

_MOST_STATES = 700  # of a graph that are all taken: seconds with two levels
_MOST_LIMITED_STATES = 450  # under a memory limit, which takes more time
_SEARCHED_STATES = 480  # at once, where they are more
NO_LINKS = float("inf")  # bytes per second: cuts cost nothing


@dataclass(frozen=True)
class Partition:
    """Stages from the input to the loss, and their predicted seconds per mini-batch."""

    stages: tuple[Stage, ...]
    period_s: float

    @property
    def replicas(self) -> tuple[int, ...]:
        return tuple(stage.replicas for stage in self.stages)

    def to_dict(self) -> dict[str, Any]:
        return {
            "stages": [[stage.first, stage.last, stage.replicas] for stage in self.stages],
            "period_s": self.period_s,
        }


def partition(
    states: States,
    levels: Sequence[Level],
    model: str = "released",
    straight: bool = False,
    memory: MemoryLimit | None = None,
) -> Partition:
    """Cuts a network into the stages of least period.

    Args:
        states: the network at the batch size of one replica: a chain, or the states of a graph.
        levels: the machine, innermost level first (devices of a node, then nodes).
        model: a key of :data:`~ddlbench.planning.partition.programme.COST_MODELS`.
        straight: as many stages as devices, no replication.
        memory: of a device; None for no limit.

    Raises:
        ConfigError: no partition exists or fits, or there is no such model.
    """
    costs = cost_model(model)
    period, pieces = solve(states, levels, costs, straight)
    if memory is not None and pieces and not _fits(pieces, states, memory):
        period, pieces = solve(states, levels, costs, straight, memory)
    if not pieces:
        raise ConfigError(_why_none(states, levels, straight, memory))
    return Partition(tuple(Stage(p.first, p.last, p.replicas) for p in pieces), period)


def partition_graph(
    graph: LayerGraph,
    levels: Sequence[Level],
    model: str = "released",
    straight: bool = False,
    memory: MemoryLimit | None = None,
) -> tuple[Chain, Partition]:
    """Cuts a branching network, as :func:`partition` does; also gives its nodes in stage order.

    Raises:
        ConfigError: as in :func:`partition`.
    """
    states = _states_to_cut(graph, levels, model, straight, None)
    best = partition(states, levels, model, straight)
    if memory is not None and max(stage_memory_bytes(best, states, memory)) > memory.limit_bytes:
        states = _states_to_cut(graph, levels, model, straight, memory)
        best = partition(states, levels, model, straight, memory)
    order = states.order([stage.last - 1 for stage in best.stages])
    held = states.members.sum(axis=1)
    ends = [0, *(int(held[stage.last - 1]) for stage in best.stages)]
    stages = tuple(
        Stage(first, last, stage.replicas)
        for (first, last), stage in zip(pairwise(ends), best.stages, strict=True)
    )
    return graph.chain(order), Partition(stages, best.period_s)


def _states_to_cut(
    graph: LayerGraph,
    levels: Sequence[Level],
    model: str,
    straight: bool,
    memory: MemoryLimit | None,
) -> GraphStates:
    """All states of a graph, or those among which a search found the least period."""
    devices = math.prod(level.machines for level in levels)
    limited = memory is not None
    closed = all_states(graph, _MOST_LIMITED_STATES if limited else _MOST_STATES)
    if closed is not None:
        return graph_states(graph, closed, cost_model(model).antichains)

    def cuts_of(states: GraphStates) -> tuple[float, list[int]]:
        try:
            best = partition(states, levels, model, straight, memory)
        except ConfigError:  # none exists or fits at these states
            return float("inf"), []
        return best.period_s, [stage.last - 1 for stage in best.stages]

    most = _SEARCHED_STATES // (4 if limited else 1) // (2 if devices > 16 else 1)
    return _search(graph, devices if straight else 1, most, cuts_of)


def stage_memory_bytes(cut: Partition, states: States, memory: MemoryLimit) -> tuple[float, ...]:
    """Bytes that one device of each stage needs, by the terms of a memory limit."""
    waiting = warmups(cut.replicas, memory.extra_warmup)
    return tuple(
        memory.stage_bytes(states, stage.first, stage.last, count + 1)
        for stage, count in zip(cut.stages, waiting, strict=True)
    )


def balance(chain: Chain, partitions: int) -> tuple[int, ...]:
    """Nodes of each partition that make the slowest one fastest; torchgpipe's ``balance``.

    Unlike ``torchgpipe.balance.balance_by_time`` the result is optimal. Links do not count.

    Raises:
        ConfigError: there are fewer nodes than partitions.
    """
    best = partition(chain, [Level(partitions, NO_LINKS)], "paper", straight=True)
    return tuple(stage.last - stage.first for stage in best.stages)


def _fits(pieces: Sequence[Piece], states: States, memory: MemoryLimit) -> bool:
    stages = tuple(Stage(piece.first, piece.last, piece.replicas) for piece in pieces)
    return max(stage_memory_bytes(Partition(stages, 0.0), states, memory)) <= memory.limit_bytes


def _why_none(
    states: States, levels: Sequence[Level], straight: bool, memory: MemoryLimit | None
) -> str:
    devices, nodes = math.prod(level.machines for level in levels), len(states.nodes)
    if straight and devices > nodes:
        return (
            f"{counted(nodes, 'layer')} cannot make {devices} stages without replication; "
            f"use at most {counted(nodes, 'device')} or leave --straight out"
        )
    if memory is None:
        return f"no partition of {counted(nodes, 'layer')} over {counted(devices, 'device')} exists"
    alone = states.fixed_bytes + max(memory.node_bytes(node) for node in states.nodes)
    return (
        f"the network does not fit: no partition over {counted(devices, 'device')} keeps each "
        f"within {memory.limit_bytes:,.0f} bytes (its largest layer alone needs {alone:,.0f} "
        "bytes); give more memory, more devices or a smaller batch"
    )


@dataclass(frozen=True)
class PlacedStage:
    """A stage, and the node of each of its replicas."""

    stage: Stage
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class StageLinks:
    """Bytes per second within a node and between nodes; infinite for links that cost nothing."""

    node_bytes_per_s: float
    network_bytes_per_s: float

    def level(self, nodes: set[int]) -> Level:
        """The slowest links among some nodes."""
        return Level(1, self.network_bytes_per_s if len(nodes) > 1 else self.node_bytes_per_s)


def period_of(
    chain: Chain, stages: Sequence[PlacedStage], links: StageLinks, model: str = "released"
) -> tuple[float, float]:
    """The model's seconds per mini-batch, and those of all communication, hidden or not.

    The chain is at the batch size of one replica, and ``stages`` hold all of its nodes.
    """
    costs = cost_model(model)
    longest, sent = 0.0, 0.0
    for number, placed in enumerate(stages):
        inside = (placed.stage.first, placed.stage.last - 1)
        time = np.asarray(chain.time_s[inside])
        weights = np.asarray(chain.parameter_bytes[inside])
        longest = max(longest, _stage_s(costs, time, weights, placed, links))
        sent += _stage_s(costs, np.zeros(()), weights, placed, links)
        if number == 0:
            continue
        before = stages[number - 1]
        into = links.level({*before.nodes, *placed.nodes})
        arriving = float(chain.output_bytes[placed.stage.first - 1])
        cuts = [_cut_s(costs, placed, into, (arriving, 0.0))]
        sent += 2 * arriving / into.bandwidth_bytes_per_s
        if number + 1 < len(stages):
            out = links.level({*placed.nodes, *stages[number + 1].nodes})
            leaving = float(chain.output_bytes[placed.stage.last - 1])
            cuts.append(_cut_s(costs, placed, out, (0.0, leaving)))
        longest = max(longest, *cuts)
    return longest, sent


def _stage_s(
    costs: CostModel, time: Array, weights: Array, placed: PlacedStage, links: StageLinks
) -> float:
    replicas, of_nodes = placed.stage.replicas, Counter(placed.nodes)
    each, *others = set(of_nodes.values())
    if len(of_nodes) == 1 or others or each == 1:
        return float(costs.first(time, weights, replicas, links.level(set(of_nodes)), 1))
    inside = costs.first(time, weights, each, Level(each, links.node_bytes_per_s), 1)
    between = Level(len(of_nodes), links.network_bytes_per_s)
    return float(costs.first(inside, weights, len(of_nodes), between, each))


def _cut_s(costs: CostModel, placed: PlacedStage, level: Level, cuts: tuple[float, float]) -> float:
    nothing = np.zeros(())
    arrays = (np.asarray(cuts[0]), np.asarray(cuts[1]))
    return float(costs.other(nothing, nothing, placed.stage.replicas, level, arrays))


_ROUNDS = 12
_REFINED = 2  # beginnings that are followed further


def _search(graph: LayerGraph, stages: int, most: int, cuts_of: _CutsOf) -> GraphStates:
    """States among which ``cuts_of`` finds the least period.

    Args:
        graph: the network.
        stages: the fewest that it is cut into.
        most: states of a round.
        cuts_of: the least period of a partition at some states, and the last state of each stage;
            an infinite one if there is none.
    """
    orders = [_Order(graph, order) for order in graph.orders()]
    alone = [set(order.narrowest(max(most // 2, 4 * stages))) for order in orders]
    share = most // len(orders)
    mixed = {state for order in orders for state in order.narrowest(share)}
    begun = [_tried(graph, states, cuts_of) for states in (mixed, *alone)]
    begun.sort(key=lambda tried: tried.period_s)
    followed = [_refined(graph, orders, tried, most, cuts_of) for tried in begun[:_REFINED]]
    return min(followed, key=lambda tried: tried.period_s).states


@dataclass(frozen=True)
class _Tried:
    states: GraphStates
    period_s: float
    cuts: tuple[int, ...]  # the nodes before each, and all nodes


def _tried(graph: LayerGraph, closed: set[int], cuts_of: _CutsOf) -> _Tried:
    states = graph_states(graph, closed, antichains=False)
    period_s, cuts = cuts_of(states)
    return _Tried(states, period_s, tuple(packed(states.members[cut]) for cut in cuts))


def _refined(
    graph: LayerGraph, orders: Sequence[_Order], tried: _Tried, most: int, cuts_of: _CutsOf
) -> _Tried:
    """The best that is reached through states near the cuts, step by step."""
    for _ in range(_ROUNDS):
        inner = tried.cuts[:-1]
        near = {*tried.cuts}
        for cut in inner:
            near |= _near(graph, orders, cut, most // len(inner))
        if not inner:
            break
        further = _tried(graph, near, cuts_of)
        if further.period_s >= tried.period_s:
            break
        tried = further
    return tried


class _Order:
    """The states along one order, with the time until each and the bytes across a cut after it."""

    def __init__(self, graph: LayerGraph, order: Sequence[int]) -> None:
        chain = graph.chain(order)
        self._order = np.array(order)
        self._sent = chain.output_bytes
        self._until_s = np.cumsum([node.time_s for node in chain.nodes])

    def narrowest(self, count: int) -> Iterator[int]:
        """The narrowest state of each of ``count`` equal parts, and the last one."""
        places = np.arange(len(self._order) - 1)
        for part in np.array_split(places, min(count, max(1, len(places)))):
            if part.size:
                yield self._state(int(part[self._sent[part].argmin()]))
        yield self._state(len(self._order) - 1)

    def around(self, time_s: float, count: int) -> Iterator[int]:
        """About ``count`` states: those next to a time, and ever fewer further off."""
        middle = int(np.searchsorted(self._until_s, time_s))
        offset = 0
        for step in range(max(1, count // 2)):
            offset += max(1, step // 4)
            for place in {middle - offset + 1, middle + offset}:
                if 0 <= place < len(self._order):
                    yield self._state(place)

    def _state(self, place: int) -> int:
        held = np.zeros(len(self._order), dtype=np.bool_)
        held[self._order[: place + 1]] = True
        return packed(held)


def _near(graph: LayerGraph, orders: Sequence[_Order], cut: int, count: int) -> set[int]:
    """States near a cut: half of them along the orders, half with some nodes more or less."""
    nodes = (node for number, node in enumerate(graph.nodes) if cut >> number & 1)
    time_s = sum(node.time_s for node in nodes)
    near: set[int] = set()
    for order in orders:
        near.update(order.around(time_s, count // (2 * len(orders))))
    ahead = [cut]
    moved: set[int] = set()
    while ahead and len(moved) < count // 2:
        state = ahead.pop(0)
        for further in islice(_steps(graph, state), count):
            if further not in moved:
                moved.add(further)
                ahead.append(further)
    return near | moved


def _steps(graph: LayerGraph, state: int) -> Iterator[int]:
    """States with what one more node needs, and without one that nothing else in it reads."""
    outside = next_nodes(graph, state)
    while outside:
        yield state | graph.closures[lowest(outside)]
        outside &= outside - 1
    inside = state
    while inside:
        node = lowest(inside)
        inside &= inside - 1
        if not graph.reader_sets[node] & state and state != 1 << node:
            yield state & ~(1 << node)


Reach = Literal["node", "network"]  # within a node, between nodes

# What training sends through, not what a link could carry.
_TRANSPORTS = ("nccl", "gloo", "given")


def bandwidth_of(links: Links, level: Reach, where: str) -> float:
    """Bytes per second of large messages within a node, or between nodes.

    From the largest message of a point-to-point sweep, else from the slowest pair of a matrix.
    ``where`` names the links' file in messages.

    Raises:
        ConfigError: there is no measurement of the level.
    """
    for sweep in links.sweeps:
        if sweep.operation == "p2p" and sweep.level == level and sweep.points:
            largest = max(sweep.points, key=lambda point: point.message_bytes)
            return largest.message_bytes / largest.time_s
    bandwidths = [
        float(bandwidth)
        for pair in links.pairs
        if pair.method in _TRANSPORTS and pair.direction == "unidirectional"
        for sender, row in enumerate(pair.bandwidth_bytes_per_s)
        for receiver, bandwidth in enumerate(row)
        if bandwidth is not None
        and sender != receiver
        and (pair.nodes[sender] == pair.nodes[receiver]) == (level == "node")
    ]
    if not bandwidths:
        place = "within a node" if level == "node" else "between nodes"
        raise ConfigError(
            f"{where}: nothing was measured {place} with the transport of training; measure the "
            "links again, or give them in the site file"
        )
    return min(bandwidths)


def partition_at(cell: Cell, chain: Chain, profile: Profile, site: str) -> Partition:
    """PipeDream's partition over the devices of a node, then over nodes, by a site's links.

    Raises:
        ConfigError: the links are missing or wrong, or no partition exists.
    """
    path = links_file(site, cell.fabric)
    if cell.devices > 1 and not path.is_file():
        raise ConfigError(
            f"balance profile needs the links of fabric {cell.fabric} at site {site}; measure them "
            f"with: {making_command(site, [path])}"
        )
    reaches: list[tuple[int, Reach]] = [(cell.devices_per_node, "node"), (cell.nodes, "network")]
    levels = [
        Level(count, bandwidth_of(read_links(path), reach, str(path)))
        for count, reach in reaches
        if count > 1
    ]
    levels = levels or [Level(1, NO_LINKS)]
    memory = None
    if profile.device_memory_bytes:
        states, extra = float(cell.optimizer_states), int(cell.option("extra_warmup", 0))
        memory = MemoryLimit(float(profile.device_memory_bytes), states, extra)
    try:
        return partition(chain, levels, memory=memory)
    except ConfigError:
        if memory is None:
            raise
        # By the limit's terms nothing fits. They count a little too much, so the fastest partition
        # is planned, and its stages are looked at one by one (ddlbench.planning.memory).
        return partition(chain, levels)
