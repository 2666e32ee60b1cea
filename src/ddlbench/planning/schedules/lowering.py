"""Where torch's runtime of looped schedules posts its receives.

``_PipelineScheduleRuntime`` is given the passes of each rank and adds the messages itself. In
rounds, each rank takes its next entry if its input is on its list; a pass puts its send on its own
list and the receive on its receiver's::

    round          1     2     3     4                list that comes of it
    rank 0         U     F0    F1    F2               U F0 s0 F1 s1 F2 s2
    rank 1         U     r0    F0    F1   ...         U r0 F0 r1 F1 r2 ...
                         `-- put there by rank 0      r1 is posted once F0 has ended

So a rank that is behind posts its receive late, and a large message that has been sent meanwhile
leaves only then. U stands for entries that do nothing without sharded weights (``UNSHARD``,
``RESHARD``, ``REDUCE_GRAD``), but take a round.

Source: ``torch.distributed.pipelining`` 2.13, ``schedules.py``: ``_add_unshard_reshard``,
``_add_reduce_grad``, ``_add_send_recv``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ddlbench.planning.schedules.action import LETTERS, Action, Channel, InvalidSchedule, Schedule

_UNSHARDED = 3  # stages whose weights torch keeps at hand


@dataclass
class _Entry:
    """A pass, or an entry that does nothing.

    Attributes:
        needs: receives of each channel that must be on the list before it.
        sends: channels on which it sends.
    """

    computes: bool = False
    needs: Counter[Channel] = field(default_factory=Counter)
    sends: list[Channel] = field(default_factory=list)


def posted_receives(schedule: Schedule) -> tuple[tuple[tuple[int, Channel], ...], ...]:
    """For each rank, its receives as they are posted: passes that it has done by then, channel.

    Raises:
        InvalidSchedule: some pass waits for a message that nobody sends.
    """
    waiting = [deque(_entries(*of)) for of in zip(schedule.actions, schedule.channels, strict=True)]
    done = [0] * schedule.world_size
    posted: list[list[tuple[int, Channel]]] = [[] for _ in waiting]
    listed: Counter[Channel] = Counter()
    moved = True
    while moved:
        moved = False
        for rank, entries in enumerate(waiting):
            if not entries or any(listed[name] < n for name, n in entries[0].needs.items()):
                continue
            entry = entries.popleft()
            done[rank] += entry.computes
            for channel in entry.sends:
                listed[channel] += 1
                posted[channel[2]].append((done[channel[2]], channel))
            moved = True
    if any(waiting):
        raise InvalidSchedule(f"schedule {schedule.name} deadlocks; check() says where")
    return tuple(map(tuple, posted))


def _entries(actions: Sequence[Action], channels: Sequence[Channel | None]) -> Iterator[_Entry]:
    """The list of a rank before messages are added to it."""
    passes = [action for action in actions if action.kind in LETTERS]
    left = Counter(action.stage for action in passes if action.kind.startswith("backward"))
    left -= Counter(action.stage for action in passes if action.kind == "backward_input")
    received: Counter[Channel] = Counter()
    entry, at_hand, place = _Entry(), frozenset[int](), 0
    ready: list[_Entry] = []
    following = _next_stages(passes)
    for action, channel in zip(actions, channels, strict=True):
        if channel is not None and action.kind.startswith("receive"):
            received[channel] += 1
        elif channel is not None:
            entry.sends.append(channel)
        elif action.kind in LETTERS:
            wanted = following[place]
            ready += [_Entry() for stage in at_hand - wanted]
            ready += [_Entry() for stage in wanted - at_hand]
            at_hand, place = wanted, place + 1
            entry = _Entry(True, Counter(received))
            ready.append(entry)
            if action.kind in ("backward", "backward_weight"):
                left[action.stage] -= 1
                ready += [_Entry()] * (left[action.stage] == 0)
    yield from ready


def _next_stages(passes: Sequence[Action]) -> list[frozenset[int]]:
    """The stages whose passes come next, from each pass on."""
    found: list[frozenset[int]] = []
    nearest: list[int] = []
    for action in reversed(passes):
        stage = action.stage
        if nearest[:1] != [stage]:
            nearest = [stage, *(other for other in nearest if other != stage)][:_UNSHARDED]
        found.append(frozenset(nearest))
    return found[::-1]
