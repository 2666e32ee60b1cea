"""Whole cells whose second process has a clock that is 50 ms off: their timelines line up."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from local_cells import local_site, odd_cell, run_one

from ddlbench.commands.timeline import timeline
from ddlbench.report.timeline.cell import read_cell

HERE = str(Path(__file__).parent)
SKEW_S = 0.05
# Python runs this module before anything else, so that all of the process sees one clock. A process
# that is forked learns its rank later.
SITE_CUSTOMIZE = f"""
import os, time
_true_clock = time.perf_counter
_skew_s = lambda: {SKEW_S} if os.environ.get("DDLBENCH_LOCAL_RANK") == "1" else 0
time.perf_counter = lambda: _true_clock() + _skew_s()
"""


@pytest.fixture
def skewed(tmp_path, monkeypatch):
    """Processes of local rank 1 have a clock that is 50 ms before all others."""
    folder = tmp_path / "skew"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITE_CUSTOMIZE)
    search = [str(folder), HERE, os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(search))
    monkeypatch.setattr(sys, "path", [HERE, *sys.path])


def measure(tmp_path, strategy):
    cell = odd_cell("plain", strategy, epochs=4, warmup_steps=2, options={"balance": "3+2"})
    result, folder = run_one(cell, local_site(tmp_path), tmp_path)
    assert result["status"] == "ok", result["reason"]
    return result, folder


def overlaps_s(passes):
    """By how long each pass seems to begin before the stage that it waits for has ended."""
    overlaps = []
    for (kind, row, *numbers), box in passes.items():
        giver = passes.get((kind, row - 1 if kind == "forward" else row + 1, *numbers))
        if giver is not None:
            overlaps.append(giver.end_s - box.start_s)
    return overlaps


@pytest.mark.parametrize(
    "strategy", [pytest.param("pipedream", marks=pytest.mark.exhaustive), "pipe-1f1b"]
)
def test_a_clock_that_is_50_ms_off_does_not_shift_the_timeline(tmp_path, skewed, strategy):
    result, folder = measure(tmp_path, strategy)
    _, other = result["plan_details"]["clock"]["ranks"]
    slack_s = 10 * other["uncertainty_s"] + 1e-3
    assert other["offset_s"] == pytest.approx(-SKEW_S, abs=slack_s)
    boxes = read_cell(folder).measured
    passes = {
        (box.kind, box.row, box.mini_batch, box.micro_batch): box
        for box in boxes
        if box.kind in ("forward", "backward")
    }
    assert len(passes) >= 2 * 2 * 20
    assert max(overlaps_s(passes)) <= slack_s
    # Undone, the correction leaves backward passes that begin before they have their gradient.
    raw = {
        key: dataclasses.replace(box, end_s=box.end_s + SKEW_S * box.row)
        for key, box in passes.items()
    }
    assert max(overlaps_s(raw)) > 0.02
    _assert_drawn(folder)


def _assert_drawn(folder):
    done = CliRunner().invoke(timeline, [str(folder)])
    assert done.exit_code == 0, done.exception
    assert (folder / "timeline.png").is_file()
    trace = json.loads((folder / "timeline.json").read_text())
    assert {event["pid"] for event in trace["traceEvents"]} == {0, 1}
