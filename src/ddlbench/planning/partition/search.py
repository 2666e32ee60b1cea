"""States of a network that has too many of them to list: coarse first, then near the best cuts.

::

    orders     . | . . | . . | . . | .      the narrowest cut in each part of several orders
    cut              *       *              the best partition at these
    near           . * .   . * .            states around its cuts: of the orders, and with a node
    cut            *           *            more or less; again, as long as the period falls

So a partition that is returned exists and costs what it says, but a better one may exist. Each
tensor that crosses a cut counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ddlbench.planning.partition.graph import LayerGraph
from ddlbench.planning.partition.states import GraphStates, graph_states, lowest, next_nodes, packed

_ROUNDS = 12
_REFINED = 2  # beginnings that are followed further

CutsOf = Callable[[GraphStates], tuple[float, Sequence[int]]]


def search(graph: LayerGraph, stages: int, most: int, cuts_of: CutsOf) -> GraphStates:
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
    """Some states, and the best partition at them."""

    states: GraphStates
    period_s: float
    cuts: tuple[int, ...]  # the nodes before each, and all nodes


def _tried(graph: LayerGraph, closed: set[int], cuts_of: CutsOf) -> _Tried:
    states = graph_states(graph, closed, antichains=False)
    period_s, cuts = cuts_of(states)
    return _Tried(states, period_s, tuple(states.set_of(cut) for cut in cuts))


def _refined(
    graph: LayerGraph, orders: Sequence[_Order], tried: _Tried, most: int, cuts_of: CutsOf
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
