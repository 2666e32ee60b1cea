"""Planned boxes equal tables drawn by hand; passes planned from a cell's own medians."""

from __future__ import annotations

from dataclasses import replace

import pytest
import timeline_factory as made

from ddlbench.common.errors import ConfigError
from ddlbench.planning.planner import make_plan
from ddlbench.planning.schedules import Action, StageDurations
from ddlbench.planning.strategy import strategy_of
from ddlbench.report.timeline.box import Box, Row, computing_share
from ddlbench.report.timeline.cell import (
    boxes_of,
    measured_durations,
    read_cell,
    unit_durations,
)
from ddlbench.report.timeline.figure import SCHEDULES, Lesson, planned_lesson, show_schedule
from ddlbench.strategies.torchgpipe.descriptor import torchgpipe_step


def words(*lines: str) -> list[str]:
    """Lines with any number of blanks between words."""
    return [" ".join(line.split()) for line in lines]


GPIPE = words(
    "f0 f1 f2 .  .  .  .  .  .  b2 b2 b1 b1 b0 b0",
    ".  f0 f1 f2 .  .  .  b2 b2 b1 b1 b0 b0 .  . ",
    ".  .  f0 f1 f2 b2 b2 b1 b1 b0 b0 .  .  .  . ",
)
ONE_F_ONE_B = words(
    "f0 f1 f2 .  .  .  .  b0 b0 f3 b1 b1 .  b2 b2 .  b3 b3",
    ".  f0 f1 .  .  b0 b0 f2 b1 b1 f3 b2 b2 .  b3 b3 .  . ",
    ".  .  f0 b0 b0 f1 b1 b1 f2 b2 b2 f3 b3 b3 .  .  .  . ",
)
PIPEDREAM = words(
    "f0 f1 f2 .  .  .  .  b0 b0 f3 b1 b1 f4 b2 b2 .  b3 b3 .  b4 b4",
    ".  f0 f1 .  .  b0 b0 f2 b1 b1 f3 b2 b2 f4 b3 b3 .  b4 b4 .  . ",
    ".  .  f0 b0 b0 f1 b1 b1 f2 b2 b2 f3 b3 b3 f4 b4 b4 .  .  .  . ",
)
MODEL_PARALLEL = words(
    "f0 .  .  .  b0 b0 f1 .  .  .  b1 b1",
    ".  f0 b0 b0 .  .  .  f1 b1 b1 .  . ",
)
DATA_PARALLEL = words("f0 b0 b0 a0 f2 b2 b2 a2", "f1 b1 b1 a0 f3 b3 b3 a2")
TWO_STEPS = words(
    "f0 f1 .  .  .  b1 b1 b0 b0 f0 f1 .  .  .  b1 b1 b0 b0",
    ".  f0 f1 b1 b1 b0 b0 .  .  .  f0 f1 b1 b1 b0 b0 .  . ",
)


@pytest.mark.parametrize(
    ("lesson", "table"),
    [
        (Lesson("gpipe", stages=3, batches=3), GPIPE),
        (Lesson("1f1b", stages=3, batches=4), ONE_F_ONE_B),
        (Lesson("pipedream", stages=3, batches=5), PIPEDREAM),
        (Lesson("model-parallel", stages=2, batches=2), MODEL_PARALLEL),
        (Lesson("data-parallel", batches=4, replicas=(2,)), DATA_PARALLEL),
        (Lesson("gpipe", stages=2, batches=2, steps=2), TWO_STEPS),
    ],
    ids=lambda value: value.schedule if isinstance(value, Lesson) else "",
)
def test_boxes_equal_the_table(lesson, table):
    shown = show_schedule(lesson)
    assert made.table_of(shown.window.planned.boxes, len(shown.rows)) == table
    computing = sum(word[0] in "fbr" for line in table for word in line.split())
    everything = sum(len(line.split()) for line in table)
    assert shown.window.planned.computing == pytest.approx(computing / everything)


def test_torchgpipe_recomputes_before_it_waits_for_the_gradient():
    """Else b0 of the first device would end one unit later."""
    step = torchgpipe_step(2, 2, recomputed=1)
    assert made.table_of(boxes_of(step, unit_durations(2)), 2) == words(
        "f0 f1 .  .  .  b1 b1 r0 b0 b0",
        ".  f0 f1 b1 b1 r0 b0 b0 .  . ",
    )
    always = boxes_of(torchgpipe_step(2, 2, recomputed=2), unit_durations(2))
    assert sum(box.kind == "recompute" for box in always) == 4
    never = boxes_of(torchgpipe_step(1, 3, recomputed=0), unit_durations(1))
    assert made.table_of(never, 1) == words("f0 f1 f2 b2 b2 b1 b1 b0 b0")


def test_replicas_number_as_their_executors_do():
    """Of a replicated pipeline each replica counts its own micro-batches."""
    shown = show_schedule(Lesson("1f1b", stages=1, batches=2, replicas=(2,), steps=2))
    line = "f0 b0 b0 f1 b1 b1 a0 f0 b0 b0 f1 b1 b1 a1"
    assert made.table_of(shown.window.planned.boxes, 2) == [line, line]
    assert [row.label for row in shown.rows] == [
        "device 0 · stage 0 · replica 0",
        "device 1 · stage 0 · replica 1",
    ]


def test_replicas_of_a_stage_meet_before_they_update():
    shown = show_schedule(Lesson("pipedream", stages=2, batches=2, replicas=(2, 1), update=1.0))
    # Both replicas wait for mini-batch 1, whose gradient the last stage gives second.
    sums = [box for box in shown.window.planned.boxes if box.kind == "all_reduce"]
    assert len({(box.start_s, box.end_s) for box in sums}) == 1
    assert [box.mini_batch for box in sums] == [0, 0]


@pytest.mark.parametrize(
    ("cell", "stages"),
    [
        (made.cell_of("pipedream", 3), 3),
        (made.cell_of("pipedream", 3, replicas="2+1"), 2),
        (made.cell_of("model-parallel-p2p", 2), 2),
        (made.cell_of("pipe-gpipe", 3), 3),
        (made.cell_of("pipe-1f1b", 4, replicas=2), 2),
        (made.cell_of("pipe-interleaved", 2), 4),
        (made.cell_of("pipe-zb", 2), 4),
        (made.cell_of("pipe-zbv", 2), 4),
        (made.cell_of("gpipe", 2), 2),
        (made.cell_of("gpipe", 3, checkpoint="never"), 3),
        (made.cell_of("model-parallel", 2), 2),
    ],
    ids=lambda value: value.id if hasattr(value, "id") else "",
)
def test_what_was_recorded_without_delays_is_what_is_planned(tmp_path, cell, stages):
    """Planted durations of every stage come back, in the order and at the times of the plan."""
    # Of a device with several stages one update is recorded for all; torchgpipe records none.
    plain = stages <= cell.devices and cell.strategy not in ("gpipe", "model-parallel")
    durations = StageDurations(
        forward_s=[0.010 + 0.003 * stage for stage in range(stages)],
        backward_s=[0.021 + 0.002 * stage for stage in range(stages)],
        input_share=0.4,
        update_s=[0.004] * stages if plain else [],
        all_reduce_s=[0.006] * stages if plain else [],
    )
    planted = made.write_cell(tmp_path, cell, durations, mini_batches=8)
    timeline = read_cell(tmp_path)
    assert timeline.in_seconds
    assert not timeline.not_planned
    for boxes in (timeline.planned, timeline.measured):
        assert [_what(box) for box in sorted(boxes, key=_what)] == sorted(map(_what, planted))
    times = {_what(box): (box.start_s, box.end_s) for box in planted}
    for box in timeline.planned:
        assert (box.start_s, box.end_s) == pytest.approx(times[_what(box)], abs=1e-6)
    for window in timeline.windows:
        assert window.planned.length_s == pytest.approx(window.measured.length_s, abs=1e-6)
        assert window.planned.computing == pytest.approx(window.measured.computing, abs=1e-6)


def _what(box):
    micro_batch = -1 if box.micro_batch is None else box.micro_batch
    return (box.row, box.kind, box.stage, box.mini_batch, micro_batch)


def test_messages_show_as_a_difference(tmp_path):
    cell = made.cell_of("pipe-1f1b", 2, chunks=4)
    durations = StageDurations([0.01, 0.01], [0.02, 0.02])
    made.write_cell(tmp_path, cell, durations, mini_batches=6, message_s=0.005)
    (window,) = read_cell(tmp_path).windows
    assert (window.count, window.steps) == (2, True)
    # Two steps, each with its bubble: (m + p - 1) (F + B) = 0.15 s; messages lengthen them.
    assert window.planned.length_s == pytest.approx(2 * 0.15)
    assert window.measured.length_s > window.planned.length_s
    assert window.planned.computing > window.measured.computing
    assert window.length_s == window.measured.length_s


def test_a_lone_outlier_does_not_change_the_plan(tmp_path):
    cell = made.cell_of("pipedream", 2)
    boxes = list(made.write_cell(tmp_path, cell, StageDurations([0.01] * 2, [0.02] * 2)))
    slow = next(n for n, box in enumerate(boxes) if box.kind == "forward")
    planned, _ = measured_durations(_planned(cell), boxes, _rows(2))
    changed = [*boxes]
    changed[slow] = _longer(boxes[slow], 5.0)
    same, _ = measured_durations(_planned(cell), changed, _rows(2))
    actions = [a for actions in _planned(cell).schedule.actions for a in actions if a.computes]
    assert [same(a) for a in actions] == pytest.approx([planned(a) for a in actions])


def _planned(cell):
    return strategy_of(cell.strategy).schedule_of(make_plan(cell), 8)


def _rows(count):
    return [Row(f"device {n}", (n,)) for n in range(count)]


def _longer(box, seconds):
    return replace(box, end_s=box.end_s + seconds)


def test_a_pass_that_was_not_recorded_is_named(tmp_path):
    cell = made.cell_of("pipedream", 2)
    boxes = made.write_cell(tmp_path, cell, StageDurations([0.01] * 2, [0.02] * 2))
    made.write_trace(tmp_path, [b for b in boxes if (b.kind, b.stage) != ("backward", 1)])
    timeline = read_cell(tmp_path)
    assert timeline.planned == ()
    assert timeline.not_planned == "nothing is recorded of backward of stage 1"
    assert all(window.planned is None for window in timeline.windows)


def test_the_loss_is_part_of_the_last_stages_forward_pass():
    cell = made.cell_of("pipe-gpipe", 2)
    schedule = strategy_of(cell.strategy).schedule_of(make_plan(cell), 1)
    boxes = [*made.recorded(cell, StageDurations([1.0, 1.0], [2.0, 2.0]), 1)]
    boxes.append(Box(1, "loss", 1, made.FIRST, None, 100.0, 100.5))
    durations, _ = measured_durations(schedule, boxes, _rows(2))
    assert durations(Action("forward", 0, 0)) == 1.0
    assert durations(Action("forward", 1, 0)) == 1.5


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_every_schedule_can_be_shown(name, stages):
    lesson = Lesson(name, stages=stages, batches=8)
    shown = show_schedule(lesson)
    assert len(shown.rows) == (1 if name == "data-parallel" else stages)
    assert 0 < shown.window.planned.computing <= 1
    assert {box.row for box in shown.window.planned.boxes} == set(range(len(shown.rows)))


@pytest.mark.parametrize(
    ("lesson", "sentence"),
    [
        (Lesson("gpipe", replicas=(2, 1)), "--replicas 2\\+1: gpipe has copies of the whole"),
        (Lesson("model-parallel", replicas=(2,)), "leave --replicas out"),
        (Lesson("pipedream", stages=4, replicas=(2, 1)), "--stages is 4; leave --stages out"),
        (Lesson("pipedream", steps=2), "write --mini-batches instead"),
    ],
)
def test_lessons_that_do_not_go_together(lesson, sentence):
    with pytest.raises(ConfigError, match=sentence):
        planned_lesson(lesson)


# How much of the time devices compute where no message holds them up: 2-1-1 of the thesis' Figures
# 7.1 and 7.2, and pipelines that narrow and widen. Replicas of a balanced pipeline that wait for
# nobody leave no gap but to fill and to drain.
@pytest.mark.parametrize(
    ("replicas", "sync", "ddp"),
    [((2, 1, 1), 0.67, 0.67), ((4, 2, 1, 1), 0.57, 0.57), ((3, 1), 1.0, 1.0), ((1, 3), 0.75, 0.6)],
)
def test_what_waiting_for_replicas_costs(replicas, sync, ddp):
    def computing(how):
        lesson = Lesson(
            "pipedream", stages=len(replicas), replicas=replicas, batches=300, all_reduce=0.0,
            durations=tuple(map(float, replicas)), stage_all_reduce=how,
        )  # fmt: skip
        return show_schedule(lesson).window.planned.computing

    assert computing("async") > 0.97
    assert computing("sync") == pytest.approx(sync, abs=0.015)
    assert computing("ddp") == pytest.approx(ddp, abs=0.015)


@pytest.mark.parametrize("update", [0.0, 0.5])
def test_an_update_that_waits_for_a_late_sum_is_drawn_as_long_as_it_takes(update):
    lesson = Lesson(
        "pipedream", stages=3, replicas=(2, 1, 1), batches=8, durations=(2.0, 1.0, 1.0),
        update=update, stage_all_reduce="async",
    )  # fmt: skip
    updates = [b for b in show_schedule(lesson).window.planned.boxes if b.kind == "update"]
    assert {round(box.end_s - box.start_s, 9) for box in updates} == ({update} if update else set())


def test_stages_take_the_durations_that_are_given():
    shown = show_schedule(
        Lesson("pipedream", stages=2, batches=2, durations=(2.0, 1.0), backward=2.0)
    )
    assert made.table_of(shown.window.planned.boxes, 2) == words(
        "f0 f0 f1 f1 .  b0 b0 b0 b0 b1 b1 b1 b1",
        ".  .  f0 b0 b0 f1 b1 b1 .  .  .  .  . ",
    )


def test_computing_share_counts_what_lies_inside():
    boxes = made.recorded(made.cell_of("pipe-gpipe", 2, chunks=1), unit_durations(2), 1)
    assert computing_share(boxes, 2, 0.0, 6.0) == pytest.approx(0.5)
    assert computing_share(boxes, 2, 0.5, 1.0) == pytest.approx(0.5)
    assert computing_share(boxes, 2, 3.0, 3.0) == 0.0
