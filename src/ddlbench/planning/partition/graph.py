"""A branching network: nodes, and edges from each tensor to the nodes that read it.

::

         +-> 1 -> 2 -+
    0 ---+           +--> 4        a cut before {2, 4} sends the tensors of 0 and of 1:
         +-----> 3 --+             each once, however many nodes behind the cut read it

Sets of nodes are integers with a bit for each node. What runs before a cut is *closed*: it holds
whatever its nodes read.

The nodes are in an order in which the network could run; where its edges leave a choice, the
smaller number of the profile's names comes first. So no order of lines matters.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from ddlbench.planning.partition.chain import Chain, Node


@dataclass(frozen=True)
class LayerGraph:
    """Nodes in an order in which they could run; ``output_bytes`` of each is its own tensor.

    Args:
        nodes: at least one.
        readers: of each node, the nodes that read its tensor.
    """

    nodes: tuple[Node, ...]
    readers: tuple[frozenset[int], ...]

    @classmethod
    def of(cls, nodes: Sequence[Node], edges: Iterable[tuple[int, int]]) -> LayerGraph:
        """The graph of nodes in any order, and of (tensor's node, reader) edges without a cycle."""
        readers: list[set[int]] = [set() for _ in nodes]
        missing = [0] * len(nodes)
        for source, reader in set(edges):
            readers[source].add(reader)
            missing[reader] += 1
        ranked = sorted(range(len(nodes)), key=lambda n: _number_last(nodes[n].name))
        rank = {node: place for place, node in enumerate(ranked)}
        order = list(_run_order(readers, missing, lambda node, _turn: rank[node]))
        place = {node: position for position, node in enumerate(order)}
        return cls(
            tuple(nodes[node] for node in order),
            tuple(frozenset(place[reader] for reader in readers[node]) for node in order),
        )

    @cached_property
    def read(self) -> tuple[frozenset[int], ...]:
        """Of each node, the nodes whose tensors it reads."""
        read: list[set[int]] = [set() for _ in self.nodes]
        for node, readers in enumerate(self.readers):
            for reader in readers:
                read[reader].add(node)
        return tuple(frozenset(nodes) for nodes in read)

    @cached_property
    def reader_sets(self) -> tuple[int, ...]:
        """``readers`` as sets of bits."""
        return tuple(sum(1 << reader for reader in readers) for readers in self.readers)

    @cached_property
    def closures(self) -> tuple[int, ...]:
        """Of each node, all that must run for it, itself included."""
        closed: list[int] = []
        for node, inputs in enumerate(self.read):
            whole = 1 << node
            for source in inputs:
                whole |= closed[source]
            closed.append(whole)
        return tuple(closed)

    def orders(self) -> Iterator[list[int]]:
        """Orders in which the network could run.

        By number; each time with the narrowest cut; a branch at a time and all branches abreast,
        each from the start and from the end.
        """
        yield list(range(len(self.nodes)))
        yield list(self._narrow_order())
        onwards = [len(inputs) for inputs in self.read]
        backwards = [len(readers) for readers in self.readers]
        for urgency in (lambda _node, turn: -turn, lambda _node, turn: turn):
            yield list(_run_order(self.readers, onwards, urgency))
            yield list(_run_order(self.read, backwards, urgency))[::-1]

    def _narrow_order(self) -> Iterator[int]:
        """Of the nodes that could run next, always the one after which the cut is narrowest."""
        missing = [len(inputs) for inputs in self.read]
        waiting = [set(readers) for readers in self.readers]

        def widening(node: int) -> tuple[float, int]:
            ends = sum(self.nodes[n].output_bytes for n in self.read[node] if len(waiting[n]) == 1)
            return self.nodes[node].output_bytes - ends, node

        ready = [widening(node) for node, count in enumerate(missing) if not count]
        heapq.heapify(ready)
        while ready:
            _, node = heapq.heappop(ready)
            if missing[node] < 0:
                continue  # it has run: this was its entry of before
            missing[node] = -1
            yield node
            for source in self.read[node]:
                waiting[source].remove(node)
                for reader in waiting[source] if len(waiting[source]) == 1 else ():
                    if not missing[reader]:
                        heapq.heappush(ready, widening(reader))
            for reader in self.readers[node]:
                missing[reader] -= 1
                if not missing[reader]:
                    heapq.heappush(ready, widening(reader))

    def chain(self, order: Sequence[int]) -> Chain:
        """The nodes in such an order, each with the bytes of all tensors that cross a cut after it.

        A tensor crosses if a node behind the cut reads it, or if no node does: the loss reads it.
        """
        waiting = [len(readers) for readers in self.readers]
        nodes: list[Node] = []
        crossing = Fraction(0)  # exact: what has crossed leaves no rounding behind
        for node in order:
            crossing += Fraction(self.nodes[node].output_bytes)
            for source in self.read[node]:
                waiting[source] -= 1
                if not waiting[source]:
                    crossing -= Fraction(self.nodes[source].output_bytes)
            nodes.append(replace(self.nodes[node], output_bytes=float(crossing)))
        return Chain(tuple(nodes))


def _number_last(name: str) -> list[tuple[int, str]]:
    """Sorts node2 before node10."""
    parts = re.split(r"(\d+)", name)
    return [(len(part.lstrip("0")) if part.isdecimal() else -1, part) for part in parts]


def _run_order(
    readers: Sequence[Collection[int]], inputs: Sequence[int], urgency: Callable[[int, int], int]
) -> Iterator[int]:
    """Nodes whose inputs are there, the least urgency of (node, turn it became ready at) first."""
    missing = list(inputs)
    ready = [(urgency(node, 0), node) for node, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    turn = 0
    while ready:
        _, node = heapq.heappop(ready)
        yield node
        turn += 1
        for reader in readers[node]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, (urgency(reader, turn), reader))
