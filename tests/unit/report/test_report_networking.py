"""Throughput against the links' condition: which cells a line holds, and how it looks."""

from __future__ import annotations

import math

import pytest
from figure_checks import assert_no_overlap, assert_readable, of
from report_factory import SITE_NAME, experiment, failed, result, site, timing, write

from ddlbench.experiment.fabric import LinkCondition
from ddlbench.planning.matrix import expand
from ddlbench.report import figures_for, make_tables
from ddlbench.report.footer import Context
from ddlbench.report.networking import draw_bandwidth, draw_latency, one_thing_changes
from ddlbench.report.style import style

FABRICS = {
    "base": LinkCondition(0.001, 1e9, 0.0),
    "lat10": LinkCondition(0.010, 1e9, 0.0),
    "lat100": LinkCondition(0.100, 1e9, 0.0),
    "bw250": LinkCondition(0.001, 250e6, 0.0),
}


@pytest.fixture
def rows():
    found = []
    for fabric in FABRICS:
        chosen = experiment(
            datasets=["mnist"],
            networks=["vgg11", "mobilenetv2"],
            strategies=["ddp", "horovod"],
            geometry=["2x1", "4x1"],
        )
        chosen.settings["fabric"] = fabric
        found += expand(chosen, site(fabrics=FABRICS))
    return found


@pytest.fixture
def tables(rows, tmp_path):
    for row in rows:
        seconds = 1 + 1000 * row.condition.latency_s
        late = row.cell.fabric == "lat100" and row.cell.strategy == "horovod"
        values = failed(row.cell, "timeout", "too slow") if late else None
        write(
            tmp_path,
            row.cell,
            values or result(row.cell, timing=timing(8 * seconds, seconds, 0.01)),
        )
    return make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")


def test_only_one_thing_changes(tables) -> None:
    shown = one_thing_changes(tables.summary, "link_latency_s")
    assert set(shown["fabric"]) == {"base", "lat10", "lat100"}
    shown = one_thing_changes(tables.summary, "link_bits_per_s")
    assert set(shown["fabric"]) == {"base", "bw250"}
    assert one_thing_changes(tables.summary, "link_loss").empty


def test_figures_are_chosen_by_what_varies(rows) -> None:
    found = figures_for(rows)
    assert "latency" in found
    assert "bandwidth" in found
    assert "packet_loss" not in found


@pytest.mark.parametrize("draw", [draw_latency, draw_bandwidth])
def test_drawn(draw, tables) -> None:
    with style():
        figure, table = draw(tables, Context("this machine"))
        figure.canvas.draw()
    assert_readable(figure)
    assert_no_overlap(figure)
    assert len(of(figure, "mark")) == (table["mark"] != "").sum()
    ours = table[table["source"] == "measured here"]
    good = ours[ours["mark"] == ""]
    assert math.isclose(good["share_of_best"].max(), 1.0)


def test_published_numbers_are_named(tables) -> None:
    with style():
        _, table = draw_latency(tables, Context("this machine"))
    theirs = table[table["source"] != "measured here"]
    assert set(theirs["network"]) == {"resnet18|resnet50"}
    assert theirs["source"].str.contains("Cheng").all()
