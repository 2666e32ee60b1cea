"""Zero-bubble schedules: the weights' share of a backward pass waits for an idle moment.

::

    backward B = I (gradient of the input, the rank before waits for it) + W (of the weights)

    rank 0   F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 ...
    rank 1      F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 ...          rank k lets k weight passes wait,
    rank 2         F0 F1 I0 F2 I1 F3 I2 W0 ...             and does them in the drain
    rank 3            F0 I0 F1 I1 F2 I2 F3 I3 W0 ...

A rank holds the activations of a micro-batch until its W. All ranks hold the same number.

Sources: Zero Bubble Pipeline Parallelism (Qi et al., ICLR 2024), schedule ZB-H1, on interleaved
stages as torch.distributed.pipelining has it (``ScheduleInterleavedZeroBubble``).

ZB-V: two chunks a rank, laid out as a V, so that the first rank also computes the loss.

::

    stages    0  1  2  3        forward passes go down the left arm of the V and up the right;
              7  6  5  4        rank r holds stages r and 2p - 1 - r        (p = 4)
    rank      0  1  2  3

    rank 0    F F F F F F F | f i w  f i w  f i w  f i w | F I W f i w ...   F, I, W of stage r
    rank 3    F | f F f F f F | f i w | F I W f i w ...                     f, i, w of the other

There is no bubble where F, I and W take equal time and messages none; a rank never holds more
than 2p halves, as much as 1F1B's first rank.

Source: Zero Bubble Pipeline Parallelism (Qi et al., ICLR 2024), section 6, in the four phases of
torch.distributed.pipelining (``ScheduleZBVZeroBubble``).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from ddlbench.planning.schedules.action import Action, Kind, Schedule
from ddlbench.planning.schedules.assemble import positive, with_messages, with_update
from ddlbench.planning.schedules.flushing import looped


def interleaved_zero_bubble(ranks: int, chunks: int, micro_batches: int) -> Schedule:
    """The schedule of one optimizer step; arguments and errors as of ``interleaved_1f1b``."""
    return replace(
        looped(
            ranks, chunks, micro_batches, backward="backward_input", hop=1, finish=_with_weights
        ),
        name="interleaved-zero-bubble",
        receives_ahead=ranks - 1,
    )


def _with_weights(order: list[Action], waiting: int) -> list[Action]:
    """Adds each weight pass ``waiting`` input passes after its own; the rest at the end."""
    result: list[Action] = []
    due: list[Action] = []
    for action in order:
        result.append(action)
        if action.kind == "backward_input":
            due.append(Action("backward_weight", action.stage, action.micro_batch))
            if len(due) > waiting:
                result.append(due.pop(0))
    return result + due


def zero_bubble_v(ranks: int, micro_batches: int) -> Schedule:
    """The schedule of one optimizer step.

    Raises:
        InvalidSchedule: a count is below 1.
    """
    positive(ranks=ranks, micro_batches=micro_batches)
    last = 2 * ranks - 1
    stage_ranks = tuple((min(stage, last - stage),) for stage in range(last + 1))
    orders = []
    for rank in range(ranks):
        # The phases need 2p - 1 micro-batches; with fewer, the missing ones are left out.
        order = _Arms(rank, last - rank).order(rank, ranks, max(last, micro_batches))
        passing = [action for action in order if action.micro_batch < micro_batches]
        orders.append(with_update(passing, (rank, last - rank)))
    return Schedule(
        name="zero-bubble-v",
        micro_batches=micro_batches,
        stage_ranks=stage_ranks,
        actions=with_messages(orders, stage_ranks),
        in_flight=(min(2 * ranks, 2 * micro_batches),) * ranks,
        receives_ahead=1,
    )


class _Arms:
    """The passes of a rank's two stages; each kind counts from micro-batch 0."""

    def __init__(self, down: int, up: int) -> None:
        self._stages = {"down": down, "up": up}
        self._counters: dict[tuple[str, str], count[int]] = {}
        self._order: list[Action] = []

    def _do(self, arm: str, *kinds: Kind) -> None:
        for kind in kinds:
            counter = self._counters.setdefault((arm, kind), count())
            self._order.append(Action(kind, self._stages[arm], next(counter)))

    def order(self, rank: int, ranks: int, micro_batches: int) -> list[Action]:
        for _ in range(2 * (ranks - rank) - 1):
            self._do("down", "forward")
        for _ in range(rank):
            self._do("up", "forward")
            self._do("down", "forward")
        for _ in range(ranks - rank):
            self._do("up", "forward", "backward_input", "backward_weight")
        started = 2 * ranks - 1 - rank  # forward passes of the down arm so far
        for number in range(started, started + micro_batches - ranks):
            if number < micro_batches:
                self._do("down", "forward")
            self._do("down", "backward_input", "backward_weight")
            self._do("up", "forward", "backward_input", "backward_weight")
        for _ in range(rank):
            self._do("down", "backward_input")
            self._do("up", "backward_input")
        for _ in range(ranks - rank):
            self._do("down", "backward_input", "backward_weight")
        for _ in range(rank):
            self._do("up", "backward_weight")
        for _ in range(rank):
            self._do("down", "backward_weight")
        return self._order
