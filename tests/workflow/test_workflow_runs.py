"""One experiment, run and run again: only what is missing is measured.

The tests of this module share one copy of the project and build on each other, in order.
"""

from __future__ import annotations

import base64
import json
import os
import time
import zipfile

import pytest

CELLS = [("mlp", "sequential"), ("mlp", "ddp"), ("mlp", "gpipe")]
NAMES = ("speedup", "memory", "traffic", "utilisation", "steps", "timelines")
DRAWN = len(NAMES)
FIGURES = {f"{name}.{kind}" for name in NAMES for kind in ("png", "pdf")}


@pytest.fixture(scope="module")
def first(workflow):
    """The first run; what the plan said before it is kept."""
    config = workflow.experiment()
    before = workflow.ddlbench("plan", "--configfile", config, "--json")
    ended = workflow.snakemake(config=config)
    assert ended.code == 0, ended.text
    return before, ended


def test_first_run_measures_every_cell(workflow, first):
    _, ended = first
    assert ended.jobs == {"cell": 3, "tables": 1, "figure": DRAWN, "page": 1, "all": 1}
    for cell in CELLS:
        assert workflow.result(*cell)["status"] == "ok"
        assert (workflow.cell(*cell) / "steps.csv").is_file()
        left = {path.name for path in workflow.cell(*cell).iterdir()}
        assert not any(name.startswith(".run-") for name in left)


def test_first_run_makes_tables_and_figures(workflow, first):
    assert {row["status"] for row in workflow.measurements().values()} == {"ok"}
    assert len(workflow.measurements()) == len(CELLS)
    assert workflow.figures() >= FIGURES | {"speedup.csv", "memory.csv", "steps.csv"}


def test_first_run_writes_a_page_of_them(workflow, first):
    page = (workflow.folder / "results/box/tiny/report.html").read_text()
    assert "<h1>tiny on box, 3 cells</h1>" in page
    assert page.count("<figure ") == len(NAMES) + 1  # which strategy is the fastest goes first
    assert (workflow.folder / "results/box/tiny/tables/advice.json").is_file()


def test_a_changed_figure_makes_the_page_anew(workflow, first):
    figure = workflow.folder / "results/box/tiny/figures/speedup.png"
    figure.write_bytes(figure.read_bytes() + b"!")
    page = workflow.folder / "results/box/tiny/report.html"
    before = page.read_bytes()
    ended = workflow.snakemake(config="experiment.yaml")
    assert ended.code == 0, ended.text
    assert ended.jobs == {"page": 1, "all": 1}
    assert page.read_bytes() != before


def test_first_run_prints_no_python_traceback(first):
    assert "Traceback" not in first[1].text


def test_later_cells_find_the_data_that_the_first_one_made(workflow, first):
    reused = sorted(workflow.result(*cell)["staging"]["reused"] for cell in CELLS)
    assert reused == [False, True, True]
    digests = {workflow.result(*cell)["inputs"]["dataset_digest"] for cell in CELLS}
    assert len(digests) == 1


def test_datasets_are_made_without_measuring(workflow, first):
    ended = workflow.snakemake("datasets", config="experiment.yaml")
    assert ended.code == 0, ended.text
    assert ended.jobs == {"dataset": 1, "datasets": 1}
    (report,) = (workflow.folder / "results/box/datasets").rglob("staged.json")
    assert json.loads(report.read_text())["nodes"] == 1


def test_plan_counts_cells_before_and_after(workflow, first):
    before = first[0]
    assert before.code == 0, before.text
    after = workflow.ddlbench("plan", "--configfile", "experiment.yaml", "--json")
    counts = [json.loads(ended.stdout) for ended in (before, after)]
    assert [(count["done"], count["to_run"]) for count in counts] == [(0, 3), (3, 0)]
    table = workflow.ddlbench("plan", "--configfile", "experiment.yaml")
    assert table.code == 0
    assert "3 cells, 0 to run, 3 done, 0 cannot run" in table.text


def test_second_run_has_nothing_to_do(workflow, first):
    """Neither marks of a killed run nor touched sources are a reason to measure again."""
    # Snakemake's mark on the output of a job whose end it has not seen.
    result = (workflow.cell("mlp", "ddp") / "result.json").relative_to(workflow.folder)
    name = base64.urlsafe_b64encode(str(result).encode()).decode()
    mark = workflow.folder / ".snakemake" / "incomplete" / name
    mark.write_text('{"external_jobid": null}')
    later = time.time() + 5
    touched = [workflow.folder / "Snakefile"]
    for part in ("rules", "workflow", "profiles", "envs", "src", "config"):
        touched += [path for path in (workflow.folder / part).rglob("*") if path.is_file()]
    for path in touched:
        os.utime(path, (later, later))
    script = workflow.folder / "workflow" / "scripts" / "run_cell.py"
    script.write_text(script.read_text() + "\n# A comment that changes the script.\n")
    assert workflow.snakemake(config="experiment.yaml").did_nothing
    mark.unlink()  # else Snakemake's own report refuses the file


def test_a_new_network_adds_its_own_cells_only(workflow, first):
    grown = workflow.experiment("grown.yaml", matrix={"network": ["mlp", "tiny_networks:other"]})
    jobs = workflow.snakemake("-n", "--quiet", "reason", config=grown)
    assert jobs.jobs == {"cell": 3, "tables": 1, "figure": DRAWN, "page": 1, "all": 1}
    assert "would measure  mnist tiny_networks:other ddp 1x2" in jobs.text
    assert " mlp " not in jobs.text


def test_more_repeats_add_the_new_ones_only(workflow, first):
    more = workflow.experiment("more.yaml", repeats=2)
    jobs = workflow.snakemake("-n", "--quiet", "reason", config=more)
    assert jobs.jobs["cell"] == 3
    assert jobs.text.count(" rep1\n") == 3
    assert " rep0\n" not in jobs.text


def test_cells_that_cannot_run_reach_the_tables_without_a_job(workflow, first):
    wider = workflow.experiment("wider.yaml", matrix={"geometry": ["1x2", "1x3"]})
    jobs = workflow.snakemake("-n", "--quiet", "rules", config=wider)
    assert jobs.jobs == {"tables": 1, "figure": DRAWN, "page": 1, "all": 1}


def test_a_deleted_result_is_measured_again_alone_and_stays_if_its_job_fails_later(workflow, first):
    before = workflow.results()
    gone = workflow.cell("mlp", "sequential") / "result.json"
    gone.unlink()
    plan = workflow.snakemake("-n", "--quiet", "rules", config="experiment.yaml")
    assert plan.jobs == {"cell": 1, "tables": 1, "figure": DRAWN, "page": 1, "all": 1}
    script = workflow.folder / "workflow" / "scripts" / "run_cell.py"
    whole = script.read_text()
    script.write_text(f"{whole}\nsys.exit(1)\n")
    ended = workflow.snakemake("cells", config="experiment.yaml")
    assert (ended.code, "incomplete" in ended.text) == (1, False), ended.text
    assert ended.jobs == {"cell": 1, "cells": 1}
    script.write_text(whole)
    after = workflow.results()
    again = str(gone.relative_to(workflow.folder))
    assert after.keys() == before.keys()
    assert {path for path in after if after[path] != before[path]} == {again}
    assert workflow.result("mlp", "sequential")["staging"]["reused"] is True
    assert workflow.snakemake("cells", config="experiment.yaml").did_nothing


def test_an_invalid_result_is_measured_again_and_a_newer_one_is_left(workflow, first):
    invalid = workflow.cell("mlp", "sequential") / "result.json"
    newer = workflow.cell("mlp", "ddp") / "result.json"
    as_measured = newer.read_text()
    invalid.write_text(json.dumps({**json.loads(invalid.read_text()), "site": "elsewhere"}))
    newer.write_text(json.dumps({**json.loads(as_measured), "schema_version": 999}))
    before = newer.read_bytes()
    ended = workflow.snakemake("cells", config="experiment.yaml")
    assert ended.code == 0, ended.text
    assert ended.jobs["cell"] == 1
    assert "is the result of site 'elsewhere'" in ended.text
    assert "written by a newer ddlbench (schema 999; this checkout reads 1)" in ended.text
    assert newer.read_bytes() == before
    assert invalid.with_name("result.json.broken").is_file()
    assert workflow.result("mlp", "sequential")["site"] == "box"
    newer.write_text(as_measured)


def test_any_cell_can_be_asked_for_by_its_path(workflow, first):
    variant = "batch_size=4+epochs=1+warmup_steps=0+max_steps=1+data_scale=0.0008"
    folder = workflow.cell("tiny_networks@other", "sequential", variant)
    target = str(folder.relative_to(workflow.folder) / "result.json")
    before = workflow.results()
    ended = workflow.snakemake(target, config="experiment.yaml")
    assert ended.code == 0, ended.text
    assert ended.jobs == {"cell": 1}
    assert workflow.results().keys() - before.keys() == {target}


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        ("mnist/resnet18/gpipe/2x1/batch_size=8/rep0", "site box has 1 node"),
        ("mnist/resnet18/gpipe/1x2/batch_size=9/rep0", "batch_size"),
        ("mnist/resnet18/ddp/1x2/batch_size=8+warmup=3/rep0", "'warmup' is not a key here"),
    ],
)
def test_a_path_that_is_no_cell_is_refused_before_any_job(workflow, cell, sentence):
    ended = workflow.snakemake(
        f"results/box/cells/{cell}/result.json", config=workflow.experiment()
    )
    assert ended.code != 0
    assert sentence in ended.text
    assert ended.text.count("ddlbench: ") == 1
    assert "Traceback" not in ended.text
    assert not (workflow.folder / "results/box/cells" / cell).exists()


def test_partial_reports_what_is_there(workflow, first):
    more = workflow.experiment("more.yaml", experiment="more", repeats=2)
    ended = workflow.snakemake("partial", config=more)
    assert ended.code == 0, ended.text
    rows = workflow.measurements("more").values()
    assert sorted((row["repeat"], row["status"]) for row in rows) == [
        *[("0", "ok")] * 3,
        *[("1", "not run")] * 3,
    ]
    assert workflow.figures("more") >= FIGURES
    page = (workflow.folder / "results/box/more/report.html").read_text()
    assert "Unfinished: 3 of 6 cells not run yet." in page


def test_report_command_shows_the_cells_that_are_there_and_makes_their_page_anew(workflow, first):
    # Of what the test before this one left; the whole command is in test_commands_of_results.py.
    shown = workflow.ddlbench("report", "--configfile", "more.yaml", "--show")
    assert shown.code == 0, shown.text
    assert "Speed-up over sequential training" in shown.text
    assert "DDP" in shown.text
    page = workflow.folder / "results/box/more/report.html"
    assert f"page:    {page.relative_to(workflow.folder)}" in shown.text
    page.unlink()
    assert workflow.ddlbench("report", "--configfile", "more.yaml", "--html").code == 0
    assert page.is_file()


def test_snakemakes_report_has_figures_and_captions(workflow, first):
    ended = workflow.snakemake("--report", "report.zip", config=workflow.experiment())
    assert ended.code == 0, ended.text
    with zipfile.ZipFile(workflow.folder / "report.zip") as archive:
        names = archive.namelist()
        page = "\n".join(
            archive.read(name).decode("utf-8", "replace")
            for name in names
            if name.endswith((".html", ".js", ".json"))
        )
    for figure in ("speedup", "memory", "steps"):
        assert any(name.endswith(f"{figure}.png") for name in names), names
    assert any(name.endswith("measurements.csv") for name in names)
    for caption in (
        "Speed-up over one device of the site",
        "Peak memory of the fullest device",
        "Every measured step",
        "One row per cell of the matrix",
        "Each cell of the experiment is one job",
        "tiny on box, 3 cells",
    ):
        assert caption in page
