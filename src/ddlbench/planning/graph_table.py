"""Makes the table of a device from PipeDream's ``graph.txt``, the profile of a branching network.

::

    node5 --+-> node6 -> node7 -----------------+
            +-> node8 --------------------------+-> node9 Add -> node10 ReLU(inplace) -> node11
    |  block  |            one block: two tensors cross every cut in it              | block

A pipeline cuts where one tensor passes, and never between a sum and the ReLU that overwrites it, or
between several outputs and the ``__getitem__`` that takes one of them. A
``Size`` reads the shape of the tensor before a ``View``, so both are one block. Where the built-in
network of that name has a block more there, ``Size`` is that block: the average pooling of AlexNet
and VGG-16, which does nothing at 224 x 224. A network that is cut as the built-in one gets the
names of its blocks.

Rules give what the file lacks. The bytes of the input tell the mini-batch. A layer saves the tensor
that it reads, and a sum saves nothing. The layer's text tells its weights from its bias. The halves
of a backward pass are those of :func:`ddlbench.planning.workload.backward_shares`. Buffers are 0.

Source: profiler/image_classification of github.com/msr-fiddle/pipedream (Narayanan et al., SOSP
2019).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.fits import Timing
from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.planning.block_costs import block_costs, cut_alike
from ddlbench.planning.device_table import HOST_PARTS, DeviceTable
from ddlbench.planning.partition.graph import GraphFile, GraphNode, graph_file, is_size
from ddlbench.planning.partition.profiles import text_of
from ddlbench.planning.workload import FLOAT32_BYTES, Block, backward_shares

LACKS = (
    "A second batch size: times are in proportion to the batch.",
    "Buffers, such as the statistics of batch norm.",
    "Saved activations: each layer is taken to save the tensor that it reads, a sum nothing.",
    "The halves of the backward pass: half each of a layer with weights, both of batch norm.",
    HOST_PARTS,
)
_CONVOLUTION = re.compile(r"Conv(?:Transpose)?\dd\(\d+, (\d+),.*")
_LINEAR = re.compile(r"Linear\(.*out_features=(\d+),.*")


def table_of_graph(path: Path, network: str, spec: DatasetSpec) -> DeviceTable:
    """The table of a network that a ``graph.txt`` describes.

    A built-in network gives the blocks their names; the samples of ``spec`` tell the size of the
    mini-batch.

    Raises:
        ConfigError: it is no such file, or of another dataset.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; write the path of PipeDream's graph.txt")
    graph = graph_file(text_of(path), path)
    batch_size = _batch_size(graph, spec, path)
    costs = block_costs(network, spec.name)
    tables = [
        _Cutting(graph, batch_size, spec, path, shapes_apart=apart).table()
        for apart in (False, True)
    ]
    alike = [table for table in tables if costs is not None and cut_alike(table, costs)]
    if costs is None or not alike:
        return tables[0]
    blocks = tuple(
        replace(block, name=cost.name) for block, cost in zip(alike[0].blocks, costs, strict=True)
    )
    return replace(alike[0], blocks=blocks)


def _batch_size(graph: GraphFile, spec: DatasetSpec, path: Path) -> int:
    if len(graph.inputs) != 1:
        raise ConfigError(
            f"{path} has {len(graph.inputs)} inputs; its one Input node must say how many bytes "
            "a mini-batch has"
        )
    (given,) = graph.inputs
    samples = given.output_bytes / spec.input_bytes
    if samples < 1 or samples != int(samples):
        raise ConfigError(
            f"{path}, line {given.line}: {given.output_bytes:.0f} bytes are no whole number of "
            f"samples of {spec.name} ({spec.input_bytes} bytes each); name the dataset that was "
            "profiled"
        )
    return int(samples)


@dataclass(frozen=True)
class _Cutting:
    """A graph that is cut into blocks.

    With ``shapes_apart`` a ``Size`` is a block of its own and hands on the tensor whose shape it
    reads.
    """

    graph: GraphFile
    batch_size: int
    spec: DatasetSpec
    path: Path
    shapes_apart: bool

    def table(self) -> DeviceTable:
        ends = self._ends()
        spans = list(zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True))
        tensors = [_tensors_of(self._nodes[first : last + 1], self.path) for first, last in spans]
        blocks: list[Block] = []
        entering = float(self.spec.input_bytes)
        for (first, last), tensors_of_block in zip(spans, tensors, strict=True):
            blocks.append(self._block(first, last, entering, sum(tensors_of_block.values())))
            entering = blocks[-1].output_bytes
        wanted = FLOAT32_BYTES * self.spec.num_classes
        if entering != wanted:
            raise ConfigError(
                f"{self.path}: its last layer gives {entering:.0f} bytes a sample, "
                f"{self.spec.name} needs {wanted}; name the dataset that was profiled"
            )
        return DeviceTable((self.batch_size,), tuple(blocks), tuple(tensors))

    @cached_property
    def _nodes(self) -> list[GraphNode]:
        """In an order in which the network could run."""
        return [self.graph.nodes[node.name] for node in self.graph.layers.nodes]

    @cached_property
    def _read(self) -> list[set[int]]:
        """The nodes that each node reads; not what comes through a ``Size`` that it reads."""
        read = [set(sources) for sources in self.graph.layers.read]
        if self.shapes_apart:
            for sources in read:
                sizes = [source for source in sources if self._is_shape(source)]
                sources.difference_update(*(read[size] for size in sizes))
        return read

    def _is_shape(self, node: int) -> bool:
        return is_size(self._nodes[node].layer)

    def _tensors_read(self, node: int) -> list[int]:
        """What it reads besides shapes."""
        return [n for n in self._read[node] if self.shapes_apart or not self._is_shape(n)]

    def _ends(self) -> list[int]:
        """The last node of each block."""
        last_reader = list(range(len(self._nodes)))
        for node, sources in enumerate(self._read):
            for source in sources:
                last_reader[source] = max(last_reader[source], node)
        last = len(self._nodes) - 1
        return [
            node
            for node in range(len(self._nodes))
            if node == last
            or (
                last_reader[node] > node
                and all(last_reader[earlier] <= node for earlier in range(node))
                and not self._belongs_to_next(node)
            )
        ]

    def _belongs_to_next(self, node: int) -> bool:
        """Whether the next layer overwrites this sum, or takes one of these outputs."""
        following = self._nodes[node + 1].layer
        return following.startswith("__getitem__") or (
            len(self._tensors_read(node)) > 1 and "inplace" in following
        )

    def _output_bytes(self, node: int) -> float:
        if self.shapes_apart and self._is_shape(node):
            return self._entering_bytes(node)
        return self._nodes[node].output_bytes

    def _entering_bytes(self, node: int) -> float:
        sources = self._tensors_read(node)
        if not self._read[node]:
            return float(self.batch_size * self.spec.input_bytes)
        return sum(self._output_bytes(source) for source in sources)

    def _block(self, first: int, last: int, entering: float, parameter_bytes: int) -> Block:
        nodes = self._nodes[first : last + 1]
        saving = [
            node
            for node in range(first, last + 1)
            if len(self._tensors_read(node)) < 2 and (self.shapes_apart or not self._is_shape(node))
        ]
        name = nodes[0].name if first == last else f"{nodes[0].name}_to_{nodes[-1].name}"
        forward_s = sum(node.forward_ms for node in nodes) / 1e3
        backward_s = sum(node.backward_ms for node in nodes) / 1e3
        return Block(
            name=re.sub(r"[^\w-]", "_", name),
            parameter_bytes=parameter_bytes,
            buffer_bytes=0,
            input_bytes=entering,
            output_bytes=self._output_bytes(last) / self.batch_size,
            saved_bytes=sum(map(self._entering_bytes, saving)) / self.batch_size,
            forward=Timing.through([(self.batch_size, forward_s)], name),
            backward=Timing.through([(self.batch_size, backward_s)], name),
            **backward_shares(list(self._layers(nodes))),
        )

    def _layers(self, nodes: Sequence[GraphNode]) -> Iterator[dict[str, object]]:
        for node in nodes:
            timed = {"batch_size": self.batch_size, "time_s": node.backward_ms / 1e3}
            kind, size = _kind(node), node.parameter_bytes
            yield {"kind": kind, "parameter_bytes": size, "backward": [timed]}


def _kind(node: GraphNode) -> str:
    return node.layer.partition("(")[0]


def _tensors_of(nodes: Sequence[GraphNode], path: Path) -> dict[str, int]:
    weighted = [node for node in nodes if node.parameter_bytes]
    tensors: dict[str, int] = {}
    for node in weighted:
        if node.parameter_bytes % FLOAT32_BYTES:
            raise ConfigError(
                f"{path}, line {node.line}: parameter_size {shown(node.parameter_bytes)} is no "
                "number of float32 values; write a multiple of 4"
            )
        prefix = "" if len(weighted) == 1 else re.sub(r"\W", "_", f"{node.name}_", flags=re.ASCII)
        whole, bias = int(node.parameter_bytes), _bias_bytes(node)
        tensors[f"{prefix}weight"] = whole - bias
        if bias:
            tensors[f"{prefix}bias"] = bias
    return tensors


def _bias_bytes(node: GraphNode) -> int:
    """Bytes of a layer's bias, by its text; 0 if it has none, or its text does not tell."""
    whole = int(node.parameter_bytes)
    if "bias=False" in node.layer:
        return 0
    if "Norm" in _kind(node):  # a scale and a shift of each channel
        return whole // 2 if whole % (2 * FLOAT32_BYTES) == 0 else 0
    outputs = _CONVOLUTION.fullmatch(node.layer) or _LINEAR.fullmatch(node.layer)
    bias = FLOAT32_BYTES * int(outputs[1]) if outputs else 0
    return bias if bias < whole else 0
