"""A cell's recorded step as Chakra execution traces, one a device, for simulators and replayers.

::

    forward --- backward ----- backward ----- backward ----- update        COMP nodes
                    '-- bucket 0 ------------------------------^           COMM_COLL nodes
                                   '-- bucket 1 ---------------'

* **A pipeline** gives the actions of its schedule, for one step, or for all recorded mini-batches
  where it never flushes. A pass takes its median in the cell. A send follows the pass that made
  what is sent; a pass follows what it receives.
* **Another strategy** gives the step with the median duration as each rank recorded it. A backward
  pass is cut where messages leave beside it. What follows a wait follows all messages so far.

A wait is no node, as it follows from the messages. Bytes of messages are those of the site's
profile, else of the built-in tables of networks (float32). Where they do not say how much each
message holds, all of a step share the gradients evenly, and ``comm_size_from`` says so.

A file has the wire format of Protocol Buffers. Only what these traces need of the schema is
written, so no library is needed::

    file     | length | GlobalMetadata | length | Node | length | Node | ...      length: a varint
    Node     id, name, type, ctrl_deps, data_deps, start and duration (us), attr
    attr     name and one value: comm_type, comm_size, comm_src, comm_dst, comm_tag, ...

Sources: mlcommons/chakra, schema/protobuf/et_def.proto, version 1.0.0; "Encoding" in the
documentation of Protocol Buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path

from ddlbench.common.document import json_text
from ddlbench.common.errors import ConfigError
from ddlbench.planning.block_costs import block_costs
from ddlbench.planning.data_parallel import DataParallel
from ddlbench.planning.pipeline import PlannedSchedule
from ddlbench.planning.planner import StrategyPlan
from ddlbench.planning.schedules import Action
from ddlbench.planning.workload import Workload
from ddlbench.predict.inputs import Inputs
from ddlbench.report.timeline.box import BESIDE, WAIT, Box, InvalidTimeline, Row, windows_of
from ddlbench.report.timeline.cell import measured_durations, read_recorded, site_folder

VERSION = "1.0.0"
_VARINT, _DELIMITED = 0, 2  # wire types
# Numbers of fields in et_def.proto.
_ID, _NAME, _TYPE, _DATA, _START, _DURATION, _ATTRIBUTE = 1, 2, 3, 5, 6, 7, 10
_INT64, _BOOL, _STRING = 9, 27, 29  # of an attribute's value


class NodeType(IntEnum):
    """Kinds of nodes."""

    COMP = 4
    SEND = 5
    RECEIVE = 6
    COLLECTIVE = 7


class Collective(IntEnum):
    """Collective operations, as ``comm_type`` names them."""

    ALL_REDUCE = 0
    ALL_GATHER = 2
    REDUCE_SCATTER = 7


@dataclass
class Node:
    """A piece of work.

    Args:
        number: its id, from 1 on; the file is in this order.
        name: for a reader.
        type: what it is.
        after: nodes that must have ended.
        start_us, duration_us: microseconds; 0 where nothing was recorded.
        attributes: integers are written as int64.
    """

    number: int
    name: str
    type: NodeType
    after: Sequence[int] = ()
    start_us: int = 0
    duration_us: int = 0
    attributes: dict[str, int | bool | str] = field(default_factory=dict)


def trace_bytes(nodes: Iterable[Node], about: dict[str, str]) -> bytes:
    """The content of a file of one rank, which simulators want as ``<name>.<rank>.et``.

    Args:
        nodes: in the order of their numbers.
        about: attributes of the file.
    """
    metadata = _text(1, VERSION) + b"".join(
        _field(2, _attribute(name, value)) for name, value in about.items()
    )
    messages = (metadata, *map(encoded, nodes))
    return b"".join(_varint(len(message)) + message for message in messages)


def encoded(node: Node) -> bytes:
    """A node in the wire format."""
    after = b"".join(map(_varint, sorted(set(node.after))))
    return b"".join(
        (
            _number(_ID, node.number),
            _text(_NAME, node.name),
            _number(_TYPE, node.type),
            _field(_DATA, after) if after else b"",
            _number(_START, node.start_us) if node.start_us else b"",
            _number(_DURATION, node.duration_us) if node.duration_us else b"",
            *(_field(_ATTRIBUTE, _attribute(*pair)) for pair in node.attributes.items()),
        )
    )


def _attribute(name: str, value: int | bool | str) -> bytes:
    if isinstance(value, str):
        return _text(1, name) + _text(_STRING, value)
    kind = _BOOL if isinstance(value, bool) else _INT64
    return _text(1, name) + _number(kind, int(value))


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode())


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _DELIMITED) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; a negative number as 64 bits of two's complement."""
    value &= 2**64 - 1
    groups = []
    while True:
        value, low = value >> 7, value & 0x7F
        groups.append(low | (0x80 if value else 0))
        if not value:
            return bytes(groups)


_COLLECTIVES = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_reduce_bucket": Collective.ALL_REDUCE,
    "gather": Collective.ALL_GATHER,
    "scatter": Collective.REDUCE_SCATTER,
}
_PROFILE, _TABLES, _EVENLY = "profile", "built-in tables", "gradients over messages, evenly"
_US_PER_S = 1e6


def chakra_files(folder: Path) -> dict[str, bytes]:
    """``step.N.et`` for each device of a cell.

    ``comm_groups.json`` is beside them where collectives are of some ranks only: the ranks
    of each ``pg_name``, as ASTRA-sim reads them.

    Raises:
        InvalidTimeline: the folder is no cell's, nothing is recorded in it, or its messages are not
            part of what is recorded.
    """
    plan, rows, boxes = read_recorded(folder)
    sizes = Sizes(plan, folder)
    schedule = _schedule(plan, boxes)
    if schedule is not None:
        graphs = _Pipeline(plan, schedule, sizes, rows, boxes).graphs()
    else:
        graphs = _recorded(plan, sizes, rows, boxes, folder)
    about = {"schema": "chakra 1.0.0", "cell": plan.cell.id, "written_by": "ddlbench"}
    files = {
        f"step.{number}.et": trace_bytes(graph.nodes, about) for number, graph in enumerate(graphs)
    }
    groups = {name: list(ranks) for graph in graphs for name, ranks in graph.groups.items()}
    if groups:
        files["comm_groups.json"] = json_text(groups).encode()
    return files


@dataclass
class Graph:
    """The nodes of one rank, and the groups of its collectives."""

    nodes: list[Node] = field(default_factory=list)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def compute(self, name: str, after: Iterable[int], seconds: float, start_s: float = 0) -> int:
        node = self._add(name, NodeType.COMP, after)
        node.start_us, node.duration_us = _us(start_s), _us(seconds)
        return node.number

    def collective(
        self,
        name: str,
        kind: Collective,
        after: Iterable[int],
        size: tuple[float, str] | None,
        *,
        among: Sequence[int] = (),
        box: Box | None = None,
    ) -> int:
        """Add a collective; ``among`` its ranks where they are not all."""
        node = self._add(name, NodeType.COLLECTIVE, after)
        if box is not None:
            node.start_us, node.duration_us = _us(box.start_s), _us(box.end_s - box.start_s)
        node.attributes["comm_type"] = int(kind)
        _of_size(node, size)
        if among:
            group = "-".join(map(str, among))
            self.groups[group] = tuple(among)
            node.attributes["pg_name"] = group
        return node.number

    def message(
        self,
        name: str,
        kind: NodeType,
        after: Iterable[int],
        size: tuple[float, str] | None,
        *,
        ends: tuple[int, int],
        tag: int,
    ) -> int:
        """Add a send or receive; ``ends``: the sender and the receiver."""
        node = self._add(name, kind, after)
        _of_size(node, size)
        node.attributes |= {"comm_src": ends[0], "comm_dst": ends[1], "comm_tag": tag}
        return node.number

    def _add(self, name: str, kind: NodeType, after: Iterable[int]) -> Node:
        node = Node(len(self.nodes) + 1, name, kind, tuple(after), attributes={"is_cpu_op": False})
        self.nodes.append(node)
        return node


def _us(seconds: float) -> int:
    return round(seconds * _US_PER_S)


def _of_size(node: Node, size: tuple[float, str] | None) -> None:
    if size is not None:
        node.attributes |= {"comm_size": round(size[0]), "comm_size_from": size[1]}


@dataclass(frozen=True)
class Sizes:
    """Bytes of messages; each with where they are from, or None where nothing says."""

    plan: StrategyPlan
    folder: Path

    @cached_property
    def workload(self) -> Workload | None:
        """The site's profile of the cell's network, if it has one."""
        cell = self.plan.cell
        try:
            site = site_folder(self.folder, cell)
            return Inputs(site.name, site.parent, calibrated=False).workload(cell)
        except (ConfigError, ValueError, OSError):
            return None

    @cached_property
    def _blocks(self) -> tuple[list[tuple[float, float]], str] | None:
        """Bytes of weights, and of the output of a sample, of each block."""
        if self.workload is not None:
            blocks = self.workload.blocks
            return [(block.parameter_bytes, block.output_bytes) for block in blocks], _PROFILE
        costs = block_costs(self.plan.cell.network, self.plan.cell.dataset)
        if costs is None or self.plan.cell.precision != "fp32":
            return None
        return [(cost.parameter_bytes, cost.output_bytes) for cost in costs], _TABLES

    def weights(self, first: int = 0, last: int | None = None) -> tuple[float, str] | None:
        """Bytes of the weights of blocks from ``first`` to before ``last``, with their source."""
        if self._blocks is None:
            return None
        blocks, source = self._blocks
        return sum(weights for weights, _ in blocks[first:last]), source

    def output(self, block: int, samples: float) -> tuple[float, str] | None:
        if self._blocks is None or not 0 <= block < len(self._blocks[0]):
            return None
        blocks, source = self._blocks
        return blocks[block][1] * samples, source

    def gradients(self, count: int) -> list[tuple[float, str]] | None:
        """Bytes of each of the ``count`` messages with a step's gradients, and their source."""
        planned = self._planned_gradients
        if len(planned) == count:
            return [(size, _PROFILE) for size in planned]
        if not isinstance(self.plan.strategy, DataParallel):
            return None
        whole = self.weights()
        return None if whole is None else [(whole[0] / count, _EVENLY)] * count

    @cached_property
    def _planned_gradients(self) -> list[float]:
        if self.workload is None:
            return []
        try:
            step = self.plan.strategy.step(self.workload, self.plan)
        except ConfigError:
            return []
        return [] if step is None else step.fused


def _schedule(plan: StrategyPlan, boxes: Sequence[Box]) -> PlannedSchedule | None:
    """The schedule of one step, or of all recorded mini-batches where steps overlap."""
    numbers = {box.mini_batch for box in boxes}
    schedule = plan.strategy.schedule_of(plan, 1)
    if schedule is None or schedule.flushes:
        return schedule
    return plan.strategy.schedule_of(plan, max(numbers) - min(numbers) + 1)


class _Pipeline:
    def __init__(
        self,
        plan: StrategyPlan,
        schedule: PlannedSchedule,
        sizes: Sizes,
        rows: Sequence[Row],
        boxes: Sequence[Box],
    ) -> None:
        durations, missing = measured_durations(schedule, boxes, rows)
        if durations is None:
            raise InvalidTimeline(f"{sizes.folder}: nothing is recorded of {missing}")
        self._durations, self._sizes = durations, sizes
        self._schedule = schedule
        self._stages, self._samples = _stages_of(plan, sizes)

    def graphs(self) -> list[Graph]:
        actions = self._schedule.schedule.actions
        return [self._graph(rank, of_rank) for rank, of_rank in enumerate(actions)]

    def _graph(self, rank: int, actions: Sequence[Action]) -> Graph:
        graph, last, awaited = Graph(), 0, list[int]()
        for action in actions:
            before = [last] if last else []
            if action.peer is not None:
                sends = action.kind.startswith("send")
                ends = (rank, action.peer) if sends else (action.peer, rank)
                kind = NodeType.SEND if sends else NodeType.RECEIVE
                size, tag = self._message(action, sends)
                number = graph.message(str(action), kind, before, size, ends=ends, tag=tag)
                if not sends:
                    awaited.append(number)
            elif action.kind == "all_reduce":
                among = self._schedule.schedule.stage_ranks[action.stage]
                stages = self._stages
                size = None if stages is None else self._sizes.weights(*stages[action.stage])
                kind_of_sum = Collective.ALL_REDUCE
                awaited.append(
                    graph.collective(str(action), kind_of_sum, before, size, among=among)
                )
            else:
                name = f"{self._schedule.kind_of(action)} stage {action.stage} {action.micro_batch}"
                last = graph.compute(name, [*before, *awaited], self._durations(action))
                awaited = []
        return graph

    def _message(self, action: Action, sends: bool) -> tuple[tuple[float, str] | None, int]:
        """Bytes of a message, and a tag that only its two ends have."""
        gradient = action.kind.endswith("gradient")
        boundary = action.stage - 1 if gradient == sends else action.stage
        tag = 2 * (action.micro_batch * self._schedule.schedule.num_stages + boundary) + gradient
        if self._stages is None or not 0 <= boundary < len(self._stages):
            return None, tag
        return self._sizes.output(self._stages[boundary][1] - 1, self._samples), tag


def _stages_of(plan: StrategyPlan, sizes: Sizes) -> tuple[list[tuple[int, int]] | None, float]:
    """The blocks of each stage, the first and the one after the last, and the samples of a pass."""
    pipeline = plan.strategy.pipeline_of(plan)
    if pipeline is not None:
        return [(stage.first, stage.last) for stage in pipeline.stages], pipeline.samples
    samples = plan.cell.batch_size / max(1, plan.strategy.micro_batches(plan))
    if sizes.workload is None:
        return None, samples
    stages, first = [], 0
    for blocks in plan.strategy.stage_blocks(sizes.workload, plan):
        stages.append((first, first + len(blocks)))
        first += len(blocks)
    return stages, samples


def _recorded(
    plan: StrategyPlan, sizes: Sizes, rows: Sequence[Row], boxes: Sequence[Box], folder: Path
) -> list[Graph]:
    """The graphs of the step with the median duration, as it was recorded."""
    step = windows_of((), boxes, None, len(rows), 1)[0].first
    graphs = []
    for number in range(len(rows)):
        of_rank = [box for box in boxes if box.row == number and box.mini_batch == step]
        graphs.append(_recorded_graph(plan, sizes, number, of_rank))
    if plan.cell.devices > 1 and all(
        node.type == NodeType.COMP for graph in graphs for node in graph.nodes
    ):
        raise InvalidTimeline(
            f"{folder}: strategy {plan.cell.strategy} records no messages, so that its step is no "
            "Chakra trace; write another format"
        )
    return graphs


def _recorded_graph(plan: StrategyPlan, sizes: Sizes, rank: int, boxes: Sequence[Box]) -> Graph:
    graph = Graph()
    beside = sorted((box for box in boxes if box.kind in BESIDE), key=lambda box: box.start_s)
    sums = sizes.gradients(len(beside)) if beside else None
    main = sorted((box for box in boxes if box.kind not in BESIDE), key=lambda box: box.start_s)
    alone = [box for box in main if box.kind == "all_reduce"] if not beside else []
    whole = sizes.gradients(len(alone)) if alone else None
    last: list[int] = []
    sent: list[int] = []  # beside computation, and nobody has waited for them yet
    begun = 0
    for box in main:
        if box.kind == WAIT or (box.kind == "all_reduce" and beside):
            last, sent = [*last, *sent], []
            continue
        if box.kind in ("all_reduce", "gather", "scatter"):
            size = _size_of(box, sizes, whole[alone.index(box)] if whole and box in alone else None)
            kind = _COLLECTIVES[box.kind]
            last = [graph.collective(_name(box), kind, last, size, box=box)]
            continue
        if box.kind == "halo":
            last = _swap(graph, plan, rank, box, last)
            continue
        at_s = box.start_s
        while begun < len(beside) and beside[begun].start_s < box.end_s:
            leaves_s = max(at_s, beside[begun].start_s)
            if leaves_s > at_s:
                last = [graph.compute(_name(box), last, leaves_s - at_s, at_s)]
                at_s = leaves_s
            sent.append(_send(graph, beside[begun], last, sums[begun] if sums else None))
            begun += 1
        if box.kind == "update":
            last, sent = [*last, *sent], []
        last = [graph.compute(_name(box), last, box.end_s - at_s, at_s)]
    for place in range(begun, len(beside)):
        _send(graph, beside[place], last, sums[place] if sums else None)
    return graph


def _send(graph: Graph, box: Box, last: Sequence[int], size: tuple[float, str] | None) -> int:
    kind = _COLLECTIVES.get(box.kind, Collective.ALL_REDUCE)
    return graph.collective(_name(box), kind, last, size, box=box)


def _size_of(box: Box, sizes: Sizes, share: tuple[float, str] | None) -> tuple[float, str] | None:
    """A unit of FSDP is a block, whose weights it gathers and whose gradients it scatters."""
    if box.kind == "all_reduce":
        return share
    return None if box.micro_batch is None else sizes.weights(box.micro_batch, box.micro_batch + 1)


def _swap(graph: Graph, plan: StrategyPlan, rank: int, box: Box, last: Sequence[int]) -> list[int]:
    """Rows that a rank swaps with its neighbours of the same replica."""
    replica = plan.processes[rank].replica
    tag = len(graph.nodes)
    received = []
    for process in plan.processes:
        if process.replica == replica and abs(process.rank - rank) == 1:
            ends = (rank, process.rank)
            graph.message(f"{_name(box)} send", NodeType.SEND, last, None, ends=ends, tag=tag)
            received.append(
                graph.message(
                    f"{_name(box)} receive", NodeType.RECEIVE, last, None, ends=ends[::-1], tag=tag
                )
            )
    return received or list(last)


def _name(box: Box) -> str:
    return box.kind if box.micro_batch is None else f"{box.kind} {box.micro_batch}"
