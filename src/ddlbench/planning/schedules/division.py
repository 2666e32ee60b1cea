"""Division of mini-batches over the replicas of PipeDream's stages, as its released runtime has it.

::

    3-2, nine mini-batches (three a loader)     the release      9 / 2: stops before the first pass
    stage 0  | 0 3 6 | 1 4 7 | 2 5 8 |          thesis           6 of them, three dropped
    stage 1  | 0 2 4 6 8 | 1 3 5 7   |          here             all nine, five and four

Every replica of the first stage has a loader with as many mini-batches. The runtime asserts that
each replica of a stage gets a whole number of them, and that it exchanges a whole number with each
replica of the stages beside it. Where one assertion fails, the other ranks wait for ever.

The thesis rounds the mini-batches of a loader down to a multiple of the least common multiple of
the other stages' replicas (its text says greatest common divisor). That is enough for 3-2, and for
the first assertion only: of the 154 pipelines of 2 to 4 stages on up to 8 ranks, 10 still stop with
12 mini-batches a loader.
Our schedule needs neither, as a mini-batch's number in the run decides on its replica.

Sources: ``runtime/runtime.py`` (``num_iterations``) and ``runtime/communication.py``
(``num_iterations_for_helper_threads``, ``setup_messaging_schedule``) of PipeDream's release, and
their changes in DDLBench's (sara-nl/DDLBench, pipedream-fork); the thesis, Section 7.1.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import chain, cycle

from ddlbench.planning.schedules.action import InvalidSchedule, Schedule
from ddlbench.planning.schedules.pipedream import check_replicas


def why_release_stops(replicas: Sequence[int], per_loader: int) -> str:
    """Why PipeDream's released runtime stops before the first pass; empty if it runs.

    Args:
        replicas: of each stage, first to last.
        per_loader: mini-batches of each replica of the first stage.

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
        own = (number for turn, number in enumerate(sent) if (sender + turn) % count == replica)
        queues.append(deque(own))
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
