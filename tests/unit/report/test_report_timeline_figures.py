"""Pictures of timelines: readable, complete, and clear where there is nothing to show."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import timeline_factory as made
from figure_checks import assert_no_overlap, assert_readable, of
from matplotlib.colors import to_rgb
from report_factory import SITE_NAME, matrix, result, write

from ddlbench.experiment.paths import RESULTS, cell_dir
from ddlbench.experiment.result import Result, write_result
from ddlbench.planning.schedules import StageDurations
from ddlbench.report.footer import Context
from ddlbench.report.labels import KINDS, kind_look
from ddlbench.report.measurements import make_tables
from ddlbench.report.registry import figures_for
from ddlbench.report.style import style
from ddlbench.report.timeline import figure
from ddlbench.report.timeline.box import PASSES, Box, Part, beside_lanes, trace_of_boxes
from ddlbench.report.timeline.cell import read_cell
from ddlbench.report.timeline.draw import COLUMNS, draw_page, row_heights_mm
from ddlbench.report.timeline.figure import (
    SCHEDULES,
    STAGE_ALL_REDUCES,
    Lesson,
    caption,
    show_schedule,
)

UNEVEN = StageDurations(
    [0.010, 0.014, 0.009, 0.012] * 8, [0.022, 0.026, 0.019, 0.024] * 8, update_s=[0.003] * 32
)
CELLS = {
    "one stage": (made.cell_of("pipedream", 1), 20),
    "pipedream": (made.cell_of("pipedream", 4), 60),
    "replicated": (made.cell_of("pipedream", 3, replicas="2+1"), 40),
    "model-parallel": (made.cell_of("model-parallel-p2p", 3), 9),
    "1f1b": (made.cell_of("pipe-1f1b", 4), 5),
    "replicated 1f1b": (made.cell_of("pipe-1f1b", 4, replicas=2), 5),
    "interleaved": (made.cell_of("pipe-interleaved", 2), 4),
    "zero bubble": (made.cell_of("pipe-zbv", 2), 4),
    "gpipe": (made.cell_of("gpipe", 4), 1),
    "many devices": (made.cell_of("pipe-gpipe", 14, chunks=4), 2),
}


def pages(cell):
    with style():
        sentences = [*figure.sentences([cell]), *figure.measured_where(cell.result)]
        drawn = draw_page(figure.TITLE, list(figure.shown_windows(cell)), sentences)
        drawn[0].draw_without_rendering()
    return drawn


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Every cell's picture, drawn once; messages take 4 ms."""
    pictures = {}
    for name, (cell, mini_batches) in CELLS.items():
        folder = tmp_path_factory.mktemp("cell")
        made.write_cell(folder, cell, UNEVEN, mini_batches, message_s=0.004)
        timeline = read_cell(folder)
        pictures[name] = (timeline, *pages(timeline))
    return pictures


@pytest.mark.parametrize("name", CELLS)
def test_texts_are_readable_and_apart(drawn, name):
    _, page, _ = drawn[name]
    assert_readable(page)
    assert_no_overlap(page)


@pytest.mark.parametrize("name", CELLS)
def test_all_boxes_are_drawn_and_in_the_table(drawn, name):
    timeline, page, table = drawn[name]
    assert list(table.columns) == COLUMNS
    assert set(table["panel"]) == {"planned", "measured"}
    for kind in set(table["kind"]):
        in_table = table[table["kind"] == kind]
        boxes = sum(len(collection.get_paths()) for collection in of(page, kind))
        assert boxes == len(in_table), kind
    labels = [text.get_text() for axes in page.axes for text in axes.get_yticklabels()]
    # Once planned, once measured, in every window.
    assert labels == [row.label for row in timeline.rows] * 2 * len(timeline.windows)
    headings = [text.get_text() for text in of(page, "panel")]
    assert [text.split(":")[0] for text in headings] == ["planned", "measured"] * len(
        timeline.windows
    )
    words = " ".join(text.get_text() for text in page.texts)
    assert "messages free" in words
    assert "bubble" in words


def test_numbers_stand_in_boxes_that_are_wide_enough(drawn):
    _, page, table = drawn["1f1b"]
    numbers = [text.get_text() for text in of(page, "number")]
    assert 0 < len(numbers) <= int(table["kind"].isin(PASSES).sum())
    assert set(numbers) <= {"0", "1", "2", "3"}


def test_the_shorter_half_says_where_it_ends(drawn):
    timeline, page, _ = drawn["1f1b"]
    (window,) = timeline.windows
    (end,) = of(page, "end")
    assert list(end.get_xdata()) == [window.planned.length_s] * 2


def test_times_in_the_table_start_at_the_axis(drawn):
    _, _, table = drawn["interleaved"]
    assert table.groupby("panel")["start_s"].min().tolist() == [0.0, 0.0]
    assert (table["end_s"] >= table["start_s"]).all()


def test_many_devices_have_lower_rows():
    nothing = Part((), 0.0, 1.0, 0.0)
    assert row_heights_mm(64, nothing)[0] < row_heights_mm(2, nothing)[0]


def test_buckets_under_way_together_lie_in_lanes_and_make_their_row_higher():
    def bucket(row, number, start_s, end_s):
        return Box(row, "all_reduce_bucket", 0, 6, number, start_s, end_s)

    boxes = [
        Box(0, "backward", 0, 6, None, 0.0, 5.0),
        bucket(0, 0, 0.0, 2.0),
        bucket(0, 1, 1.0, 3.0),
        bucket(0, 2, 2.0, 4.0),  # begins where the first one ends
        bucket(1, 0, 1.0, 2.0),
    ]
    assert [beside_lanes(boxes).get(box) for box in boxes] == [None, 0, 1, 0, 0]
    plain, first, second = (
        *row_heights_mm(1, Part((boxes[0],), 0.0, 5.0, 1.0)),
        *row_heights_mm(2, Part(tuple(boxes), 0.0, 5.0, 1.0)),
    )
    assert first - plain == pytest.approx(2 * (second - plain))
    assert second > plain


def test_a_plan_without_spans_says_so(tmp_path):
    made.write_plan(tmp_path, made.cell_of("pipe-1f1b", 2))
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    page, table = pages(read_cell(tmp_path))
    assert_readable(page)
    assert_no_overlap(page)
    texts = [text.get_text() for text in of(page, "panel")]
    assert texts[1] == "not measured: the cell has recorded no spans"
    assert set(table["panel"]) == {"planned"}
    assert "Planned without a measurement" in " ".join(t.get_text() for t in page.texts)


def test_what_cannot_be_planned_is_said(tmp_path):
    cell = made.cell_of("ddp", 2)
    made.write_plan(tmp_path, cell)
    boxes = made.recorded(made.cell_of("pipedream", 2, replicas="2"), UNEVEN, 8)
    made.write_trace(tmp_path, boxes)
    page, table = pages(read_cell(tmp_path))
    assert_readable(page)
    assert_no_overlap(page)
    texts = [text.get_text() for text in of(page, "panel")]
    assert texts[0].startswith("not planned: the strategy has no schedule of stages")
    assert set(table["panel"]) == {"measured"}


def test_clock_site_and_commit_stand_under_the_picture(tmp_path):
    cell = made.cell_of("pipedream", 2)
    made.write_cell(tmp_path, cell, UNEVEN)
    ranks = [{"offset_s": 0.0, "uncertainty_s": 0.0}, {"offset_s": 0.05, "uncertainty_s": 4e-5}]
    details = {"clock": {"reference_rank": 0, "ranks": ranks}}
    values = result(cell, 1.0, plan_details=details)
    write_result(tmp_path / "result.json", Result.from_dict(values))
    timeline = read_cell(tmp_path)
    assert timeline.uncertainty_s == 4e-5
    page, _ = pages(timeline)
    words = " ".join(text.get_text() for text in page.texts)
    for phrase in ("40 µs apart", "Site local", "2031-04-05", "commit 0123456"):
        assert phrase in words


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_alone_are_readable(name):
    replicas = (4,) if name == "data-parallel" else (1,)
    lesson = Lesson(name, stages=4, batches=8, replicas=replicas, message=0.25)
    with style():
        page, table = draw_page(
            "Which device computes what when", [show_schedule(lesson)], caption(lesson)
        )
        page.draw_without_rendering()
    assert_readable(page)
    assert_no_overlap(page)
    assert set(table["panel"]) == {"planned"}
    assert len(of(page, "panel")) == 1


@pytest.mark.parametrize("how", STAGE_ALL_REDUCES)
def test_the_caption_says_how_long_and_when_replicas_wait(how):
    lesson = Lesson(
        "pipedream", stages=3, replicas=(2, 1, 1), durations=(2, 1, 1), stage_all_reduce=how
    )
    text = " ".join(caption(lesson))
    assert "A forward pass takes 2, 1, 1 by stage, a backward pass 2 times that" in text
    assert ("wait for nobody" in text, "within the backward" in text) == (
        how == "async", how == "ddp",
    )  # fmt: skip
    with style():
        page, _ = draw_page(
            "Which device computes what when", [show_schedule(lesson)], caption(lesson)
        )
        page.draw_without_rendering()
    assert_readable(page)
    assert_no_overlap(page)


def test_kinds_are_told_apart():
    solid = [look.colour for look in KINDS.values() if not look.hatch]
    # A backward pass is either whole or split; the two never rendezvous in one picture.
    assert len(set(solid)) == len(solid) - 1
    assert kind_look("something_else").label == "something else"
    assert len(to_rgb(kind_look("something_else").colour)) == 3


def test_chrome_traces_hold_both_halves(drawn):
    timeline, _, _ = drawn["gpipe"]
    panels = {"planned": timeline.planned, "measured": timeline.measured}
    trace = json.loads(json.dumps(trace_of_boxes(panels, timeline.rows)))
    pieces = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(pieces) == len(timeline.planned) + len(timeline.measured)
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert names == ["planned", "measured"]
    first = next(event for event in pieces if event["pid"] == 1)
    assert (first["ts"], first["dur"], first["cat"]) == (0.0, 10000.0, "forward")


STRATEGIES = ["sequential", "pipedream", "pipe-1f1b", "gpipe", "ddp"]


def experiment(tmp_path, monkeypatch, spans=True, **axes):
    """The figure of a whole experiment, drawn."""
    rows = matrix(monkeypatch, strategies=STRATEGIES, networks=["vgg11", "resnet18"], **axes)
    for row in rows:
        write(tmp_path, row.cell, result(row.cell, 1.0))
        folder = tmp_path / cell_dir(SITE_NAME, row.cell.id).relative_to(RESULTS)
        if spans and row.cell.strategy in ("pipedream", "pipe-1f1b", "gpipe"):
            made.write_cell(folder, row.cell, UNEVEN, 20, message_s=0.004)
    tables = make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")
    with style():
        page, table = figure.draw(tables, Context("this machine, CPU", tmp_path))
        page.draw_without_rendering()
    return rows, page, table


@pytest.mark.slow
def test_an_experiment_shows_one_cell_of_each_strategy_and_geometry(tmp_path, monkeypatch):
    rows, page, table = experiment(tmp_path, monkeypatch, geometry=["1x2", "1x4"], repeats=2)
    assert "timelines" in figures_for(rows)
    assert_readable(page)
    assert_no_overlap(page)
    cells = list(dict.fromkeys(table["cell_id"]))
    assert [tuple(cell.split("/")[1:4]) for cell in cells] == [
        ("vgg11", strategy, geometry)
        for strategy in ("pipedream", "pipe-1f1b", "gpipe")
        for geometry in ("1x2", "1x4")
    ]
    assert all(cell.endswith("/rep0") for cell in cells)
    assert len(of(page, "section")) == 8  # PipeDream's start-up and steady state
    words = " ".join(text.get_text() for text in page.texts)
    assert "ddlbench report timeline CELL_FOLDER" in words
    assert "commit 0123456" in words


def test_cells_whose_files_are_broken_are_named(tmp_path, monkeypatch):
    rows, _, _ = experiment(tmp_path, monkeypatch, datasets=["mnist"])
    for row in rows:
        if row.cell.strategy == "pipedream":
            folder = tmp_path / cell_dir(SITE_NAME, row.cell.id).relative_to(RESULTS)
            (folder / "trace.json").write_text("{")
    tables = make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")
    with style():
        page, table = figure.draw(tables, Context("this machine, CPU", tmp_path))
    assert not table["cell_id"].str.contains("pipedream").any()
    words = " ".join(text.get_text() for text in page.texts)
    assert "Not shown:" in words
    # A line may end within a long path.
    assert "trace.json:notwhatacellrecords" in "".join(words.split())


def test_an_experiment_that_has_recorded_nothing_says_so(tmp_path, monkeypatch):
    _, page, table = experiment(tmp_path, monkeypatch, spans=False)
    assert_readable(page)
    assert_no_overlap(page)
    assert isinstance(table, pd.DataFrame)
    assert table.empty
    words = " ".join(text.get_text() for text in page.texts)
    assert "No cell of the experiment has recorded spans." in words
