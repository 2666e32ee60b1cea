"""A disturbed cell gives no speed-up and is no base; tables, screens and figures say why."""

from __future__ import annotations

import math

import pytest
import report_factory
from click.testing import CliRunner
from report_factory import collect, matrix, result, site, write

from ddlbench.cli import commands
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.result import glance
from ddlbench.planning.matrix import MatrixRow
from ddlbench.predict.evaluate import history_of, measure
from ddlbench.report.figures.pipelines import pipeline_table
from ddlbench.report.figures.speedup import draw
from ddlbench.report.footer import Context, marks
from ddlbench.report.labels import speedup_mark
from ddlbench.report.measurements import make_tables
from ddlbench.report.summary import summarise
from ddlbench.report.tables import rows_of
from ddlbench.report.terminal import advice, numbers_of, speedup_table

SENTENCE = "step 14 took 15.1 s, its neighbours 0.26 s"


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Tables of a base and others; ``disturbed`` are (strategy, repeat)."""

    def made(*disturbed, strategies=("sequential", "ddp", "gpipe"), repeats=1):
        rows = matrix(
            monkeypatch,
            datasets=["mnist"],
            networks=["vgg11"],
            strategies=list(strategies),
            repeats=repeats,
        )
        for row in rows:
            values = result(row.cell, 10.0 if row.cell.strategy == BASE else 5.0)
            if (row.cell.strategy, row.cell.repeat) in disturbed:
                values = result(row.cell, 60.0)
                values["timing"] |= {"disturbed": SENTENCE}
            write(tmp_path, row.cell, values)
        return make_tables("demo", "local", rows, tmp_path, tmp_path / "tables")

    return made


def by_strategy(frame):
    return frame.set_index("strategy")


def test_a_disturbed_cell_has_no_speedup_and_the_others_have_theirs(tables):
    made = tables(("ddp", 0))
    cells = by_strategy(made.measurements)
    assert cells["disturbed"].to_dict() == {BASE: "", "ddp": SENTENCE, "gpipe": ""}
    assert math.isnan(cells.loc["ddp", "speedup"])
    assert cells.loc["gpipe", "speedup"] == 2.0
    assert cells.loc["ddp", "comparability"] == f"disturbed: {SENTENCE}"
    row = by_strategy(made.summary).loc["ddp"]
    assert math.isnan(row["speedup"])
    assert (row["status"], row["disturbed"], row["n"]) == ("ok", SENTENCE, 1)


def test_a_disturbed_base_is_none(tables):
    made = tables((BASE, 0))
    cells = by_strategy(made.measurements)
    assert cells["speedup"].isna().all()
    assert cells.loc["ddp", "comparability"] == f"base_disturbed: {SENTENCE}"
    assert cells.loc[BASE, "comparability"] == f"disturbed: {SENTENCE}"
    assert f"No speed-up, as its base was disturbed: {SENTENCE}" in marks(made.summary)[0]
    assert cells["disturbed"].to_dict() == {BASE: SENTENCE, "ddp": "", "gpipe": ""}


def test_the_median_rate_stands_beside_the_mean(tables):
    cells = by_strategy(tables(("ddp", 0)).measurements)
    step_s = cells.loc["ddp", "step_median_s"]
    assert cells.loc["ddp", "median_samples_per_s"] == pytest.approx(16 / step_s)
    assert cells.loc["ddp", "samples_per_s"] == pytest.approx(10.0)


def test_a_disturbed_repeat_is_left_out(tables):
    made = tables(("ddp", 1), repeats=3)
    row = by_strategy(made.summary).loc["ddp"]
    assert (row["n"], row["repeats"], row["epoch_s"], row["speedup_n"]) == (2, 3, 5.0, 2)
    assert row["speedup"] == 2.0
    assert (row["reason"], row["disturbed"]) == ("of 3 repeats: 1 disturbed", "")
    assert row["comparability"] == f"disturbed a_repeat: {SENTENCE}"
    assert marks(made.summary)[0].count("A repeat has no speed-up") == 1


def test_a_base_s_disturbed_repeat_takes_its_pairs_along(tables):
    made = tables((BASE, 1), repeats=3)
    row = by_strategy(made.summary).loc["ddp"]
    assert (row["n"], row["speedup_n"], row["speedup"]) == (3, 2, 2.0)
    assert row["base_samples_per_s"] == pytest.approx(60.0)
    base = by_strategy(made.summary).loc[BASE]
    assert (base["n"], base["epoch_s"]) == (2, 10.0)


def test_marks_stand_in_place_of_the_speedups(tables):
    alone, base = tables(("ddp", 0)).summary, tables((BASE, 0)).summary
    actual = [
        {row.strategy: speedup_mark(row, row.speedup) for row in rows_of(summary)}
        for summary in (alone, base)
    ]
    assert actual[0] == {BASE: "", "ddp": "disturbed", "gpipe": ""}
    assert actual[1] == {BASE: "disturbed", "ddp": "base disturbed", "gpipe": "base disturbed"}


def test_the_terminal_shows_it(tables):
    made = tables((BASE, 0)).summary
    shown = {row["strategy"]: numbers_of(row)[1] for row in made.to_dict("records")}
    assert shown == {BASE: "disturbed", "ddp": "base disturbed", "gpipe": "base disturbed"}
    _, rows = speedup_table(made.to_dict("records"), [])
    assert rows[0][3:] == ("10/s disturbed", "base disturbed", "base disturbed")


def test_nothing_disturbed_is_advised(tables, tmp_path):
    tables(("ddp", 0), ("gpipe", 0), repeats=1)
    assert advice(tmp_path / "tables") == []


def test_figures_draw_no_number_and_say_why(tables):
    made = tables(("ddp", 0))
    figure, table = draw(made, Context("a machine"))
    assert by_strategy(table)["mark"].to_dict() == {"ddp": "disturbed", "gpipe": ""}
    texts = " ".join(text.get_text() for text in figure.findobj() if hasattr(text, "get_text"))
    assert "disturbed" in texts
    (sentence,) = marks(made.summary)
    assert "! disturbed: something stopped the cell in measured steps" in sentence
    assert f"No speed-up, as the cell was disturbed: {SENTENCE}" in sentence
    pipelines = by_strategy(pipeline_table(tables(("gpipe", 0))))
    assert pipelines.loc["gpipe", "mark"] == "disturbed"
    assert not math.isfinite(pipelines.loc["gpipe", "share_of_bound"])


def test_predictions_are_neither_scored_by_it_nor_learn_from_it(tables, tmp_path):
    tables(("ddp", 1), ("gpipe", 0), ("gpipe", 1), repeats=2)
    cells = [path.parent for path in tmp_path.glob("local/cells/**/result.json")]
    root = tmp_path / "local" / "cells"
    rows = [
        MatrixRow(Cell.from_id(path.relative_to(root).as_posix()), None, None)
        for path in sorted(cells)
    ]
    outcomes = measure(rows, "local", tmp_path)
    actual = {
        outcome.cell.strategy: (str(outcome.status), sorted(outcome.step_s)) for outcome in outcomes
    }
    assert actual == {BASE: ("ok", [0, 1]), "ddp": ("ok", [0]), "gpipe": ("disturbed", [])}
    learnt = history_of(outcomes, "local", tmp_path)
    assert {(outcome.cell.strategy, outcome.cell.repeat) for outcome in learnt} == {
        (BASE, 0),
        (BASE, 1),
        ("ddp", 0),
    }


def test_a_glance_at_it_gives_no_step(tmp_path, monkeypatch):
    (row,) = matrix(monkeypatch, datasets=["mnist"], networks=["vgg11"], strategies=[BASE])
    values = result(row.cell)
    values["timing"]["disturbed"] = SENTENCE
    seen = glance(write(tmp_path, row.cell, values), "local", row.cell.id)
    assert seen is not None
    assert (str(seen.status), seen.step_s) == ("ok", None)


def test_forget_deletes_disturbed_results_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = matrix(monkeypatch, datasets=["mnist"], networks=["vgg11"], strategies=[BASE, "ddp"])
    for row in rows:
        values = result(row.cell)
        if row.cell.strategy == "ddp":
            values["timing"]["disturbed"] = SENTENCE
        write(tmp_path / "results", row.cell, values)
    monkeypatch.setattr(
        "ddlbench.commands.options.matrix_at",
        lambda *_: (report_factory.experiment(), site(), rows),
    )
    ended = CliRunner().invoke(commands, ["status", "forget", "--state", "disturbed", "--yes"])
    assert ended.output == "1 result deleted\n"
    left = collect("demo", "local", rows, tmp_path / "results")
    assert by_strategy(left)["status"].to_dict() == {BASE: "ok", "ddp": "not run"}


def test_a_summary_without_any_disturbance_says_nothing(tables):
    made = tables()
    assert (made.summary["disturbed"] == "").all()
    assert not any("disturbed" in sentence for sentence in marks(made.summary))
    assert summarise(made.measurements)["speedup"].notna().all()
