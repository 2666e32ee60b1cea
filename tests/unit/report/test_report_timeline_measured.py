"""What was recorded: files read, clocks that are apart, and the part of a run that is shown."""

from __future__ import annotations

import json
import queue
import threading
import time
from dataclasses import replace

import pytest
import timeline_factory as made
import torch.distributed as dist
from cases.rank_reports import rank_report

from ddlbench.planning.schedules import StageDurations
from ddlbench.report.timeline.box import InvalidTimeline, Row
from ddlbench.report.timeline.cell import has_spans, read_cell, read_measured
from ddlbench.runtime.rank_report import RankReport
from ddlbench.runtime.rendezvous import clock_offsets
from ddlbench.runtime.result import trace_json

EQUAL = StageDurations([0.01] * 8, [0.02] * 8)
SKEW_S = {0: 0.0, 1: -0.05, 2: 0.05}
MINI_BATCHES = 6
PASS_S = 0.004


def skewed(rank):
    return lambda: time.perf_counter() + SKEW_S[rank]


def hand_over(rank, store, boxes, reports, uncertainties_s):
    """A stage that hands mini-batches to the next one, and records by its own clock."""
    now = skewed(rank)
    offset = clock_offsets(store, rank, len(SKEW_S), now)[rank]
    spans = []
    for number in range(MINI_BATCHES):
        if rank:
            boxes[rank].get(timeout=60)
        start_s = now()
        time.sleep(PASS_S)
        spans.append(("forward", number, start_s, now()))
        if rank + 1 in boxes:
            boxes[rank + 1].put(number)
    reports[rank] = rank_report(
        rank=rank,
        node=rank,
        host=f"host{rank}",
        role="stage",
        stage=rank,
        spans=tuple(spans),
        clock_offset_s=offset.offset_s,
    )
    uncertainties_s[rank] = offset.uncertainty_s


def overlaps_s(boxes):
    """By how long each forward pass seems to begin before the stage before has given it."""
    ends = {(box.stage, box.number): box.end_s for box in boxes if box.kind == "forward"}
    return [
        ends[box.stage - 1, box.number] - box.start_s
        for box in boxes
        if box.kind == "forward" and box.stage > 0
    ]


def test_clocks_50_ms_apart_line_up(tmp_path):
    """Real hand-overs between threads whose clocks are 50 ms behind and before the first's."""
    store = dist.HashStore()
    boxes = {rank: queue.Queue() for rank in SKEW_S if rank}
    reports: dict[int, RankReport] = {}
    uncertainties_s: dict[int, float] = {}
    threads = [
        threading.Thread(target=hand_over, args=(rank, store, boxes, reports, uncertainties_s))
        for rank in SKEW_S
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    rows = [Row(f"node {rank} · device 0", (rank,)) for rank in SKEW_S]
    trace = tmp_path / "trace.json"
    trace.write_text(trace_json(list(reports.values())))
    aligned = read_measured(tmp_path, rows)
    assert len(aligned) == len(SKEW_S) * MINI_BATCHES
    # Half the quickest round trip; threads of a busy machine may all have slow ones.
    uncertainty_s = max(uncertainties_s.values())
    assert max(overlaps_s(aligned)) <= 10 * uncertainty_s + 1e-3
    # Without the offsets the same spans tell that stage 1 began 50 ms before it had its input.
    trace.write_text(trace_json([replace(r, clock_offset_s=0.0) for r in reports.values()]))
    assert max(overlaps_s(read_measured(tmp_path, rows))) > 0.02


def test_waits_are_one_kind_and_sums_another(tmp_path):
    made.write_plan(tmp_path, made.cell_of("pipedream", 2))
    kinds = ("receive_wait", "send_wait", "all_reduce_wait", "wait", "forward", "loss")
    events = [
        {"name": f"{kind} 4", "ph": "X", "ts": 10.0 * n, "dur": 5.0, "tid": 1}
        for n, kind in enumerate(kinds)
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    boxes = read_cell(tmp_path).measured
    actual = [box.kind for box in boxes]
    assert actual == ["wait", "wait", "all_reduce", "wait", "forward", "loss"]
    assert {(box.row, box.stage, box.mini_batch, box.micro_batch) for box in boxes} == {
        (1, 1, 4, None)
    }
    assert boxes[1].start_s == pytest.approx(10e-6)


EVENT = {"name": "forward 4", "ph": "X", "ts": 0.0, "dur": 5.0, "tid": 0}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "trace.json: not what a cell records: it is no JSON"),
        ("[]", "not what a cell records"),
        ('{"traceEvents": [3]}', "not what a cell records"),
        ({"name": "forward"}, "'forward' names no kind of work and mini-batch"),
        ({"tid": 7}, "it names device 7, and the plan has 2"),
        ({"tid": -1}, "has no rank, or ends before it begins"),
        ({"tid": "0"}, "has no rank, or ends before it begins"),
        ({"dur": -1.0}, "has no rank, or ends before it begins"),
        ({"ts": float("nan")}, "NaN is no number of JSON"),
        ({"ts": None}, "not what a cell records"),
    ],
)
def test_a_broken_trace_is_one_sentence(tmp_path, text, sentence):
    made.write_plan(tmp_path, made.cell_of("pipedream", 2))
    if isinstance(text, dict):
        text = json.dumps({"traceEvents": [{**EVENT, **text}]})
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(InvalidTimeline, match="delete the result.json") as raised:
        read_cell(tmp_path)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    "text",
    ["partition,kind\n0,forward\n", "partition,kind,micro_batch,start_s,end_s\n5,forward,0,0,1\n"],
)
def test_broken_partitions_are_one_sentence(tmp_path, text):
    made.write_plan(tmp_path, made.cell_of("gpipe", 2))
    (tmp_path / "partitions.csv").write_text(text)
    with pytest.raises(InvalidTimeline, match="partitions.csv: not what a cell records"):
        read_cell(tmp_path)


def test_a_folder_that_is_no_cell(tmp_path):
    assert not has_spans(tmp_path)
    with pytest.raises(InvalidTimeline, match="has no plan.json"):
        read_cell(tmp_path)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(InvalidTimeline, match="not a readable plan: schema_version is missing"):
        read_cell(tmp_path)


def test_a_cell_without_stages_and_spans_has_nothing_to_draw(tmp_path):
    made.write_plan(tmp_path, made.cell_of("ddp", 2))
    with pytest.raises(InvalidTimeline, match="strategy ddp has no schedule of stages"):
        read_cell(tmp_path)


@pytest.mark.parametrize("trace", [None, '{"traceEvents": []}'])
def test_without_spans_the_plan_stands_alone(tmp_path, trace):
    made.write_plan(tmp_path, made.cell_of("pipe-1f1b", 2))
    if trace is not None:
        (tmp_path / "trace.json").write_text(trace)
    timeline = read_cell(tmp_path)
    assert not timeline.in_seconds
    assert timeline.measured == ()
    (window,) = timeline.windows
    assert window.measured is None
    assert window.planned.length_s == pytest.approx(2 * 3 * (4 + 1))


def test_spans_of_a_strategy_without_stages_are_shown_alone(tmp_path):
    made.write_plan(tmp_path, made.cell_of("ddp", 2))
    made.write_trace(tmp_path, made.recorded(made.cell_of("pipedream", 2, replicas="2"), EQUAL, 12))
    timeline = read_cell(tmp_path)
    assert timeline.not_planned.startswith("the strategy has no schedule of stages, and the cell")
    (window,) = timeline.windows
    assert window.planned is None
    assert {box.mini_batch for box in window.measured.boxes} == {
        window.first,
        window.first + 1,
    }


def test_pipedream_shows_how_it_fills_and_that_it_is_full(tmp_path):
    cell = made.cell_of("pipedream", 4)
    made.write_cell(tmp_path, cell, EQUAL, mini_batches=60)
    start_up, steady = read_cell(tmp_path).windows
    assert (start_up.title, steady.title) == ("start-up", "steady state")
    assert (start_up.first, start_up.count) == (made.FIRST, 3 + 4)
    assert start_up.measured.start_s == 0.0
    # Equal stages: full, nobody waits, and a mini-batch takes F + B of one stage.
    assert steady.count == 8
    assert steady.measured.length_s == pytest.approx(8 * 0.03)
    assert steady.measured.computing == pytest.approx(1.0)
    assert start_up.measured.computing < 0.9


def test_windows_can_be_chosen_and_short_runs_are_shown_whole(tmp_path):
    cell = made.cell_of("pipedream", 2)
    made.write_cell(tmp_path, cell, EQUAL, mini_batches=60)
    assert [window.count for window in read_cell(tmp_path, steps=2).windows] == [5, 2]
    made.write_cell(tmp_path, cell, EQUAL, mini_batches=4)
    (window,) = read_cell(tmp_path).windows
    assert (window.title, window.first, window.count) == ("", made.FIRST, 4)
    assert {box.mini_batch for box in window.measured.boxes} == set(range(3, 7))


def test_replicas_begin_a_steady_state_together(tmp_path):
    made.write_cell(tmp_path, made.cell_of("pipedream", 3, replicas="2+1"), EQUAL, 60)
    _, steady = read_cell(tmp_path).windows
    assert (steady.first - made.FIRST) % 2 == 0


def test_the_median_steps_are_shown(tmp_path):
    """Of five steps that take 1, 5, 2, 4 and 3 units, the one that takes 3."""
    cell = made.cell_of("pipe-gpipe", 1, chunks=1)
    made.write_plan(tmp_path, cell)
    events, now = [], 0.0
    for step, units in enumerate((1.0, 5.0, 2.0, 4.0, 3.0)):
        for kind in ("forward 0.0", "backward 0.0"):
            name = f"{kind} {made.FIRST + step}"
            events.append({"name": name, "ph": "X", "ts": now, "dur": 50.0 * units, "tid": 0})
            now += 50.0 * units
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    (window,) = read_cell(tmp_path, steps=1).windows
    assert window.first == made.FIRST + 4
    assert window.measured.length_s == pytest.approx(300e-6)
