"""A network as the partitioner reads it: a graph or a chain of nodes, and the memory of a stage.

Edges lead from each tensor to the nodes that read it::

         +-> 1 -> 2 -+
    0 ---+           +--> 4        a cut before {2, 4} sends the tensors of 0 and of 1:
         +-----> 3 --+             each once, however many nodes after the cut read it

Sets of nodes are integers with a bit for each node. What runs before a cut is *closed*: it holds
whatever its nodes read.

The nodes are in an order in which the network could run; where its edges leave a choice, the
smaller number of the profile's names comes first. So no order of lines matters.

PipeDream's ``graph.txt`` holds a profiled network. A line is a node or an edge, in any order. Times
are milliseconds of one mini-batch, sizes bytes; several outputs of a node are ``[a; b; c]``::

    node2 -- ReLU() -- forward_compute_time=0.5, backward_compute_time=0.7, activation_size=8.0, ...
            node1 -- node2

``stage_id``, which PipeDream's optimizer adds, is not read. As there, an ``Input`` counts for
nothing, since a stage that needs it can load it, and an unused ``__getitem__`` is left out.

A chain is cut between its nodes::

    node      0 --a_0--> 1 --a_1--> 2 --a_2--> 3         a cut before node 2 sends a_1 forward
    stage     [0 ------- 2)         [2 ------- 4)        and as many bytes of gradient back

A cut follows a *state*: what runs before it. State ``k`` of a chain holds the nodes up to ``k``; a
branching network has more (:mod:`ddlbench.planning.partition.programme`). A stage ``[first, last)``
is what state ``last - 1`` holds and state ``first - 1`` does not.

A stage keeps in memory, with ``W`` mini-batches in flight beside its own::

    (W + 1) * (saved activations + weights)     one weight version for each mini-batch in flight
    + gradients + optimizer state + buffers     once
    + memory that the device loses at the start

``W`` is the warm-up of :mod:`ddlbench.planning.schedules.orders`, so the limit holds for the
schedule that is run. (The release counts ``W`` instead of ``W + 1`` and neither gradients nor
optimizer state, so its last stage never costs anything.)

Source: ``graph/graph.py`` and ``optimizer/optimizer_graph_hierarchical.py`` of the PipeDream
release (github.com/msr-fiddle/pipedream).
"""

from __future__ import annotations

import heapq
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.statistics import grouped

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Node:
    """One node at one batch size.

    Args:
        name: in the profile.
        time_s: forward and backward pass.
        output_bytes: sent over a cut after it.
        saved_bytes: kept from forward to backward.
        parameter_bytes: its weights.
        buffer_bytes: tensors that are no weights (batch-norm statistics), kept once.
    """

    name: str
    time_s: float
    output_bytes: float
    saved_bytes: float
    parameter_bytes: float
    buffer_bytes: float = 0.0


class States(ABC):
    """Where a network may be cut: N states, each before those that it is a part of.

    Attributes:
        nodes: of the network.
        fixed_bytes: memory that a device loses before any node is placed (CUDA context).
    """

    nodes: tuple[Node, ...]
    fixed_bytes: float

    @property
    @abstractmethod
    def output_bytes(self) -> Array:
        """Bytes that cross a cut after each state; shape (N,)."""

    @abstractmethod
    def spans(self, values: Sequence[float]) -> Array:
        """Sums over the nodes of stages ``[i, j + 1)``, of one value a node.

        Shape (N, N), infinite where that is no stage.
        """

    def __len__(self) -> int:
        return len(self.output_bytes)

    @cached_property
    def time_s(self) -> Array:
        return self.spans([node.time_s for node in self.nodes])

    @cached_property
    def parameter_bytes(self) -> Array:
        return self.spans([node.parameter_bytes for node in self.nodes])

    @cached_property
    def saved_bytes(self) -> Array:
        return self.spans([node.saved_bytes for node in self.nodes])

    @cached_property
    def buffer_bytes(self) -> Array:
        return self.spans([node.buffer_bytes for node in self.nodes])


@dataclass(frozen=True)
class Chain(States):
    """Nodes in the order of the forward pass.

    Args:
        nodes: at least one.
        fixed_bytes: memory that a device loses before any node is placed (CUDA context).
    """

    nodes: tuple[Node, ...]
    fixed_bytes: float = 0.0

    @cached_property
    def output_bytes(self) -> Array:
        return np.array([node.output_bytes for node in self.nodes], dtype=np.float64)

    def spans(self, values: Sequence[float]) -> Array:
        """Differences of running sums, in the release's order of operations."""
        until = np.cumsum(np.array(values, dtype=np.float64))
        before = np.concatenate(([0.0], until[:-1]))
        spans: Array = np.where(
            np.triu(np.ones((len(values), len(values)), dtype=bool)),
            until[None, :] - before[:, None],
            np.inf,
        )
        return spans


@dataclass(frozen=True)
class MemoryLimit:
    """Memory of each device, and what training keeps there.

    Args:
        limit_bytes: memory of one device.
        optimizer_states: tensors as large as the weights that the optimizer keeps: 1 for SGD with
            momentum, 0 without, 2 for Adam.
        extra_warmup: more mini-batches in flight on every stage but the last. The partitioner
            counts them once more for each later stage: perhaps a few too many, never too few.
    """

    limit_bytes: float
    optimizer_states: float = 1.0
    extra_warmup: int = 0

    def __post_init__(self) -> None:
        if not self.limit_bytes > 0:
            raise ConfigError(f"memory of {self.limit_bytes} bytes: write more than 0")

    def demands(self, ranks: int, exact: bool) -> NDArray[np.int64]:
        """Grid of demands of later stages: all of them, or ever coarser ones above 8.

        A demand never reaches twice the ranks (and the extra warm-up of each): a stage adds less
        than twice its replicas.
        """
        most = (2 + self.extra_warmup) * ranks
        if exact:
            return np.arange(most + 1)
        coarse = {step * 2**power for power in range(2, most.bit_length() + 1) for step in (2, 3)}
        grid = np.array(sorted({*range(8), *coarse}))
        return grid[: np.searchsorted(grid, most) + 1]

    def needed_bytes(self, states: States, in_flight: int) -> Array:
        """Bytes of a device that runs nodes i..j; shape (N, N)."""
        once = (1 + self.optimizer_states) * states.parameter_bytes
        once = once + states.buffer_bytes + states.fixed_bytes
        return once + in_flight * (states.saved_bytes + states.parameter_bytes)

    def in_flight(self, waiting: int) -> int:
        """Mini-batches in a replica that delays its first backward pass by ``waiting`` of them."""
        return waiting + 1 + (self.extra_warmup if waiting else 0)

    def fits(self, states: States, waiting: int) -> NDArray[np.bool_]:
        """Which nodes i..j fit with so many warm-up mini-batches; bool, shape (N, N)."""
        upper = np.isfinite(states.time_s)
        needed = self.needed_bytes(states, self.in_flight(waiting))
        fitting: NDArray[np.bool_] = upper & (needed <= self.limit_bytes)
        return fitting

    def stage_bytes(self, states: States, first: int, last: int, in_flight: int) -> float:
        """Bytes of a device that runs ``[first, last)``."""
        return float(self.needed_bytes(states, in_flight)[first, last - 1])

    def node_bytes(self, node: Node) -> float:
        """Bytes of a device that runs one node, for one mini-batch and without ``fixed_bytes``."""
        return self.stage_bytes(Chain((node,)), 0, 1, 1)


@dataclass(frozen=True)
class LayerGraph:
    """Nodes in an order in which they could run; ``output_bytes`` of each is its own tensor.

    ``readers`` of each node are the nodes that read its tensor.
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
        """For each node, the nodes whose tensors it reads."""
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
        """For each node, all nodes that must run for it, itself included."""
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

        A tensor crosses if a node after the cut reads it, or if no node does: the loss reads it.
        """
        waiting = [len(readers) for readers in self.readers]
        nodes: list[Node] = []
        crossing = Fraction(0)  # exact: what has crossed leaves no rounding
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


FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_MOST_NODES = 5_000
_STARTS = tuple(f"{field}=" for field in FIELDS)
_LARGEST = 1e30
_INPUT = re.compile(r"Input\d*(\W.*)?")
_SIZE = re.compile(r"Size\b.*")
_LINES = (
    "one for each node, 'node2 -- ReLU() -- forward_compute_time=0.5, backward_compute_time=0.7, "
    "activation_size=8.0, parameter_size=0.0', and one for each edge, 'node1 -- node2'"
)


@dataclass(frozen=True)
class GraphNode:
    """A node of ``graph.txt``.

    Args:
        line: where it stands.
        name: as the edges call it.
        layer: what the profiler calls it, ``ReLU(inplace)``.
        forward_ms, backward_ms: of one mini-batch.
        output_bytes: of one mini-batch.
        parameter_bytes: of its weights.
    """

    line: int
    name: str
    layer: str
    forward_ms: float
    backward_ms: float
    output_bytes: float
    parameter_bytes: float


@dataclass(frozen=True)
class GraphFile:
    """The content of a ``graph.txt``: nodes by name, and edges (tensor's node, reader)."""

    nodes: dict[str, GraphNode]
    edges: tuple[tuple[str, str], ...]

    @property
    def inputs(self) -> list[GraphNode]:
        read = {reader for _, reader in self.edges}
        return [n for n in self.nodes.values() if n.name not in read and is_input(n.layer)]

    @property
    def layers(self) -> LayerGraph:
        """The network without its inputs and unused parts of outputs."""
        kept = _without_inputs(self.nodes, self.edges)
        place = {name: position for position, name in enumerate(kept)}
        return LayerGraph.of(
            [_node(self.nodes[name]) for name in kept],
            [(place[a], place[b]) for a, b in self.edges if a in place and b in place],
        )


def _node(node: GraphNode) -> Node:
    seconds = (node.forward_ms + node.backward_ms) / 1000.0
    return Node(node.name, seconds, node.output_bytes, node.output_bytes, node.parameter_bytes)


def graph_file(text: str, path: Path) -> GraphFile:
    """The nodes and edges in the text of a ``graph.txt``.

    Raises:
        ConfigError: it is none; the message names ``path`` and the line.
    """
    nodes: dict[str, GraphNode] = {}
    edges: dict[tuple[str, str], int] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line, where = raw.strip(), f"{path}, line {number}"
        if not line or line.startswith("#"):
            continue
        start = min((at for at in map(line.find, _STARTS) if at >= 0), default=-1)
        before, fields = (line[:start], line[start:]) if start >= 0 else (line, "")
        name, dashes, layer = (part.strip() for part in before.partition("--"))
        if fields and _is_name(name) and layer.endswith("--"):
            if name in nodes:
                raise ConfigError(
                    f"{where}: {shown(name)} is also in line {nodes[name].line}; write each "
                    "node once"
                )
            layer = layer.removesuffix("--").strip()
            fields = fields.partition("--")[0].strip()  # a stage_id follows
            nodes[name] = GraphNode(number, name, layer, *_costs(fields, where))
        elif not fields and _is_name(name) and dashes and _is_name(layer):
            edges.setdefault((name, layer), number)
        else:
            raise ConfigError(f"{where}: {shown(line)} is no node and no edge; write {_LINES}")
    if not nodes:
        raise ConfigError(f"{path} holds no node; PipeDream's graph.txt has lines, {_LINES}")
    _check(path, nodes, edges)
    if not _without_inputs(nodes, list(edges)):
        raise ConfigError(f"{path} holds no layer, only inputs; write a line for each layer")
    return GraphFile(nodes, tuple(edges))


def _is_name(text: str) -> bool:
    return len(text.split()) == 1


def is_input(layer: str) -> bool:
    """Whether the profiler calls an input of the network so."""
    return _INPUT.fullmatch(layer) is not None


def is_size(layer: str) -> bool:
    """Whether a layer reads the shape of its input, and not its values."""
    return _SIZE.fullmatch(layer) is not None


def number_of(text: str) -> float:
    """A number below 1e30, so that sums are numbers; else NaN."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if value < _LARGEST else math.nan


def _costs(fields: str, where: str) -> tuple[float, ...]:
    pairs = [field.partition("=") for field in fields.removesuffix(",").split(",")]
    values = {key.strip(): value.strip() for key, equals, value in pairs if equals}
    if len(values) != len(pairs) or not {*FIELDS} <= {*values}:
        raise ConfigError(
            f"{where}: {shown(fields)} is not {', '.join(f'{field}=NUMBER' for field in FIELDS)}; "
            "write each once, a point in a number, several outputs as [a; b; c]"
        )
    return tuple(_sum(values[field], field, where) for field in FIELDS)


def _sum(text: str, field: str, where: str) -> float:
    """A number, or the sum of several outputs ``[a; b; c]``."""
    outputs = field == "activation_size"
    several = outputs and text.startswith("[") and text.endswith("]")
    values = [number_of(part) for part in (text[1:-1].split(";") if several else [text])]
    if not all(value >= 0 for value in values):
        raise ConfigError(
            f"{where}: {field} is {shown(text)}; write a number from 0 to below {_LARGEST:g}"
            f"{', or several outputs as [a; b; c]' if outputs else ''}"
        )
    return sum(values)


def _check(path: Path, nodes: dict[str, GraphNode], edges: dict[tuple[str, str], int]) -> None:
    if len(nodes) > _MOST_NODES:
        raise ConfigError(
            f"{path}: {len(nodes)} nodes; join some until there are at most {_MOST_NODES}"
        )
    for (source, reader), number in edges.items():
        for name in (source, reader):
            if name not in nodes:
                raise ConfigError(
                    f"{path}, line {number}: an edge of {shown(name)}, which no line describes; "
                    "write its line, or correct the name"
                )
    try:
        TopologicalSorter(grouped((reader, source) for source, reader in edges)).prepare()
    except CycleError as error:
        ring = error.args[1]
        number = edges[ring[0], ring[1]]
        raise ConfigError(
            f"{path}, line {number}: this edge is part of a cycle, "
            f"{' -> '.join(ring[:4])}{' ...' if len(ring) > 4 else ''}; an edge leads from a node "
            "to one that runs after it"
        ) from None
    used = {name for edge in edges for name in edge}
    parts = [name for name, line in nodes.items() if name in used or not is_input(line.layer)]
    alone = _not_joined(parts, edges)
    if alone is not None:
        raise ConfigError(
            f"{path}, line {nodes[alone].line}: no edges join {shown(alone)} and "
            f"{shown(parts[0])}; write an edge line for each tensor that a node reads, "
            "'node1 -- node2', or leave out what the network does not use"
        )


def _not_joined(nodes: Sequence[str], edges: Iterable[tuple[str, str]]) -> str | None:
    """A node that no edges, whatever their direction, join to the first one."""
    beside: dict[str, list[str]] = {name: [] for name in nodes}
    for source, reader in edges:
        beside[source].append(reader)
        beside[reader].append(source)
    ahead = list(nodes[:1])
    joined = set(ahead)
    while ahead:
        new = set(beside[ahead.pop()]) - joined
        joined |= new
        ahead += new
    return next((name for name in beside if name not in joined), None)


def _without_inputs(nodes: dict[str, GraphNode], edges: Sequence[tuple[str, str]]) -> list[str]:
    read = {reader for _, reader in edges}
    used = {source for source, _ in edges}
    return [
        name
        for name, line in nodes.items()
        if not (name not in read and is_input(line.layer))
        and not (name not in used and line.layer.startswith("__getitem__"))
    ]
