"""Throughput against the links' condition: which cells a line holds, and how it looks."""

from __future__ import annotations

import math

import pytest
from figure_checks import assert_no_overlap, assert_readable, of
from report_factory import SITE_NAME, experiment, failed, result, site, timing, write

from ddlbench.experiment.fabric import LinkCondition
from ddlbench.planning.matrix import expand
from ddlbench.report.curves import DASHES
from ddlbench.report.figures.networking import (
    draw_bandwidth,
    draw_latency,
    draw_loss,
    one_thing_changes,
)
from ddlbench.report.footer import Context
from ddlbench.report.measurements import make_tables
from ddlbench.report.registry import figures_for
from ddlbench.report.style import style

FABRICS = {
    "base": LinkCondition(0.001, 1e9, 0.0),
    "lat10": LinkCondition(0.010, 1e9, 0.0),
    "lat100": LinkCondition(0.100, 1e9, 0.0),
    "bw250": LinkCondition(0.001, 250e6, 0.0),
}


@pytest.fixture
def rows():
    expanded = []
    for fabric in FABRICS:
        chosen = experiment(
            datasets=["mnist"],
            networks=["vgg11", "mobilenetv2"],
            strategies=["ddp", "horovod"],
            geometry=["2x1", "4x1"],
        )
        chosen.settings["fabric"] = fabric
        expanded += expand(chosen, site(fabrics=FABRICS))
    return expanded


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
    actual = figures_for(rows)
    assert "latency" in actual
    assert "bandwidth" in actual
    assert "packet_loss" not in actual


@pytest.mark.parametrize("draw", [draw_latency, draw_bandwidth])
def test_drawn(draw, tables) -> None:
    with style():
        figure, table = draw(tables, Context("this machine"))
        figure.draw_without_rendering()
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


def drawn(draw, rows, results):
    """The figure of what was written to ``results``, and its table; the figure can be read."""
    tables = make_tables("demo", SITE_NAME, rows, results, results / "tables")
    with style():
        figure, table = draw(tables, Context("this machine"))
        figure.draw_without_rendering()
    assert_readable(figure)
    assert_no_overlap(figure)
    return figure, table


def test_links_that_differ_in_more_than_their_condition_are_lines_of_their_own(tmp_path):
    fabrics = {
        "base": LinkCondition(0.001, None, 0.0),
        "loss1": LinkCondition(0.001, None, 0.01),
        "loss1bbr": LinkCondition(0.001, None, 0.01, congestion_control="bbr"),
        "loss1large": LinkCondition(0.001, None, 0.01, mtu=9000),
    }
    rows = []
    for fabric in fabrics:
        chosen = experiment(
            datasets=["mnist"], networks=["vgg11"], strategies=["ddp"], geometry=["2x1"]
        )
        chosen.settings["fabric"] = fabric
        rows += expand(chosen, site(fabrics=fabrics))
    for number, row in enumerate(rows):
        write(tmp_path, row.cell, result(row.cell, timing=timing(8, 1.0 + number, 0.01)))
    figure, table = drawn(draw_loss, rows, tmp_path)
    ours = table[table["source"] == "measured here"].set_index("fabric")
    assert list(ours.loc[["loss1", "loss1bbr", "loss1large"], "variant"]) == [
        "cubic, MTU 1500",
        "bbr, MTU 1500",
        "cubic, MTU 9000",
    ]
    lines = [line for line in of(figure, "line") if len(line.get_xdata())]
    assert sorted(len(line.get_xdata()) for line in lines) == [1, 1, 2]
    assert ours["link_bits_per_s"].isna().all()  # no limit, and no infinity in a CSV


def test_conditions_that_a_panel_lacks_are_said_to_be_not_run(rows, tmp_path) -> None:
    kept = [r for r in rows if (r.cell.network, r.cell.fabric) != ("mobilenetv2", "lat10")]
    for row in kept:
        write(tmp_path, row.cell, result(row.cell, timing=timing(8, 1.0, 0.01)))
    figure, _ = drawn(draw_latency, kept, tmp_path)
    words = of(figure, "not run")
    assert [text.get_position()[0] for text in words] == [10.0, 10.0]  # 2x1 and 4x1
    assert {text.axes.get_title(loc="left") for text in words} <= {"MobileNetV2", ""}


def test_every_batch_of_the_study_has_a_line_of_its_own():
    batches = 6  # config/experiments/networking.yaml
    assert len(set(DASHES)) >= batches


@pytest.fixture
def two_modes(tmp_path):
    """A parameter server in both modes over two rates, one of them without a limit."""
    fabrics = {
        "open": LinkCondition(0.001, None, 0.0),
        "bw500": LinkCondition(0.001, 500e6, 0.0),
    }
    rows = []
    for fabric in fabrics:
        chosen = experiment(
            datasets=["mnist"],
            networks=["mobilenetv2", "vgg11"],
            strategies=["parameter-server"],
            geometry=["2x1"],
        )
        chosen.settings["fabric"] = fabric
        chosen.settings["batch_size"] = 32
        chosen.strategies["parameter-server"] = {"mode": ["sync", "async"]}
        rows += expand(chosen, site(fabrics=fabrics))
    for row in rows:
        if row.cell.strategy != "sequential":
            seconds = 8.0 if "async" in row.cell.id else 80.0
            times = {**timing(seconds, 1.0, 0.01), "noisy": row.cell.fabric == "open"}
            write(tmp_path, row.cell, result(row.cell, seconds, timing=times))
    return make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")


def test_variants_are_lines_of_their_own_and_no_limit_has_a_place(two_modes) -> None:
    with style():
        figure, table = draw_bandwidth(two_modes, Context("this machine"))
        figure.draw_without_rendering()
    assert_readable(figure)
    assert_no_overlap(figure)
    ours = table[table["source"] == "measured here"]
    assert len(set(ours["variant"])) == 2
    assert len(of(figure, "line")) == 2 * 2  # networks x modes
    assert len(of(figure, "point")) == 2 * 2 * 2
    assert [text.get_text() for text in of(figure, "point-mark")] == ["~"] * 4
    ticks = [text.get_text() for axes in figure.axes for text in axes.get_xticklabels()]
    assert "no limit" in ticks


def test_published_points_are_inside_and_only_of_all_workers(two_modes) -> None:
    with style():
        figure, table = draw_bandwidth(two_modes, Context("this machine"))
        figure.draw_without_rendering()
    points = of(figure, "published")
    assert {float(point.get_ydata()[0]) for point in points} == {87.6, 2.5}  # MobileNet's
    for point in points:
        low, high = point.axes.get_ylim()
        assert low < point.get_ydata()[0] < high
    apart = table[table["reason"].str.contains("one worker", na=False)]
    assert set(apart["samples_per_s"]) == {0.4, 0.2, 0.12}


def middle(point):
    """Where a mark stands on the page."""
    return point.get_transform().transform((point.get_xdata()[0], point.get_ydata()[0]))


def test_a_published_point_does_not_hide_ours_of_the_same_value(two_modes) -> None:
    with style():
        figure, _ = draw_bandwidth(two_modes, Context("this machine"))
        figure.draw_without_rendering()
    for point in of(figure, "published"):
        ours = [marker for marker in of(figure, "point") if marker.axes is point.axes]
        assert ours
        same = point.axes.transData.transform((point.get_xdata()[0], point.get_ydata()[0]))
        pixels = figure.dpi / 72 * (point.get_markersize() + ours[0].get_markersize()) / 2
        assert same[0] - middle(point)[0] > pixels
        assert middle(point)[1] == pytest.approx(same[1])


def test_rates_of_six_digits_leave_their_label_on_the_page(tmp_path) -> None:
    fabrics = {f"bw{rate}": LinkCondition(0.001, rate * 1e6, 0.0) for rate in (250, 500)}
    rows = []
    for fabric in fabrics:
        chosen = experiment(
            datasets=["mnist"], networks=["vgg11"], strategies=["parameter-server"],
            geometry=["2x1"],
        )  # fmt: skip
        chosen.settings["fabric"] = fabric
        rows += expand(chosen, site(fabrics=fabrics))
    for row in rows:
        write(tmp_path, row.cell, result(row.cell, 0.01))  # 60,000 images a second
    tables = make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")
    with style():
        figure, _ = draw_bandwidth(tables, Context("this machine"))
        figure.draw_without_rendering()
    (label,) = {axes.yaxis.label for axes in figure.axes if axes.get_ylabel()}
    title = min(text.get_window_extent().x0 for text in figure.texts)
    assert label.get_window_extent().x0 >= title
    assert_readable(figure)
    assert_no_overlap(figure)
