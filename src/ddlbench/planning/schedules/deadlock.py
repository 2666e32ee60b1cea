"""Who waits for whom: run a schedule's messages without computing anything.

::

    buffered      a send returns at once; a receive waits for its message; one after the other
    synchronous   a send returns once its receive is posted. Adjacent messages of a rank are posted
                  together (as ``batch_isend_irecv`` does), and each channel has ``receives_ahead``
                  receives posted beforehand

A channel is one kind of message from one rank to another. The replicas of a stage meet in an
all-reduce. A schedule either ends whatever the order in which its ranks are run, or for none: a
rank never takes back what another one waits for.
"""

from __future__ import annotations

from collections import defaultdict

from ddlbench.planning.schedules.action import Action, Schedule

__all__ = ["blocked"]

Channel = tuple[str, int, int]  # "activation" or "gradient", from rank, to rank


def blocked(schedule: Schedule, synchronous: bool) -> dict[int, Action]:
    """The ranks that never end, and the action each stands at; empty when all end."""
    run = _Run(schedule, synchronous)
    moved = True
    while moved:
        moved = False
        for rank in range(schedule.world_size):
            while run.step(rank):
                moved = True
    return run.unfinished()


class _Run:
    def __init__(self, schedule: Schedule, synchronous: bool) -> None:
        self._schedule, self._synchronous = schedule, synchronous
        self._ahead = schedule.receives_ahead
        self._position = [0] * schedule.world_size
        self._posted_until = [0] * schedule.world_size
        self._sends: dict[Channel, int] = defaultdict(int)
        self._receives: dict[Channel, int] = defaultdict(int)
        self._place: dict[tuple[int, int], int] = {}  # (rank, position) -> number on its channel
        self._arrived: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._done: set[tuple[str, int, int]] = set()

    def unfinished(self) -> dict[int, Action]:
        return {
            rank: actions[self._position[rank]]
            for rank, actions in enumerate(self._schedule.actions)
            if self._position[rank] < len(actions)
        }

    def step(self, rank: int) -> bool:
        """Do the next action, or the next messages together; False if it must wait."""
        start, actions = self._position[rank], self._schedule.actions[rank]
        if start == len(actions):
            return False
        end = start + 1
        if self._synchronous and actions[start].communicates:
            while end < len(actions) and actions[end].communicates:
                end += 1
        self._post(rank, end)
        if not all(self._can(rank, place) for place in range(start, end)):
            return False
        for place in range(start, end):
            action = actions[place]
            self._done.add((action.kind, action.stage, action.micro_batch))
        self._position[rank] = end
        return True

    def _post(self, rank: int, end: int) -> None:
        """Let the other side know of the messages before ``end``."""
        actions = self._schedule.actions[rank]
        for place in range(self._posted_until[rank], end):
            action = actions[place]
            if action.communicates:
                counts = self._sends if action.kind.startswith("send") else self._receives
                channel = _channel(action, rank)
                self._place[rank, place] = counts[channel]
                counts[channel] += 1
            elif action.kind == "all_reduce":
                self._arrived[action.stage, action.micro_batch].add(rank)
        self._posted_until[rank] = max(end, self._posted_until[rank])

    def _can(self, rank: int, place: int) -> bool:
        action = self._schedule.actions[rank][place]
        if action.kind.startswith("receive"):
            return self._place[rank, place] < self._sends[_channel(action, rank)]
        if action.kind.startswith("send"):
            posted = self._receives[_channel(action, rank)] + self._ahead
            return not self._synchronous or self._place[rank, place] < posted
        if action.kind == "all_reduce":
            here = self._arrived[action.stage, action.micro_batch]
            return here == set(self._schedule.stage_ranks[action.stage])
        return self._has_input(rank, action)

    def _has_input(self, rank: int, action: Action) -> bool:
        """A pass whose input comes from a stage of the same rank needs that pass done."""
        if action.kind == "forward":
            neighbour = action.stage - 1
        elif action.kind in ("backward", "backward_input"):
            neighbour = action.stage + 1
        else:
            return True
        outside = not 0 <= neighbour < self._schedule.num_stages
        if outside or self._schedule.rank_of(neighbour, action.micro_batch) != rank:
            return True
        return (action.kind, neighbour, action.micro_batch) in self._done


def _channel(action: Action, rank: int) -> Channel:
    assert action.peer is not None
    direction, what = action.kind.split("_")
    return (what, rank, action.peer) if direction == "send" else (what, action.peer, rank)
