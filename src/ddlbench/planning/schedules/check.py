"""Checks of a schedule: it runs to its end, and trains what it should.

To find a deadlock, messages are run without any computation, with two kinds of send::

    buffered      a send returns at once; a receive waits for its message
    synchronous   a send returns once its receive is posted. Adjacent messages of a rank are posted
                  together (as ``batch_isend_irecv`` does), and each channel has ``receives_ahead``
                  receives posted beforehand

A channel is one kind of message from one rank to another. An all-reduce waits for all replicas of
its stage. The order in which ranks are run does not matter: no action ever undoes what another
rank waits for.

PipeDream's released runtime does not run every division of mini-batches over replicas::

    3-2, nine mini-batches (three a loader)     the release      9 / 2: stops before the first pass
    stage 0  | 0 3 6 | 1 4 7 | 2 5 8 |          thesis           6 of them, three dropped
    stage 1  | 0 2 4 6 8 | 1 3 5 7   |          here             all nine, five and four

Every replica of the first stage has a loader with as many mini-batches. The runtime asserts that
each replica of a stage gets a whole number of them, and that it exchanges a whole number with each
replica of the stages beside it. Where one assertion fails, the other ranks wait for ever.

The thesis rounds the mini-batches of a loader down to a multiple of the least common multiple of
the other stages' replicas (its text says greatest common divisor). That is enough for 3-2, and for
the first assertion only: of the 154 pipelines of 2 to 4 stages on up to 8 ranks, 10 still stop with
12 mini-batches a loader. Our schedule needs neither, as a mini-batch's number in the run decides on
its replica.

Sources: ``runtime/runtime.py`` (``num_iterations``) and ``runtime/communication.py``
(``num_iterations_for_helper_threads``, ``setup_messaging_schedule``) of PipeDream's release, and
their changes in DDLBench's (sara-nl/DDLBench, pipedream-fork); the thesis, Section 7.1.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from itertools import chain, cycle
from typing import NamedTuple

from ddlbench.planning.schedules.orders import check_replicas
from ddlbench.planning.schedules.schedule import (
    LETTERS,
    Action,
    Channel,
    InvalidSchedule,
    Kind,
    Schedule,
)


def blocked(schedule: Schedule, synchronous: bool) -> dict[int, Action]:
    """The ranks that never end, with the action each stops at; empty when all end."""
    return _stuck(schedule, _waits(schedule), synchronous)


class _Waits(NamedTuple):
    """What each action of each rank waits for: its sort, a place, a number.

    ::

        send, receive    place: the channel; number: of the message on its channel
        meet             place: the all-reduce; number: its ranks
        free             nothing
        never            its input, which no earlier pass of the same rank makes, or the
                         all-reduce of a stage that the rank does not hold
    """

    lines: list[list[tuple[str, int, int]]]
    channels: int


_MESSAGES = ("send", "receive")
_FREE, _NEVER = ("free", 0, 0), ("never", 0, 0)


def _waits(schedule: Schedule) -> _Waits:
    places: dict[Channel, int] = {}
    meetings: dict[tuple[int, int], int] = {}
    lines = []
    for rank, actions in enumerate(schedule.actions):
        line, done, numbers = [], set(), Counter[Channel]()
        for action, channel in zip(actions, schedule.channels[rank], strict=True):
            if channel is not None:
                sort = "send" if channel[1] == rank else "receive"
                line.append((sort, places.setdefault(channel, len(places)), numbers[channel]))
                numbers[channel] += 1
            elif action.kind == "all_reduce":
                meeting = meetings.setdefault((action.stage, action.micro_batch), len(meetings))
                ranks = schedule.stage_ranks[action.stage]
                line.append(("meet", meeting, len(ranks)) if rank in ranks else _NEVER)
            else:
                needed = _input_here(schedule, rank, action)
                line.append(_FREE if needed is None or needed in done else _NEVER)
                done.add((action.kind, action.stage, action.micro_batch))
        lines.append(line)
    return _Waits(lines, len(places))


_INPUT_FROM = {"forward": -1, "backward": 1, "backward_input": 1}


def _input_here(schedule: Schedule, rank: int, action: Action) -> tuple[str, int, int] | None:
    """The pass that makes the input of a pass, if it is of the same rank."""
    stage_ranks = schedule.stage_ranks
    neighbour = action.stage + _INPUT_FROM.get(action.kind, len(stage_ranks))
    if not 0 <= neighbour < len(stage_ranks):
        return None
    ranks = stage_ranks[neighbour]
    if ranks[action.micro_batch % len(ranks)] != rank:
        return None
    return action.kind, neighbour, action.micro_batch


def _stuck(schedule: Schedule, waits: _Waits, synchronous: bool) -> dict[int, Action]:
    begun = [0] * schedule.world_size  # actions of each rank
    done = list(begun)
    sends = [0] * waits.channels  # begun on each channel
    receives = [schedule.receives_ahead if synchronous else math.inf] * waits.channels
    arrived: Counter[int] = Counter()  # ranks at each all-reduce

    def advance(rank: int) -> None:
        line, start = waits.lines[rank], done[rank]
        while start < len(line):
            end = start + 1
            if synchronous and line[start][0] in _MESSAGES:
                while end < len(line) and line[end][0] in _MESSAGES:
                    end += 1
            for sort, place, _ in line[max(start, begun[rank]) : end]:
                if sort == "send":
                    sends[place] += 1
                elif sort == "receive":
                    receives[place] += 1
                elif sort == "meet":
                    arrived[place] += 1
            begun[rank] = max(end, begun[rank])
            for sort, place, number in line[start:end]:
                if (
                    (sort == "send" and number >= receives[place])
                    or (sort == "receive" and number >= sends[place])
                    or (sort == "meet" and number > arrived[place])
                    or sort == "never"
                ):
                    done[rank] = start
                    return
            start = end
        done[rank] = start

    before: list[int] = []
    while before != done:
        before = list(done)
        for rank in range(len(done)):
            advance(rank)
    return {
        rank: actions[done[rank]]
        for rank, actions in enumerate(schedule.actions)
        if done[rank] < len(actions)
    }


def check(schedule: Schedule) -> None:
    """Proves a schedule right by going through it.

    Every micro-batch passes every stage once, forwards before backwards, on a rank of
    that stage; every backward pass is followed by an update; each replica of a stage takes
    part in the same updates; each channel's messages are received once, in the order in which they
    are sent; no rank holds more than its ``in_flight``; and nothing deadlocks, with buffered or
    synchronous sends.

    Raises:
        InvalidSchedule: one of these does not hold; the message says which, and where.
    """
    _check_passes(schedule)
    _check_updates(schedule)
    _check_messages(schedule)
    _check_in_flight(schedule)
    waits = _waits(schedule)
    for sends in ("buffered", "synchronous"):
        stuck = _stuck(schedule, waits, synchronous=sends == "synchronous")
        if stuck:
            places = ", ".join(f"rank {rank} at {action}" for rank, action in stuck.items())
            raise _invalid(schedule, f"deadlock with {sends} sends: {places}")


def _invalid(schedule: Schedule, error: str) -> InvalidSchedule:
    return InvalidSchedule(f"schedule {schedule.name}: {error}")


def _check_passes(schedule: Schedule) -> None:
    done: dict[tuple[int, int], list[Kind]] = defaultdict(list)
    for rank, actions in enumerate(schedule.actions):
        for action in (action for action in actions if action.kind in LETTERS):
            ranks = schedule.stage_ranks[action.stage]
            if ranks[action.micro_batch % len(ranks)] != rank:
                raise _invalid(schedule, f"rank {rank} has {action} of stage {action.stage}")
            done[action.stage, action.micro_batch].append(action.kind)
    whole = (["forward", "backward"], ["forward", "backward_input", "backward_weight"])
    for stage in range(schedule.num_stages):
        for number in range(schedule.micro_batches):
            kinds = done.pop((stage, number), [])
            if kinds not in whole:
                raise _invalid(schedule, f"micro-batch {number} passes stage {stage} as {kinds}")
    if done:
        raise _invalid(schedule, f"passes of unknown (stage, micro-batch) {sorted(done)}")


def _check_updates(schedule: Schedule) -> None:
    for stage, ranks in enumerate(schedule.stage_ranks):
        each = [[a for a in schedule.actions[rank] if a.stage == stage] for rank in ranks]
        updates = [
            [(a.kind, a.micro_batch) for a in x if a.kind in ("all_reduce", "update")] for x in each
        ]
        if any(replica != updates[0] for replica in updates):
            raise _invalid(schedule, f"the replicas of stage {stage} update at different times")
        if len(ranks) > 1:
            reduced = [number for kind, number in updates[0] if kind == "all_reduce"]
            if reduced != [number for kind, number in updates[0] if kind == "update"]:
                raise _invalid(schedule, f"stage {stage} updates without its replicas' gradients")
        if any(not x or x[-1].kind != "update" for x in each):
            raise _invalid(schedule, f"stage {stage} does not end with an update")


def _check_messages(schedule: Schedule) -> None:
    Message = tuple[int, int]  # stage that receives, micro-batch  # noqa: N806
    sent: dict[Channel, list[Message]] = defaultdict(list)
    received: dict[Channel, list[Message]] = defaultdict(list)
    receivers = {"send_activation": 1, "send_gradient": -1}  # the next stage, the one before
    for actions, channels in zip(schedule.actions, schedule.channels, strict=True):
        for action, name in zip(actions, channels, strict=True):
            if name is not None:
                messages = sent if action.kind in receivers else received
                stage = action.stage + receivers.get(action.kind, 0)
                messages[name].append((stage, action.micro_batch))
    for channel in sent.keys() | received.keys():
        content, source, target = channel
        if sent[channel] != received[channel]:
            lost = Counter(sent[channel]) - Counter(received[channel])
            awaited = Counter(received[channel]) - Counter(sent[channel])
            raise _invalid(
                schedule,
                f"{content} from rank {source} to {target}: sent but not received {sorted(lost)}, "
                f"awaited but not sent {sorted(awaited)}, else in another order",
            )


def _check_in_flight(schedule: Schedule) -> None:
    for rank, most in enumerate(schedule.most_held_until("backward", "backward_weight")):
        if most > schedule.in_flight[rank]:
            raise _invalid(
                schedule, f"rank {rank} holds {most} passes, more than {schedule.in_flight[rank]}"
            )


def why_release_stops(replicas: Sequence[int], per_loader: int) -> str:
    """Why PipeDream's released runtime stops before the first pass; empty if it runs.

    ``per_loader`` are the mini-batches of each replica of the first stage.

    Raises:
        ConfigError: a stage has no replica.
    """
    check_replicas(replicas)
    whole = per_loader * replicas[0]
    for stage, count in enumerate(replicas):
        if whole % count:
            return (
                f"{whole} mini-batches over {count} replicas of stage {stage} leave {whole % count}"
            )
    for stage, count in enumerate(replicas):
        each = whole // count
        for beside in (stage - 1, stage + 1):
            if 0 <= beside < len(replicas) and each % replicas[beside]:
                return (
                    f"{each} mini-batches of each replica of stage {stage} over "
                    f"{replicas[beside]} of stage {beside} leave {each % replicas[beside]}"
                )
    return ""


def thesis_per_loader(replicas: Sequence[int], per_loader: int) -> int:
    """Mini-batches of a loader that the thesis keeps; it drops the others."""
    check_replicas(replicas)
    multiple = math.lcm(*replicas[1:])
    return per_loader // multiple * multiple


def release_receives(
    replicas: Sequence[int], stage: int, replica: int, per_loader: int
) -> list[int]:
    """Numbers of the mini-batches that a replica gets, in order; ``j r_0 + i`` is loader i's j-th.

    Replica ``i`` of a stage sends its ``j``-th mini-batch to replica ``(i + j) mod r`` of the next
    one. That one visits its senders in rows of equal ``i mod r``: first the row of its own number,
    then downwards.

    Raises:
        InvalidSchedule: the release stops before the first pass.
    """
    if why := why_release_stops(replicas, per_loader):
        raise InvalidSchedule(why)
    if stage == 0:
        return [replicas[0] * turn + replica for turn in range(per_loader)]
    before, count = replicas[stage - 1], replicas[stage]
    queues = []
    for sender in range(before):
        sent = release_receives(replicas, stage - 1, sender, per_loader)
        numbers = (number for turn, number in enumerate(sent) if (sender + turn) % count == replica)
        queues.append(deque(numbers))
    rows = [range(first, before, count) for first in range(min(count, before))]
    first = min(replica, len(rows) - 1)
    senders = cycle(
        chain.from_iterable(rows[(first - turn) % len(rows)] for turn in range(len(rows)))
    )
    return [queues[next(senders)].popleft() for _ in range(per_loader * replicas[0] // count)]


def mini_batches_of(schedule: Schedule) -> list[list[int]]:
    """Numbers of the mini-batches that each rank of a schedule computes, in order."""
    return [
        [action.micro_batch for action in actions if action.kind == "forward"]
        for actions in schedule.actions
    ]
