"""Where looped schedules post their receives: the same places as in torch's own lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from torch.distributed.pipelining import schedules as torchs
from torch.distributed.pipelining.stage import _PipelineStageBase

from ddlbench.planning.schedules import (
    InvalidSchedule,
    interleaved_1f1b,
    interleaved_zero_bubble,
    zero_bubble_v,
)
from ddlbench.planning.schedules.events import posted_receives
from ddlbench.planning.schedules.schedule import Channel

_RECEIVES = {torchs.RECV_F: "activation", torchs.RECV_B: "gradient"}
_PASSES = (torchs.F, torchs.FULL_BACKWARD, torchs.BACKWARD_INPUT, torchs.BACKWARD_WEIGHT)


class _Stage(_PipelineStageBase):
    """What torch asks of a stage to order its passes."""

    def __init__(self, index: int, ranks: int, places: list[int]) -> None:
        self.stage_index, self.num_stages, self.group_size = index, len(places), ranks
        self.group_rank, self.has_backward, self.submod = places[index], True, None
        self.stage_index_to_group_rank = dict(enumerate(places))


_Stage.__abstractmethods__ = frozenset()


def torchs_posts(
    schedule: Callable[..., torchs.PipelineScheduleMulti],
    ranks: int,
    places: list[int],
    micro_batches: int,
) -> tuple[tuple[tuple[int, Channel], ...], ...]:
    """Torch's list of each rank, as :func:`posted_receives` says it."""
    stages = [_Stage(index, ranks, places) for index, rank in enumerate(places) if rank == 0]
    lists = schedule(stages, micro_batches, loss_fn=lambda *_: None).pipeline_order_with_comms
    posts: list[list[tuple[int, Channel]]] = [[] for _ in range(ranks)]
    for rank, actions in lists.items():
        done = 0
        for action in actions:
            kind = action.computation_type
            done += kind in _PASSES
            if kind in _RECEIVES:
                source = action.stage_index + (-1 if kind == torchs.RECV_F else 1)
                posts[rank].append((done, (_RECEIVES[kind], places[source], rank)))
    return tuple(map(tuple, posts))


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("torchs_own", "ours"),
    [
        (torchs.ScheduleInterleaved1F1B, interleaved_1f1b),
        (torchs.ScheduleInterleavedZeroBubble, interleaved_zero_bubble),
    ],
)
def test_interleaved_schedules_post_as_torch_does(torchs_own, ours, ranks, stages) -> None:
    places = [index % ranks for index in range(ranks * stages)]
    for count in (ranks, 2 * ranks, 4 * ranks):
        expected = torchs_posts(torchs_own, ranks, places, count)
        assert posted_receives(ours(ranks, stages, count)) == expected


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_zero_bubble_v_posts_as_torch_does(ranks) -> None:
    places = [*range(ranks), *reversed(range(ranks))]
    for count in (2 * ranks, 3 * ranks):
        expected = torchs_posts(torchs.ScheduleZBVZeroBubble, ranks, places, count)
        assert posted_receives(zero_bubble_v(ranks, count)) == expected


def test_a_rank_that_is_behind_posts_late() -> None:
    # Rank 1 has the receive of micro-batch 1 on its list only behind the pass of micro-batch 0.
    posts = posted_receives(interleaved_1f1b(2, 1, 2))[1]
    assert posts == ((0, ("activation", 0, 1)), (1, ("activation", 0, 1)))


def test_a_pass_without_a_sender_is_refused() -> None:
    schedule = interleaved_1f1b(2, 1, 2)
    silent = tuple(action for action in schedule.actions[0] if "send" not in action.kind)
    with pytest.raises(InvalidSchedule, match="deadlocks"):
        posted_receives(replace(schedule, actions=(silent, schedule.actions[1])))
