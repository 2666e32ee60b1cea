"""Timelines of strategies without stages: the predicted step, from the files of the site."""

from __future__ import annotations

import itertools

import predict_factory as make
import pytest
import test_pinned_predictions as pinned
import timeline_factory as made
from figure_checks import assert_no_overlap, assert_readable

from ddlbench.experiment.paths import RESULTS, cell_dir
from ddlbench.report.style import style
from ddlbench.report.timeline.box import BESIDE
from ddlbench.report.timeline.cell import read_cell
from ddlbench.report.timeline.figure import draw_cell

CELLS = [
    make.cell("ddp", "1x4", options={"bucket_cap_bytes": pinned.MB}),
    make.cell("horovod", "1x4"),
    make.cell("fsdp", "1x4"),
    make.cell("fsdp", "1x4", options={"accumulate": 2}),
    make.cell("parameter-server", "1x4", 24),
    make.cell("local-sgd", "1x4"),
]


@pytest.fixture
def folder_of(tmp_path, monkeypatch):
    """Writes the plan of a cell below a site that has a profile and links."""
    monkeypatch.setattr("ddlbench.predict.inputs.load_site", lambda name: make.site())

    def write(cell, device="cpu"):
        folder = tmp_path / cell_dir("local", cell.id).relative_to(RESULTS)
        folder.mkdir(parents=True)
        made.write_plan(folder, cell)
        values = pinned.workload(device)._profile
        make.write_site(tmp_path, dict(values), pinned.link_table(device).links.to_dict())
        return folder

    return write


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell.strategy} {cell.variant}")
def test_the_predicted_step_is_drawn(folder_of, cell):
    timeline = read_cell(folder_of(cell))
    assert timeline.not_planned == ""
    (window,) = timeline.windows
    assert {box.row for box in window.planned.boxes} == set(range(cell.devices))
    with style():
        page, table = draw_cell(timeline)
        page.draw_without_rendering()
    assert_readable(page)
    assert_no_overlap(page)
    assert set(table["panel"]) == {"planned"}


def test_buckets_travel_below_the_passes(folder_of):
    timeline = read_cell(folder_of(CELLS[0]))
    boxes = [box for box in timeline.planned if box.row == 0 and box.mini_batch == 0]
    kinds = [box.kind for box in boxes]
    assert kinds.count("forward") == kinds.count("update") == 1
    assert kinds.count("all_reduce_bucket") == 4
    passes = [box for box in boxes if box.kind not in BESIDE]
    assert all(a.end_s <= b.start_s + 1e-12 for a, b in itertools.pairwise(passes))
    update = passes[-1]
    assert all(box.end_s <= update.start_s + 1e-12 for box in boxes if box.kind in BESIDE)


def test_on_cpus_gathers_and_scatters_hold_up_their_rank(folder_of):
    timeline = read_cell(folder_of(CELLS[2]))
    kinds = {box.kind for box in timeline.planned}
    assert {"gather", "scatter", "forward", "backward"} <= kinds
    assert not kinds & BESIDE


def test_a_site_without_a_profile_is_named(folder_of, tmp_path):
    folder = folder_of(CELLS[0])
    for path in tmp_path.rglob("profile.json"):
        path.unlink()
    made.write_trace(folder, made.recorded(made.cell_of("pipedream", 2), lambda action: 1.0, 8))
    reason = read_cell(folder).not_planned
    assert "there is no profile of vgg11" in reason
