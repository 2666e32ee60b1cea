"""Completes the order of a rank's passes: adds messages, updates and replicas.

::

    passes     F0             F1             B0
    actions    < F0 >         < F1 >         << B0 >>       < receive, > send an activation
                                                            << receive, >> send a gradient

Copies of a synchronous pipeline average their gradients (data parallelism outside)::

    pipeline 0, rank 0..p-1     micro-batches 0, d, 2d, ...        the ranks of one stage
    pipeline 1, rank p..2p-1    micro-batches 1, d+1, 2d+1, ...    all-reduce before the
    ...                                                            update

Source: torch.distributed.pipelining's way to combine pipeline and data parallelism, a mesh of
pipelines; Megatron-LM (Narayanan et al., SC 2021), section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddlbench.planning.schedules.action import Action, InvalidSchedule, Kind, Schedule


def positive(**counts: int) -> None:
    """Raises InvalidSchedule unless every count is at least 1."""
    for name, count in counts.items():
        if count < 1:
            raise InvalidSchedule(f"{name} is {count}; write 1 or more")


def passes(kind: Kind, stage: int, micro_batches: Sequence[int]) -> list[Action]:
    """The same pass for several micro-batches of one stage."""
    return [Action(kind, stage, number) for number in micro_batches]


def with_update(actions: Sequence[Action], stages: Sequence[int]) -> list[Action]:
    """Adds one update of each of a rank's stages at the end, for schedules that flush."""
    return [*actions, *(Action("update", stage, 0) for stage in stages)]


def with_messages(
    orders: Sequence[Sequence[Action]], stage_ranks: Sequence[Sequence[int]]
) -> tuple[tuple[Action, ...], ...]:
    """Adds a receive just before each pass that needs one, and a send just after.

    Stages of one rank pass tensors on without a message.
    """
    return tuple(
        tuple(message for action in order for message in _around(action, rank, stage_ranks))
        for rank, order in enumerate(orders)
    )


def _around(action: Action, rank: int, stage_ranks: Sequence[Sequence[int]]) -> Iterator[Action]:
    stage, number = action.stage, action.micro_batch

    def message(kind: Kind, neighbour: int) -> Iterator[Action]:
        if 0 <= neighbour < len(stage_ranks):
            peer = stage_ranks[neighbour][number % len(stage_ranks[neighbour])]
            if peer != rank:
                yield Action(kind, stage, number, peer)

    if action.kind == "forward":
        yield from message("receive_activation", stage - 1)
        yield action
        yield from message("send_activation", stage + 1)
    elif action.kind in ("backward", "backward_input"):
        yield from message("receive_gradient", stage + 1)
        yield action
        yield from message("send_gradient", stage - 1)
    else:
        yield action


def replicate(schedule: Schedule, copies: int, *, summed: bool = False) -> Schedule:
    """Makes ``copies`` pipelines of a schedule with one replica a stage; ranks copy by copy.

    Args:
        schedule: of one pipeline.
        copies: their number.
        summed: a single copy sums its gradients, too: with pipelines that are not in the schedule.

    Raises:
        InvalidSchedule: stages are replicated already, or ``copies`` is below 1.
    """
    positive(copies=copies)
    if any(len(ranks) > 1 for ranks in schedule.stage_ranks):
        raise InvalidSchedule(f"{schedule.name} replicates stages already; choose its replicas")
    if copies == 1 and not summed:
        return schedule
    size = schedule.world_size

    def copied(action: Action, copy: int) -> Iterator[Action]:
        if action.kind == "update":
            yield Action("all_reduce", action.stage, action.micro_batch)
            yield action
        else:
            peer = None if action.peer is None else action.peer + copy * size
            yield replace(action, micro_batch=action.micro_batch * copies + copy, peer=peer)

    return replace(
        schedule,
        micro_batches=schedule.micro_batches * copies,
        stage_ranks=tuple(
            tuple(rank + copy * size for copy in range(copies)) for (rank,) in schedule.stage_ranks
        ),
        actions=tuple(
            tuple(new for action in actions for new in copied(action, copy))
            for copy in range(copies)
            for actions in schedule.actions
        ),
        in_flight=schedule.in_flight * copies,
    )
