"""What a strategy computes and sends in one step, as data.

A step is the program of one rank: a list of computations and messages without seconds. It holds
shares of a sequential step, and bytes. Whoever has a profile and links gives them seconds
and says when each of them begins and ends (:mod:`ddlbench.predict.step_replay`)::

    task   lane      DDP of three buckets             replay
    0      compute   load, forward                    compute | l F F F F | B B | B B B B | B |.......| U |
    1      compute   backward, up to bucket 0         link                      |- m0 -|- m1 -----|m2|
    2      link      all-reduce of bucket 0
    3      compute   backward, up to bucket 1         a task begins when its lane is free, what it
    4      link      all-reduce of bucket 1           waits for is there, and the computations that
    5      compute   the rest of backward             stand before it in the list have ended
    6      link      all-reduce of bucket 2
    7      compute   update, waits for 2, 4, 6

A message on the lane ``compute`` holds up its rank; on another lane it travels beside computation.

Devices may work in groups. Each computes the same samples, other groups others::

    8 devices, groups of 4     ranks 0 1 2 3   replica 0   its half of the mini-batch
                               ranks 4 5 6 7   replica 1   the other half

All-reduces of gradients leave while the backward pass runs::

    backward   | layer n ........ layer 1 |
    messages          |-- m0 --| |-- m1 --| |-m2-|     m0 leaves when its last gradient is ready

Gradients are grouped into buckets; one all-reduce sums a bucket::

    gradients      | a | b |   c   | d | e | f |      in the order in which they are sent
    buckets        | a   b |   c   | d   e   f |      closed before a gradient would exceed the cap
    DDP's          | a |  b    c   | d   e   f |      closed once full; the first is smaller

Sources: Li et al., "PyTorch Distributed" (VLDB 2020), section 3.2, for DDP's buckets and 25 MiB;
Sergeev and Del Balso, "Horovod" (2018), section 4, for the fusion buffer.
"""  # noqa: E501 - the picture

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, starmap
from typing import TYPE_CHECKING, Literal

from ddlbench.common.form import Natural
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason
from ddlbench.planning.plan import Options, Plan

if TYPE_CHECKING:
    from ddlbench.planning.workload import Tensor


@dataclass(frozen=True)
class Group:
    """The shape of ranks among which a message travels.

    Args:
        nodes, devices_per_node: over which they are spread.
        sharing: groups like it that send over the links of the same node at once.
    """

    nodes: int
    devices_per_node: int
    sharing: int = 1

    @classmethod
    def widest(cls, plan: Plan, ranks: range) -> Group:
        """The group over the most nodes, of those that all ranks make in the manner of ``ranks``.

        A step waits for its slowest group. Groups that do not fill nodes differ::

            node 0   [ 0 1 2 ] [ 3        3 x 4 devices, groups of 3: ranks 0 to 2 are on one
            node 1     4 5 ] [ 6 7        node, ranks 3 to 5 on two
        """
        extent = len(ranks) * ranks.step
        groups = [
            range(begin + place, begin + place + extent, ranks.step)
            for begin in range(0, plan.world_size, extent)
            for place in range(ranks.step)
        ]
        widest = max((cls.of(plan, group) for group in groups), key=lambda group: group.nodes)
        spread = [{plan.processes[rank].node for rank in group} for group in groups]
        crossing = Counter(node for nodes in spread if len(nodes) > 1 for node in nodes)
        return replace(widest, sharing=max(crossing.values(), default=1))

    @classmethod
    def of(cls, plan: Plan, ranks: Sequence[int]) -> Group:
        nodes = [plan.processes[rank].node for rank in ranks]
        spread = len(set(nodes))
        if spread == 1:
            return cls(1, len(ranks))
        sharing = max(1, plan.cell.devices_per_node // nodes.count(nodes[0]))
        if len(ranks) % spread:  # no such geometry is swept: as if each had a node of its own
            spread = len(ranks)
        return cls(spread, len(ranks) // spread, sharing)


@dataclass(frozen=True, kw_only=True)
class GroupOptions(Options):
    """Options of strategies whose devices work in groups."""

    group: Natural = 0
    """Devices that compute the same samples together; 0 takes the devices of a node."""


def why_uneven(batch_size: int, workers: int) -> Reason | None:
    """Why a mini-batch cannot be shared equally; None if it can."""
    if batch_size % workers == 0:
        return None
    return Reason(
        "uneven_batch",
        f"a mini-batch of {batch_size} does not divide over {workers} workers; make batch_size a "
        f"multiple of {workers}",
    )


def uneven_groups(cell: Cell, size: int) -> str | None:
    """Why the devices do not make equal groups of ``size`` with equal samples; None if they do."""
    devices = cell.devices
    if devices % size:
        return Reason(
            "uneven_groups",
            f"{devices} devices do not make equal groups of {size}; write another group",
        )
    groups = devices // size
    if cell.batch_size % groups:
        return Reason(
            "uneven_batch",
            f"a mini-batch of {cell.batch_size} does not divide over {groups} groups; "
            f"make batch_size a multiple of {groups}",
        )
    return None


def larger_groups(cell: Cell) -> Iterator[int]:
    """Groups of several whole nodes, smallest first, over which the mini-batch divides."""
    for nodes in range(2, cell.nodes):
        if cell.nodes % nodes == 0 and cell.batch_size % (cell.nodes // nodes) == 0:
            yield nodes * cell.devices_per_node


def other_groups(cell: Cell, size: int) -> Iterator[int]:
    """Groups of another size than ``size``: equal parts of a node, a node, several nodes."""
    node = cell.devices_per_node
    parts = (each for each in range(2, node) if node % each == 0)
    yield from (each for each in (*parts, node, *larger_groups(cell)) if each != size)


DDP_FIRST_BUCKET_BYTES = 2**20  # torch's first bucket, unless a size is given for all


def buckets(
    sizes_bytes: Sequence[int], cap_bytes: int, kinds: Sequence[object] | None = None
) -> list[range]:
    """Indices of the gradients of each bucket; a bucket never mixes ``kinds``, such as data types.

    A bucket has ``cap_bytes`` at most; a gradient that is larger has one of its own.
    """
    begins: list[int] = []
    filled = 0
    for index, size in enumerate(sizes_bytes):
        mixes = kinds is not None and index > 0 and kinds[index] != kinds[index - 1]
        if not begins or filled + size > cap_bytes or mixes:
            begins.append(index)
            filled = 0
        filled += size
    return list(starmap(range, pairwise([*begins, len(sizes_bytes)])))


def buckets_once_full(
    sizes_bytes: Sequence[int], cap_bytes: int, first_cap_bytes: int
) -> list[range]:
    """Indices of the gradients of each of DDP's buckets, closed once it holds its bytes or more.

    ``sizes_bytes`` are in the order in which gradients are ready; the first bucket has a cap of
    its own.
    """
    begins: list[int] = []
    full = True
    filled = 0
    for index, size in enumerate(sizes_bytes):
        if full:
            begins.append(index)
            filled = 0
        filled += size
        full = filled >= (first_cap_bytes if len(begins) == 1 else cap_bytes)
    return list(starmap(range, pairwise([*begins, len(sizes_bytes)])))


def whole_buckets(tensors: Sequence[Tensor], cap_bytes: int) -> list[list[int]]:
    """Bytes of the tensors of each bucket when all weights are summed at once, in their order.

    A bucket has ``cap_bytes`` at most. ``tensors`` are in the order in which their gradients are
    ready: the last weights come first.
    """
    sizes = [tensor.bytes for tensor in reversed(tensors)]
    return [[sizes[i] for i in bucket] for bucket in buckets(sizes, cap_bytes)]


@dataclass(frozen=True)
class GradientMessage:
    """One all-reduce of a step.

    Args:
        bytes: contributed by each rank.
        ready_fraction: share of the backward pass after which its last gradient is ready.
    """

    bytes: int
    ready_fraction: float = 1.0


def filled_buckets(
    tensors: Sequence[Tensor], first_bytes: int, cap_bytes: int
) -> list[GradientMessage]:
    """Buckets that leave when they hold ``first_bytes`` or, after the first, ``cap_bytes``.

    ``tensors`` are in the order in which their gradients are ready.
    """
    buckets = buckets_once_full([tensor.bytes for tensor in tensors], cap_bytes, first_bytes)
    return [
        GradientMessage(
            sum(tensors[index].bytes for index in bucket), tensors[bucket[-1]].ready_fraction
        )
        for bucket in buckets
    ]


Phase = Literal["load", "rest", "forward", "backward", "update", "alone"]
COMPUTE, LINK = "compute", "link"


@dataclass(frozen=True)
class Compute:
    """A computation.

    Args:
        phase: part of a sequential step; ``rest`` is what such a step has beside the other four.
            ``alone`` is a whole step of one device, measured without its peers.
        share: of that phase.
        blocks: whose share of a pass it is, in place of ``share``.
        waits_for: tasks, by their places in the list, that must have ended.
        lane: ``compute``, or that of a server.
    """

    phase: Phase
    share: float = 1.0
    blocks: range | None = None
    waits_for: tuple[int, ...] = ()
    lane: str = COMPUTE


@dataclass(frozen=True)
class Message:
    """A collective, or what every worker and every server send each other.

    Args:
        operation: as links.json names it; "swap" is of rows between neighbours, "exchange" of
            workers with servers.
        bytes: as links.json counts them for that operation.
        lane: ``compute`` if the rank waits for it where it stands.
        waits_for: tasks, by their places in the list, that must have ended.
        group: the shape of the ranks among which it travels; None: all of the cell.
        ranks: of a swap, whose hops are not those of a shape.
        count: so many of them, one after the other.
        tensors: of which it is made.
        follows: it begins when a computation of all ranks has ended, which delays it on CPUs.
    """

    operation: str
    bytes: float
    lane: str = COMPUTE
    waits_for: tuple[int, ...] = ()
    group: Group | None = None
    ranks: tuple[int, ...] = ()
    count: float = 1
    tensors: int = 1
    follows: bool = True

    @property
    def sums_gradients(self) -> bool:
        """Whether it sums gradients of all ranks, as soon as they are ready."""
        return self.lane == LINK and self.operation == "all_reduce" and self.group is None


@dataclass(frozen=True)
class Step:
    """The tasks of one rank, of as many steps as a round has; ranks of one role do the same.

    Args:
        tasks: in the order of its program.
        samples: of the sequential step whose phases it shares: a rank's share of a mini-batch, or
            a micro-batch.
        transport: what carries messages, as links.json names it.
        library: what sends through the transport, as links.json names its sweeps; None if those of
            the transport have all.
        fusion_bytes: messages that wait for the link travel together up to so many bytes; None if
            each travels alone.
        alone: name of the run of one device alone that takes the place of the phases.
    """

    tasks: tuple[Compute | Message, ...]
    samples: float
    transport: str
    library: str | None = None
    fusion_bytes: int | None = None
    alone: str | None = None

    @property
    def messages(self) -> list[Message]:
        """In the order in which they are sent."""
        return [task for task in self.tasks if isinstance(task, Message)]

    @property
    def has_servers(self) -> bool:
        """Whether some of its computations are of servers, not of the rank."""
        return any(task.lane != COMPUTE for task in self.tasks if isinstance(task, Compute))

    @property
    def gradients(self) -> list[Message]:
        """The all-reduces that sum gradients of all ranks; empty where ranks do otherwise."""
        return [message for message in self.messages if message.sums_gradients]

    @property
    def others(self) -> list[Message]:
        return [message for message in self.messages if not message.sums_gradients]

    @property
    def fused(self) -> list[float]:
        """Bytes of each sum of gradients, if all gradients wait for the link."""
        sizes = [message.bytes for message in self.gradients]
        if self.fusion_bytes is None:
            return sizes
        together = buckets([int(size) for size in sizes], self.fusion_bytes)
        return [sum(sizes[index] for index in bucket) for bucket in together]

    @property
    def last_bytes(self) -> float:
        """Bytes of the sum that ends after the backward pass: at worst a full fusion buffer."""
        if self.fusion_bytes is None:
            return self.gradients[-1].bytes
        return min(sum(message.bytes for message in self.gradients), self.fusion_bytes)


def transport_of(device_kind: str) -> str:
    """torch.distributed's library of collectives on such devices."""
    return "nccl" if device_kind == "cuda" else "gloo"


def worker_tasks(accumulated: int = 1) -> list[Compute | Message]:
    """All that a worker computes before its last backward pass, micro-batch by micro-batch."""
    before: list[Phase] = ["load", "rest", "forward"]
    phases = [*[*before, "backward"] * (accumulated - 1), *before]
    return [Compute(phase) for phase in phases]


def summed_gradients(
    tasks: Sequence[Compute | Message], messages: Iterable[GradientMessage], updated: float = 1.0
) -> list[Compute | Message]:
    """These tasks, the backward pass with sums of gradients that are ready, and the update.

    ``messages`` are in the order in which they are sent, ``updated`` is the share of the weights
    that a rank updates.
    """
    together, done, sent = list(tasks), 0.0, []
    for message in messages:
        together.append(Compute("backward", message.ready_fraction - done))
        done = message.ready_fraction
        sent.append(len(together))
        together.append(Message("all_reduce", message.bytes, LINK))
    rest = Compute("backward", 1 - done)
    return [*together, rest, Compute("update", updated, waits_for=tuple(sent))]


def blocking(tasks: Sequence[Compute | Message]) -> tuple[Compute | Message, ...]:
    """The same tasks where nothing runs beside computation: every message holds up its rank."""
    return tuple(
        replace(task, lane=COMPUTE) if isinstance(task, Message) else task for task in tasks
    )
