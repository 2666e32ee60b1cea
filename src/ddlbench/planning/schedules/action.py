"""Schedules as data: the actions of each process, in order.

The runtime executes the same list that the replay times and a figure draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ddlbench.common.errors import ConfigError

Kind = Literal[
    "forward",
    "backward",
    "backward_input",
    "backward_weight",
    "send_activation",
    "receive_activation",
    "send_gradient",
    "receive_gradient",
    "all_reduce",
    "update",
]

LETTERS = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
Channel = tuple[str, int, int]  # "activation" or "gradient", from rank, to rank


class InvalidSchedule(ConfigError):  # noqa: N818 - a property of the schedule, shown as such
    """The schedule cannot run, or does not train what it should."""


@dataclass(frozen=True, slots=True)
class Action:
    """One action of one process.

    Args:
        kind: ``backward`` gives the gradients of inputs and weights; zero-bubble schedules
            split it into ``backward_input`` and ``backward_weight``.
        stage: its stage; the sender's for a send, the receiver's for a receive.
        micro_batch: global number of the micro- or mini-batch; number of the update for
            ``all_reduce`` and ``update``.
        peer: rank of the other side of a message, else None.
    """

    kind: Kind
    stage: int
    micro_batch: int
    peer: int | None = None

    @property
    def computes(self) -> bool:
        return self.kind in LETTERS

    @property
    def communicates(self) -> bool:
        return self.peer is not None

    def __str__(self) -> str:
        letter = LETTERS.get(self.kind)
        return f"{letter}{self.micro_batch}" if letter else f"{self.kind} {self.micro_batch}"


@dataclass(frozen=True)
class Schedule:
    """The actions of all processes.

    Args:
        name: of the schedule.
        micro_batches: their number; they are numbered from 0.
        stage_ranks: ranks of each stage's replicas; micro-batch g runs on replica
            ``g mod replicas`` of every stage. A rank may hold several stages.
        actions: of each rank, in order.
        in_flight: for each rank, the most forward passes it holds without their backward.
        warmups: of each stage, for schedules that keep weight versions (version
            ``max(0, b - warm-up)`` serves a replica's b-th mini-batch); empty where one is kept.
        receives_ahead: receives that a rank must have posted ahead on each channel for sends that
            wait for their receiver; 0 where posting adjacent messages together is enough.
    """

    name: str
    micro_batches: int
    stage_ranks: tuple[tuple[int, ...], ...]
    actions: tuple[tuple[Action, ...], ...]
    in_flight: tuple[int, ...]
    warmups: tuple[int, ...] = ()
    receives_ahead: int = 0

    @property
    def world_size(self) -> int:
        return len(self.actions)

    @property
    def num_stages(self) -> int:
        return len(self.stage_ranks)

    @cached_property
    def channels(self) -> tuple[tuple[Channel | None, ...], ...]:
        """The channel of each rank's actions; None of one that is no message."""
        return tuple(
            tuple(_channel(action, rank) for action in actions)
            for rank, actions in enumerate(self.actions)
        )

    def computations(self, rank: int) -> tuple[Action, ...]:
        return tuple(action for action in self.actions[rank] if action.computes)


def _channel(action: Action, rank: int) -> Channel | None:
    if action.peer is None:
        return None
    direction, content = action.kind.split("_")
    return (content, rank, action.peer) if direction == "send" else (content, action.peer, rank)
