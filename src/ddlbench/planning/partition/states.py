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
the release gives up. Of such a network the states along a few orders are taken, and the tensors
that cross count once each, also where a cost model follows the release. So a partition that is
returned exists and costs what it says, but a better one may exist.

Two departures from the release, which take nothing from a single network: it never visits what is
not connected with the first source, and with several levels it takes the difference between two
states for a stage even if they do not contain each other.

Source: ``graph/graph.py`` (``antichain_dag``, ``augment_antichain``) of the PipeDream release.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ddlbench.planning.partition.chain import Array, Node, States
from ddlbench.planning.partition.graph import LayerGraph

MOST_STATES = 1300  # seconds of time, and hundreds of megabytes, with two levels


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

    def order(self, cuts: Sequence[int]) -> list[int]:
        """The nodes, those of earlier stages first; ``cuts`` are the last state of each stage."""
        order: list[int] = []
        before = np.zeros(len(self.nodes), dtype=bool)
        for state in cuts:
            order += np.flatnonzero(self.members[state] & ~before).tolist()
            before = self.members[state]
        return order


def graph_states(graph: LayerGraph, antichains: bool, most: int = MOST_STATES) -> GraphStates:
    """All states of a graph; of a graph with more than ``most``, so many of them.

    Args:
        graph: the network.
        antichains: the tensors that cross a cut are counted as in the release.
        most: states that are taken.
    """
    states = _all_states(graph, most)
    listed = states is not None
    if states is None:
        states = _states_of_orders(graph, most)
    states.sort(key=lambda state: (state.bit_count(), state))
    members = np.array([list(_bits(state, len(graph.nodes))) for state in states], dtype=bool)
    sent = _antichain_sent(graph, states, members) if antichains and listed else None
    if sent is None:
        sent = _sent_once(graph, members)
    sizes = np.array([node.output_bytes for node in graph.nodes])
    return GraphStates(graph.nodes, members, np.array([math.fsum(sizes[row]) for row in sent]))


def _bits(state: int, count: int) -> Iterator[bool]:
    return (sign == "1" for sign in reversed(f"{state:0{count}b}"))


def _all_states(graph: LayerGraph, most: int) -> list[int] | None:
    """The states that the release visits; None if they are more than ``most``.

    It goes on from a state with each node that reads from it, and takes what this node needs too.
    From a single source this visits every closed set of nodes.
    """
    everything = (1 << len(graph.nodes)) - 1
    start = graph.closures[0]
    seen, ahead = {start}, [start]
    while ahead:
        state = ahead.pop()
        outside = _next_nodes(graph, state)
        if not outside and state != everything:  # a part that only an input joins to this one
            outside = ~state & -~state
        while outside:
            node = (outside & -outside).bit_length() - 1
            outside &= outside - 1
            further = state | graph.closures[node]
            if further not in seen:
                if len(seen) == most:
                    return None
                seen.add(further)
                ahead.append(further)
    return list(seen)


def _next_nodes(graph: LayerGraph, state: int) -> int:
    """The nodes outside a state that read from it."""
    readers, rest = 0, state
    while rest:
        readers |= graph.reader_sets[(rest & -rest).bit_length() - 1]
        rest &= rest - 1
    return readers & ~state


def _states_of_orders(graph: LayerGraph, most: int) -> list[int]:
    """States along orders: all of the first order, then the narrowest of the others."""
    if len(graph.nodes) >= most:
        return _narrowest(graph, most)
    states: dict[int, float] = {}
    for order in graph.orders():
        state = 0
        for node, entry in zip(order, graph.chain(order).nodes, strict=True):
            state |= 1 << node
            states.setdefault(state, entry.output_bytes)
    kept = list(states)
    further = sorted(kept[len(graph.nodes) :], key=states.__getitem__)
    return kept[: len(graph.nodes)] + further[: most - len(graph.nodes)]


def _narrowest(graph: LayerGraph, most: int) -> list[int]:
    """Of a very long network, the narrowest cut in each of ``most`` equal parts of its order."""
    count = len(graph.nodes)
    outputs = graph.chain(range(count)).output_bytes
    parts = np.array_split(np.arange(count - 1), most - 1)
    ends = [int(part[outputs[part].argmin()]) for part in parts]
    return [(2 << end) - 1 for end in [*ends, count - 1]]


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
        counted.append(list(_bits(sent, len(held))))
    return np.array(counted, dtype=bool)
