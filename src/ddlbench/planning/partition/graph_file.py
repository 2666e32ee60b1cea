"""PipeDream's ``graph.txt``: a profiled network, nodes and edges.

A line is a node or an edge, in any order. Times are milliseconds of one mini-batch, sizes bytes;
several outputs of a node are ``[a; b; c]``::

    node2 -- ReLU() -- forward_compute_time=0.5, backward_compute_time=0.7, activation_size=8.0, ...
            node1 -- node2

``stage_id``, which PipeDream's optimizer adds, is not read. As there, an ``Input`` counts for
nothing, since a stage that needs it can load it, and an unused ``__getitem__`` is left out.

Source: ``graph/graph.py`` and ``optimizer/optimizer_graph_hierarchical.py`` of the PipeDream
release (github.com/msr-fiddle/pipedream).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from ddlbench.common.errors import ConfigError, shown
from ddlbench.planning.partition.chain import Node
from ddlbench.planning.partition.graph import LayerGraph

FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
MOST_NODES = 5_000
_STARTS = tuple(f"{field}=" for field in FIELDS)
_LARGEST = 1e30
_INPUT = re.compile(r"Input\d*(\W.*)?")
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


def graph_of(text: str, path: Path) -> LayerGraph:
    """The network that the text of a ``graph.txt`` describes.

    Raises:
        ConfigError: it is none; the message names ``path`` and the line.
    """
    return graph_file(text, path).layers


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
            fields = fields.partition("--")[0].strip()  # behind them is a stage_id
            nodes[name] = GraphNode(number, name, layer, *_costs(fields, where))
        elif not fields and _is_name(name) and dashes and _is_name(layer):
            edges.setdefault((name, layer), number)
        else:
            raise ConfigError(f"{where}: {shown(line)} is no node and no edge; write {_LINES}")
    if not nodes:
        raise ConfigError(f"{path}: holds no node; PipeDream's graph.txt has lines, {_LINES}")
    _check(path, nodes, edges)
    if not _without_inputs(nodes, list(edges)):
        raise ConfigError(f"{path}: holds no layer, only inputs; write a line for each layer")
    return GraphFile(nodes, tuple(edges))


def _is_name(text: str) -> bool:
    return len(text.split()) == 1


def is_input(layer: str) -> bool:
    """Whether the profiler calls an input of the network so."""
    return _INPUT.fullmatch(layer) is not None


def number_of(text: str) -> float:
    """A number below 1e30, so that sums are numbers; else NaN."""
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if value < _LARGEST else math.nan


def _costs(fields: str, where: str) -> tuple[float, ...]:
    """Milliseconds forward and backward, bytes of the output and of the weights."""
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
            f"{where}: {field} is {shown(text)}; write a number that is 0 or more"
            f"{', or several outputs as [a; b; c]' if outputs else ''}"
        )
    return sum(values)


def _check(path: Path, nodes: dict[str, GraphNode], edges: dict[tuple[str, str], int]) -> None:
    """Whether the edges join all nodes, and go forward."""
    if len(nodes) > MOST_NODES:
        raise ConfigError(
            f"{path}: {len(nodes)} nodes; join some until there are at most {MOST_NODES}"
        )
    for (source, reader), number in edges.items():
        for name in (source, reader):
            if name not in nodes:
                raise ConfigError(
                    f"{path}, line {number}: an edge of {shown(name)}, which no line describes; "
                    "write its line, or correct the name"
                )
    try:
        TopologicalSorter(_sources(edges)).prepare()
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


def _sources(edges: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    sources: dict[str, list[str]] = {}
    for source, reader in edges:
        sources.setdefault(reader, []).append(source)
    return sources


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
    """The nodes that are neither an input of the network nor an unused part of an output."""
    read = {reader for _, reader in edges}
    used = {source for source, _ in edges}
    return [
        name
        for name, line in nodes.items()
        if not (name not in read and is_input(line.layer))
        and not (name not in used and line.layer.startswith("__getitem__"))
    ]
