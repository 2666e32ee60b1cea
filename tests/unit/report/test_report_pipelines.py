"""Share of the bound, and time to a loss: the numbers of both figures, and how they look."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from figure_checks import assert_no_overlap, assert_readable, of
from report_factory import SITE_NAME, experiment, result, site, timing, write

from ddlbench.planning.matrix import expand
from ddlbench.report.figures.loss import draw as draw_loss
from ddlbench.report.figures.loss import loss_curves, time_to_loss
from ddlbench.report.figures.pipelines import draw, pipeline_table
from ddlbench.report.footer import Context
from ddlbench.report.measurements import make_tables
from ddlbench.report.registry import figures_for
from ddlbench.report.style import style

STEP_S = {"sequential": 1.0, "pipedream": 0.3, "pipe-1f1b": 0.4, "model-parallel-p2p": 1.25}


@pytest.fixture
def rows():
    chosen = experiment(
        datasets=["cifar10"],
        networks=["stack", "vgg16"],
        strategies=list(STEP_S),
        geometry=["1x2", "1x4", "4x1"],
        repeats=2,
    )
    return expand(chosen, site())


@pytest.fixture
def tables(rows, tmp_path):
    def measured(cell):
        step_s = STEP_S[cell.strategy] * (1.1 if cell.repeat else 1.0)
        return result(cell, epoch_s=8 * step_s, timing=timing(8 * step_s, step_s, 0.0))

    for row in rows[:-1]:
        write(tmp_path, row.cell, measured(row.cell))
    return make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")


def test_share_is_steady_speedup_over_bound(tables) -> None:
    table = pipeline_table(tables).set_index(["network", "strategy", "geometry"])
    row = table.loc["stack", "pipedream", "1x4"]
    assert row["speedup"] == pytest.approx(1.0 / 0.3)
    assert row["bound"] == 4
    assert row["share_of_bound"] == pytest.approx(1.0 / 0.3 / 4)
    assert row["bubble"] == pytest.approx(1 - 1.0 / 0.3 / 4)
    flush = table.loc["stack", "pipe-1f1b", "1x4"]
    assert flush["bound"] == pytest.approx(4 * 4 / 7)
    assert flush["bubble_least"] == pytest.approx(3 / 7)


def test_published_speedups_stand_beside(tables) -> None:
    table = pipeline_table(tables).set_index(["network", "strategy", "geometry"])
    row = table.loc["vgg16", "pipedream", "1x4"]
    assert row["published_speedup"] == pytest.approx(0.478)
    assert "Fig. 3.1c" in row["published_in"]
    assert table.loc["stack", "pipedream", "1x4"]["published_in"] == ""


def test_pipelines_drawn(tables, rows) -> None:
    assert "pipelines" in figures_for(rows)
    with style():
        figure, table = draw(tables, Context("this machine"))
        figure.draw_without_rendering()
    assert_readable(figure)
    assert_no_overlap(figure)
    good = table[table["mark"] == ""]
    assert len(of(figure, "point")) == len(good)
    assert len(of(figure, "mark")) == len(table) - len(good)


def _falling(cell_id: str, end: float, step_s: float) -> pd.DataFrame:
    steps = np.arange(100)
    return pd.DataFrame(
        {
            "cell_id": cell_id,
            "loss": end + 2 * np.exp(-steps / 20),
            "step_s": step_s,
            "warmup": steps < 2,
        }
    )


def test_target_is_what_all_reach() -> None:
    steps = pd.concat([_falling("a/rep0", 0.1, 1.0), _falling("b/rep0", 0.3, 0.25)])
    curves = loss_curves(steps, ["a/rep0", "b/rep0"])
    reached = time_to_loss(curves)
    target = curves["b/rep0"]["loss"].min()
    assert {actual[0] for actual in reached.values()} == {target}
    assert reached["b/rep0"][1:] == (100, pytest.approx(25.0))
    assert reached["a/rep0"][1] < 100
    assert reached["a/rep0"][2] == pytest.approx(reached["a/rep0"][1] * 1.0)


def test_short_runs_have_no_curve() -> None:
    assert loss_curves(_falling("a/rep0", 0.1, 1.0).head(20), ["a/rep0"]) == {}


def test_loss_drawn(tables) -> None:
    ids = tables.measurements.query("status == 'ok' and network == 'stack' and geometry == '1x4'")
    parts = [_falling(i, 0.1 * n, 0.5) for n, i in enumerate(ids["cell_id"])]
    learnt = dataclasses.replace(tables, steps=pd.concat(parts))
    with style():
        figure, table = draw_loss(learnt, Context("this machine"))
        figure.draw_without_rendering()
    assert_readable(figure)
    assert_no_overlap(figure)
    assert len(of(figure, "line")) == 2 * len(table)
    markers = {line.get_marker() for line in of(figure, "line")}
    assert len(markers) == table["strategy"].nunique() > 1  # they differ without their colour


def test_links_have_panels_and_small_losses_a_logarithmic_axis(tables) -> None:
    actual = tables.measurements.query(
        "status == 'ok' and network == 'stack' and geometry == '1x4'"
    )
    slow, *others = actual["cell_id"]
    parts = [_falling(slow, 0.0, 0.5), *(_falling(cell_id, 0.5, 0.5) for cell_id in others)]
    summary = tables.summary.copy()
    summary.loc[summary["configuration"] == slow.rpartition("/")[0], "fabric"] = "lat100"
    learnt = dataclasses.replace(tables, steps=pd.concat(parts), summary=summary)
    with style():
        figure, table = draw_loss(learnt, Context("this machine"))
        figure.draw_without_rendering()
    assert_readable(figure)
    assert_no_overlap(figure)
    assert set(table["fabric"]) == {"lat100", "default"}
    scales = [axes.get_yscale() for axes in figure.axes]
    assert sorted(scales) == ["linear", "linear", "log", "log"]
    assert table.set_index("fabric").loc["lat100", "target_loss"] < 0.05


def test_a_run_that_diverges_reaches_and_sets_no_target() -> None:
    lost = _falling("a/rep0", 0.0, 1.0)
    lost.loc[60:, "loss"] = np.nan
    steps = pd.concat([lost, _falling("b/rep0", 0.3, 0.25)])
    curves = loss_curves(steps, ["a/rep0", "b/rep0"])
    assert curves["a/rep0"]["step"].iloc[-1] == 60
    reached = time_to_loss(curves)
    assert reached["b/rep0"][0] == curves["b/rep0"]["loss"].min()
    assert np.isnan(reached["a/rep0"][1:]).all()


def test_a_diverged_run_is_a_cross_and_a_sentence(tables) -> None:
    ids = tables.measurements.query("status == 'ok' and network == 'stack' and geometry == '1x4'")
    parts = [_falling(i, 0.1 * n, 0.5) for n, i in enumerate(ids["cell_id"])]
    parts[0].loc[70:, "loss"] = np.nan
    parts[1]["loss"] *= 1e6  # grows out of sight, and never stops
    learnt = dataclasses.replace(tables, steps=pd.concat(parts))
    with style():
        figure, table = draw_loss(learnt, Context("this machine"))
        figure.draw_without_rendering()
    assert_readable(figure)
    assert_no_overlap(figure)
    assert len(of(figure, "mark")) == 2
    lost = table[table["diverged_after"].notna()]
    assert list(lost["diverged_after"]) == [70]
    assert lost["loss_end"].isna().all()
    footers = [text.get_text() for text in of(figure, "footer")]
    assert "no number any more" in " ".join(footers)
