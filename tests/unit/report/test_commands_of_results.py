"""What `status`, `forget` and `report` say and print of results as they are found."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from pathlib import Path

import pytest
import report_factory
from click.testing import CliRunner

from ddlbench import cli
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.paths import (
    RESULTS,
    prediction_figures_dir,
    predictions_file,
    result_file,
    tables_dir,
)
from ddlbench.experiment.result import DIVERGED
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.tables import read_tables
from ddlbench.report.terminal import speedup_table


@pytest.fixture
def rows(tmp_path, monkeypatch) -> list[MatrixRow]:
    """A base and another strategy, without results."""
    monkeypatch.chdir(tmp_path)
    made = report_factory.matrix(
        monkeypatch, datasets=["mnist"], networks=["vgg11"], strategies=["sequential", "ddp"]
    )
    monkeypatch.setattr(
        "ddlbench.commands.options.matrix_at",
        lambda *_: (report_factory.experiment(), report_factory.site(), made),
    )
    return made


def output_of(*arguments: str) -> str:
    ended = CliRunner().invoke(cli.commands, list(arguments), catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_a_report_brings_the_predictions_that_are_there_up_to_date(rows, monkeypatch):
    made = []
    products = "ddlbench.report.products"
    monkeypatch.setattr(f"{products}.figures_for", lambda *_: [])
    monkeypatch.setattr(f"{products}.make_predictions", lambda *_: made.append("tables"))
    monkeypatch.setattr(f"{products}.draw_predictions", lambda *_: made.append("figures"))
    for row in rows:
        report_factory.write(RESULTS, row.cell)
    output_of("report")
    assert made == []
    where = (report_factory.SITE_NAME, report_factory.experiment().name)
    predictions_file(*where).write_text("{}")
    prediction_figures_dir(*where).mkdir(parents=True)
    output_of("report")
    assert made == ["tables", "figures"]


def test_a_newer_result_is_a_state_of_its_own(rows):
    for row in rows:
        path = report_factory.write(RESULTS, row.cell)
        path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), "schema_version": 999}))
    text = output_of("status")
    assert "2 newer" in text
    assert "written by a newer ddlbench (schema 999" in " ".join(text.split())
    assert "Next: snakemake" not in text  # it would measure nothing
    assert output_of("status", "forget", "--state", "invalid", "--yes") == "0 results deleted\n"
    assert output_of("status", "forget", "--state", "newer", "--yes") == "2 results deleted\n"
    assert "2 not run" in output_of("status")


def test_a_result_of_another_site_is_invalid(rows):
    values = report_factory.result(rows[0].cell)
    report_factory.write(RESULTS, rows[0].cell, {**values, "site": "elsewhere"})
    text = " ".join(output_of("status").split())
    assert "1 invalid" in text
    assert "is the result of site 'elsewhere', not of local" in text
    assert "Next: snakemake" in text


@pytest.mark.slow
def test_a_diverged_run_is_marked(rows):
    note = f"{DIVERGED}: the loss is no number from step 3 of 8 on"
    for row in rows:
        report_factory.write(RESULTS, row.cell, report_factory.result(row.cell, notes=[note]))
    text = " ".join(output_of("status").split())
    assert "2 ok" in text
    assert f"diverged mnist vgg11 sequential 1x1, mnist vgg11 ddp 1x2: {note}" in text
    lines = output_of("report").splitlines()
    assert ["diverged" in line for line in lines[2:4]] == [True, True]
    _, rows_of_network = speedup_table(read_tables(tables_dir("local", "demo")).summary.to_dict(
        "records"), [])  # fmt: skip
    assert all(text.endswith(" diverged") for text in rows_of_network[0][-2:])


@pytest.mark.parametrize("count", [1, 2])
def test_report_prints_no_path_that_is_not_there(count: int, rows):
    del rows[count:]
    for row in rows:
        report_factory.write(RESULTS, row.cell)
    paths = re.findall(r"^(?:tables|figures|page): +(\S+)$", output_of("report"), re.MULTILINE)
    assert len(paths) == 3
    assert [path for path in paths if not Path(path).is_file()] == []
    assert ("speedup.png" in paths[1]) == (count == 2)


@pytest.mark.slow
def test_tables_of_other_cells_are_made_anew(rows):
    for row in rows:
        report_factory.write(RESULTS, row.cell)
    output_of("report")
    shown, named = output_of("report", "--show"), output_of("status")
    assert "made anew" not in shown
    assert "speedup.png" in named
    advice, summary = (
        tables_dir("local", "demo") / name for name in ("advice.json", "summary.csv")
    )
    os.utime(advice, (1, 1))
    output_of("report", "--show")
    assert advice.stat().st_mtime > 1
    assert "vgg11" in summary.read_text("utf-8")
    rows[:] = [
        dataclasses.replace(
            row,
            cell=row.cell.with_(network="resnet18"),
            base_id=rows[0].cell.with_(network="resnet18").id,
        )
        for row in rows
    ]
    for row in rows:
        report_factory.write(RESULTS, row.cell)
    assert "draw the figures: ddlbench report" in output_of("status")
    shown = output_of("report", "--show")
    assert "of other cells than" in shown
    assert "ResNet-18" in shown
    assert "VGG-11" not in shown
    assert "vgg11" not in summary.read_text("utf-8")
    assert "speedup.png" in output_of("status")


@pytest.mark.slow
def test_the_page_links_logs_that_are_there_only(rows):
    logged, unlogged = (row.cell for row in rows)
    for cell in (logged, unlogged):
        failed = report_factory.failed(cell, "timeout", f"too slow: {cell.strategy}")
        report_factory.write(RESULTS, cell, failed)
    (result_file("local", logged.id).parent / "log.txt").write_text("a log\n")
    output_of("report")
    page = (RESULTS / "local" / "demo" / "report.html").read_text("utf-8")
    assert page.count("log.txt") == 1


def test_a_file_in_the_way_is_one_sentence(rows, monkeypatch, capsys):
    report_factory.write(RESULTS, rows[0].cell)
    (RESULTS / "local" / "demo").touch()
    monkeypatch.setattr(sys, "argv", ["ddlbench", "report"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "ddlbench: results/local/demo is a file where a folder should be; move it away\n"
    )


def test_an_error_of_no_file_is_not_hidden(rows, monkeypatch):
    def broken(*_arguments, **_options):
        raise ConnectionResetError(104, os.strerror(104))

    monkeypatch.setattr("ddlbench.report.products.make_report", broken)
    monkeypatch.setattr(sys, "argv", ["ddlbench", "report"])
    with pytest.raises(ConnectionResetError):
        cli.main()


def test_status_names_a_node_under_which_several_jobs_failed(rows):
    for number, row in enumerate(rows):
        folder = result_file("local", row.cell.id).parent
        folder.mkdir(parents=True)
        values = {"reason": f"a node of job {number} failed (n3)", "reason_code": "node_failed"}
        (folder / "failure.json").write_text(json.dumps(values))
    assert "slow:    n3, lost: 2 jobs lost it" in output_of("status")


FIGURES = """
from ddlbench.report.registry import FigureEntry

RAISING = FigureEntry("experiment", "bad_figures:draw")
NOTHING = FigureEntry("experiment", "bad_figures:draw_nothing")
UNSURE = FigureEntry("experiment", "bad_figures:draw", lambda rows: 1 / 0)
KIND = FigureEntry("experimnt", "bad_figures:draw")

def draw(tables, context):
    raise KeyError("k")

def draw_nothing(tables, context):
    return None
"""
LEFT_OUT = {
    "odd": r"bad_figures:KIND has the kind 'experimnt'; did you mean 'experiment'\?",
    "raising": r"has a fault in its code: KeyError: 'k' \(bad_figures.py, line 10\)",
    "unsure": "has a fault in its code: KeyError",
    "nothing": r"bad_figures:draw_nothing returns None for a figure; return \(figure, table\)",
}


def test_a_figure_with_a_fault_costs_no_other(rows, third_party, monkeypatch, capsys):
    entries = {"odd": "KIND", "raising": "RAISING", "unsure": "UNSURE", "nothing": "NOTHING"}
    third_party("bad_figures", FIGURES, {"ddlbench.figures": entries})
    for row in rows:
        report_factory.write(RESULTS, row.cell)
    stale = RESULTS / "local" / "demo" / "figures" / "raising.png"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of an earlier run")
    monkeypatch.setattr(sys, "argv", ["ddlbench", "report"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert "page:    results/local/demo/report.html" in shown.out
    drawn = {path.stem for path in stale.parent.glob("*.png")}
    assert {"speedup", "memory", "utilisation"} <= drawn
    assert not drawn & {*LEFT_OUT}
    lines = shown.err.splitlines()
    assert len(lines) == len(LEFT_OUT)
    for line, (name, why) in zip(lines, LEFT_OUT.items(), strict=True):
        assert re.search(f"figure '{name}'.* of package bad.figures.*{why}.*left out", line), line


@pytest.mark.parametrize("state", ["failed", "interrupted", "not run"])
def test_what_has_no_result_to_forget_is_measured_anyway(rows, state):
    with pytest.raises(ConfigError, match="the next run measures them"):
        output_of("status", "forget", "--state", state)
