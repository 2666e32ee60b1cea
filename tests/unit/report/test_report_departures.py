"""A cell that does not train as one device does gives no speed-up, and is neither ranked."""

from __future__ import annotations

import math

import pytest
from report_factory import matrix, result, site, write

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.result import DIVERGED
from ddlbench.planning.matrix import MatrixRow
from ddlbench.predict.evaluate import (
    departures_of,
    divergences_of,
    history_of,
    measure,
    outcomes_of,
)
from ddlbench.report.figures.speedup import draw
from ddlbench.report.footer import Context, marks, signs
from ddlbench.report.html_report import make_html_report
from ddlbench.report.labels import speedup_mark
from ddlbench.report.measurements import make_tables
from ddlbench.report.tables import rows_of
from ddlbench.report.terminal import numbers_of

LOSSES = [2.302, 2.304, 2.281, 2.270]
OTHER = [2.302, 2.304, 2.310, 2.290]
LOST = "loss 2.31 at step 3, 2.28 on one device"
NOTE = f"does not train as one device does: {LOST}"


def training(**changes):
    values = {
        "initial_digest": "a1",
        "first_loss": LOSSES,
        "replayed_loss": [],
        "samples_per_pass": 8,
        "batch_norm": False,
        "random": False,
        "settings": {"threads": 1},
    }
    return {**values, **changes}


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Tables of a base and others; ``departing`` has the training of (strategy, repeat)."""

    def tables(departing, *, repeats=1, accelerator=None, without=()):
        rows = matrix(
            monkeypatch,
            datasets=["mnist"],
            networks=["vgg11"],
            strategies=["sequential", "ddp", "gpipe"],
            repeats=repeats,
        )
        for row in rows:
            values = result(row.cell, 10.0 if row.cell.strategy == BASE else 5.0)
            changes = departing.get((row.cell.strategy, row.cell.repeat), {})
            if row.cell.strategy not in without:
                values["training"] = training(**changes)
            values["accelerator"] = accelerator
            write(tmp_path, row.cell, values)
        return make_tables("demo", "local", rows, tmp_path, tmp_path / "local" / "demo" / "tables")

    return tables


def by_strategy(frame):
    return frame.set_index("strategy")


def test_it_has_a_note_and_no_speedup(made):
    tables = made({("ddp", 0): {"first_loss": OTHER}})
    cells = by_strategy(tables.measurements)
    assert cells["departure"].to_dict() == {BASE: "", "ddp": NOTE, "gpipe": ""}
    assert f"other_training: {LOST}" in cells.loc["ddp", "comparability"].split(" | ")
    assert cells["no_speedup"].to_dict() == {BASE: "", "ddp": "other_training", "gpipe": ""}
    assert math.isnan(cells.loc["ddp", "speedup"])
    assert cells.loc["gpipe", "speedup"] == 2.0
    row = by_strategy(tables.summary).loc["ddp"]
    assert (row["departure"], row["status"], row["n"]) == (NOTE, "ok", 1)
    assert math.isnan(row["speedup"])


def test_marks_stand_in_place_of_the_speedup(made):
    tables = made({("ddp", 0): {"first_loss": OTHER}, ("gpipe", 0): {"initial_digest": "b2"}})
    summary = tables.summary
    actual = {row.strategy: speedup_mark(row, row.speedup) for row in rows_of(summary)}
    assert actual == {BASE: "", "ddp": "other training", "gpipe": "other weights"}
    shown = {row["strategy"]: numbers_of(row)[1] for row in summary.to_dict("records")}
    assert shown == {BASE: "base", "ddp": "other training", "gpipe": "other weights"}
    _, table = draw(tables, Context("a machine"))
    assert by_strategy(table)["mark"].to_dict() == {
        "ddp": "other training",
        "gpipe": "other weights",
    }
    assert {row.strategy: signs(row) for row in rows_of(summary)} == {
        BASE: "",
        "ddp": "≠",
        "gpipe": "≠",
    }
    (sentence,) = marks(summary)
    assert "≠: trains otherwise than one device" in sentence
    assert f"A cell {NOTE}. A cell began with other weights than its base" in sentence


def test_a_departing_repeat_is_left_out(made):
    tables = made({("ddp", 1): {"first_loss": OTHER}}, repeats=3)
    row = by_strategy(tables.summary).loc["ddp"]
    assert (row["n"], row["repeats"], row["speedup_n"], row["speedup"]) == (2, 3, 2, 2.0)
    assert (row["reason"], row["departure"]) == ("of 3 repeats: 1 departing", "")
    assert f"other_training a_repeat: {LOST}" in row["comparability"].split(" | ")
    assert row["no_speedup"] == ""
    assert f"A repeat {NOTE}" in marks(tables.summary)[0]


def test_emulated_devices_and_earlier_results_are_not_compared(made):
    other = {("ddp", 0): {"first_loss": OTHER, "initial_digest": "b2"}}
    emulated = made(other, accelerator={"profiles": "v100"})
    assert emulated.summary["emulated"].all()
    assert (emulated.measurements["departure"] == "").all()
    earlier = made({("ddp", 0): {"first_loss": OTHER}}, without=(BASE,))
    assert by_strategy(earlier.measurements).loc["ddp", "speedup"] == 2.0


def test_the_page_says_it(made, tmp_path, monkeypatch):
    made({("ddp", 0): {"first_loss": OTHER}})
    rows = matrix(monkeypatch, datasets=["mnist"], networks=["vgg11"])
    page = make_html_report("demo", site(), rows, tmp_path).read_text("utf-8")
    assert page.count(f"ok, {NOTE}") == 2  # in the table, and in the plot
    assert "other training" in page


def test_predictions_do_not_learn_from_it_and_ranking_knows_it(made, tmp_path):
    made({("ddp", 0): {"first_loss": OTHER}, ("gpipe", 1): {"first_loss": OTHER}}, repeats=2)
    root = tmp_path / "local" / "cells"
    cells = sorted(path.parent for path in root.glob("**/result.json"))
    rows = [
        MatrixRow(Cell.from_id(path.relative_to(root).as_posix()), None, None) for path in cells
    ]
    outcomes = measure(rows, "local", tmp_path)
    actual = {
        outcome.cell.strategy: (str(outcome.status), sorted(outcome.step_s)) for outcome in outcomes
    }
    assert actual == {BASE: ("ok", [0, 1]), "ddp": ("ok", [1]), "gpipe": ("ok", [0])}
    assert len(history_of(outcomes, "local", tmp_path)) == 4
    departing = departures_of(outcomes_of("mnist", "vgg11", "local", tmp_path))
    assert {
        (departure.cell.strategy, departure.cell.repeat, departure.sentence)
        for departure in departing
    } == {
        ("ddp", 0, NOTE),
        ("gpipe", 1, NOTE),
    }


def test_a_departing_configuration_has_its_own_status(made, tmp_path):
    made({("ddp", 0): {"first_loss": OTHER}})
    outcomes = outcomes_of("mnist", "vgg11", "local", tmp_path)
    status = {outcome.cell.strategy: str(outcome.status) for outcome in outcomes}
    assert status == {BASE: "ok", "ddp": "other training", "gpipe": "ok"}


def test_a_run_whose_loss_is_no_number_is_known_to_the_ranking(tmp_path, monkeypatch):
    note = f"{DIVERGED}: the loss is no number from step 2 of 10 on"
    rows = matrix(monkeypatch, datasets=["mnist"], networks=["vgg11"], strategies=["ddp"])
    write(tmp_path, rows[0].cell, result(rows[0].cell) | {"notes": [note]})
    (divergence,) = divergences_of(outcomes_of("mnist", "vgg11", "local", tmp_path))
    assert (divergence.cell, divergence.sentence) == (rows[0].cell, note)
