"""Where a branching network may be cut: PipeDream's states.

A state is a closed set of nodes, what runs before a cut. PipeDream names it by its *antichain*, the
nodes in it that none of its other nodes reads::

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
the release gives up. :mod:`ddlbench.planning.partition.search` picks states of such a network.

The release departs from this in two ways that make a period too short. It never visits what only an
input joins to the first source. With several levels, it also takes the difference between two
states for a stage that do not contain each other.

Source: ``graph/graph.py`` (``antichain_dag``, ``augment_antichain``) of the PipeDream release.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ddlbench.planning.partition.chain import Array, Node, States
from ddlbench.planning.partition.graph import LayerGraph


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
        """Differences of exact sums: nodes that take no time leave no rounding behind."""
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

    def set_of(self, state: int) -> int:
        """The nodes of a state as a set of bits."""
        return packed(self.members[state])

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

    Args:
        graph: the network.
        closed: sets of nodes, among them that of all nodes.
        antichains: the tensors that cross a cut are counted as in the release.
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
    """Of each set, one truth value for each of ``count`` nodes."""
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
