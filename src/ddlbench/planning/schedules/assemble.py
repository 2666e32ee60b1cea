"""From the order of a rank's passes to its actions: messages and the update added.

::

    passes     F0             F1             B0
    actions    < F0 >         < F1 >         << B0 >>       < receive, > send an activation
                                                            << receive, >> send a gradient
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddlbench.planning.schedules.action import Action, InvalidSchedule, Kind

__all__ = ["passes", "positive", "with_messages", "with_update"]


def positive(**counts: int) -> None:
    """Raise InvalidSchedule unless every count is at least 1."""
    for name, count in counts.items():
        if count < 1:
            raise InvalidSchedule(f"{name} is {count}; write 1 or more")


def passes(kind: Kind, stage: int, micro_batches: Sequence[int]) -> list[Action]:
    """The same pass for several micro-batches of one stage."""
    return [Action(kind, stage, number) for number in micro_batches]


def with_update(actions: Sequence[Action], stages: Sequence[int]) -> list[Action]:
    """One update of each of a rank's stages at the end: a schedule that flushes."""
    return [*actions, *(Action("update", stage, 0) for stage in stages)]


def with_messages(
    orders: Sequence[Sequence[Action]], stage_ranks: Sequence[Sequence[int]]
) -> tuple[tuple[Action, ...], ...]:
    """Receive what a pass needs just before it, and send what it gives just after it.

    Stages of one rank hand over without a message.
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
