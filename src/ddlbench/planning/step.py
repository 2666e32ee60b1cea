"""What a strategy computes and sends in one step, as data.

A step is the program of one rank: a list of computations and messages without seconds. It holds
shares of a sequential step, and bytes. Whoever has a profile and links gives them seconds
(:mod:`ddlbench.predict.step_replay`), and a replay says when each of them begins and ends
(:mod:`ddlbench.predict.step_replay`)::

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
"""  # noqa: E501 - the picture

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ddlbench.planning.traffic import GradientMessage, Group, buckets

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
    """The tasks of one rank; ranks of one role do the same.

    Args:
        tasks: in the order of its program.
        samples: of the sequential step whose phases it shares: a rank's share of a mini-batch, or
            a micro-batch.
        transport: what carries messages, as links.json names it.
        library: what sends through the transport, as links.json names its sweeps; None if those of
            the transport have all.
        fusion_bytes: messages that wait for the link travel together up to so many bytes; None if
            each travels alone.
        rounds: steps that the tasks span.
        alone: name of the run of one device alone that takes the place of the phases.
    """

    tasks: tuple[Compute | Message, ...]
    samples: float
    transport: str
    library: str | None = None
    fusion_bytes: int | None = None
    rounds: int = 1
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
        """Of the sum that ends after the backward pass: at worst a full fusion buffer."""
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

    Args:
        tasks: of a worker before its last backward pass.
        messages: in the order in which they are sent.
        updated: share of the weights that a rank updates.
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
