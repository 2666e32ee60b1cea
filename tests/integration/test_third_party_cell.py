"""A cell of another package's strategy: it is measured, its steps are drawn, it has its bar."""

import os
from pathlib import Path

import pytest
from local_cells import local_site, odd_cell, run_one
from matplotlib.colors import to_hex

from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.footer import Context
from ddlbench.report.labels import dataset_look, strategy_look
from ddlbench.report.measurements import make_tables
from ddlbench.report.registry import FIGURES
from ddlbench.report.style import shade, style
from ddlbench.report.timeline.cell import read_cell

HERE = Path(__file__).parent
NAME = "toy-averaging"


@pytest.fixture
def measured(third_party, tmp_path, monkeypatch):
    """The results' root, and rows of a base and a toy cell that were measured."""
    third_party(
        "toy_averaging",
        (HERE.parent / "toy_averaging.py").read_text(),
        {"ddlbench.strategies": {NAME: "ToyAveraging"}},
    )
    search = [str(tmp_path / "site-toy_averaging"), str(HERE), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(search))
    monkeypatch.syspath_prepend(HERE)
    base = odd_cell("plain", "sequential", devices=1)
    cell = odd_cell("plain", NAME)
    root = tmp_path / "local"
    for measured_cell in (base, cell):
        result, _ = run_one(measured_cell, local_site(root, measured_cell.devices), root)
        assert result["status"] == "ok", result["reason"]
    return tmp_path, [MatrixRow(base, None, None), MatrixRow(cell, base.id, None)]


def test_its_steps_and_its_bar_are_drawn(measured):
    root, rows = measured
    boxes = read_cell(root / "local" / "cells" / rows[1].cell.id).measured
    assert {box.kind for box in boxes} >= {"forward", "backward", "all_reduce", "update"}
    assert {box.row for box in boxes} == {0, 1}
    tables = make_tables("toy", "local", rows, root, root / "tables")
    with style():
        figure, plotted = FIGURES["speedup"].function()(tables, Context("this machine, CPU"))
    assert list(plotted["strategy"]) == [NAME]
    assert plotted["speedup"].notna().all()
    texts = {text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))}
    assert "Toy averaging" in texts
    bars = [patch for axes in figure.axes for patch in axes.patches]
    dataset_shade = shade(strategy_look(NAME).colour, dataset_look("mnist").white)
    assert dataset_shade in {to_hex(bar.get_facecolor()) for bar in bars}
