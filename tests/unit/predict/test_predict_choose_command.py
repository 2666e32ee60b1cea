"""``recommend --measure`` asks the workflow for cells, and stops where it cannot measure."""

from __future__ import annotations

import json
import subprocess

import predict_factory as make
import pytest
from click.testing import CliRunner
from predict_results import write_ok

from ddlbench.cli import commands
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell

CELL = ("--network", "vgg11", "--dataset", "mnist", "--geometry", "1x2", "--batch-size", "16")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Commands that were run; each leaves a result of 0.1 s a step, as the workflow does."""
    make.write_site(tmp_path / "results", make.profile(), make.links(make.pair([0] * 2)))
    monkeypatch.chdir(tmp_path)
    seen: list[list[str]] = []

    def run(command, **_more):
        seen.append(command)
        cell_id = command[3].removeprefix("results/local/cells/").removesuffix("/result.json")
        write_ok(tmp_path / "results", Cell.from_id(cell_id), 0.1)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("ddlbench.commands.questions.subprocess.run", run)
    return seen


def test_the_workflow_measures_and_the_choice_is_kept(runs, tmp_path) -> None:
    ended = CliRunner().invoke(commands, ["recommend", *CELL, "--measure", "2"])
    assert ended.exit_code == 0, ended.output
    assert 1 <= len(runs) <= 2
    assert runs[0][1:3] == ["-m", "snakemake"]
    assert runs[0][4:6] == ["--profile", "profiles/local"]
    assert runs[0][6:10] == ["--configfile", "config/config.yaml", "--config", "site=local"]
    assert "Measured for this choice: " in ended.output
    folder = tmp_path / "results/local/choices/mnist/vgg11/1x2/batch_size=16"
    kept = json.loads((folder / "choice.json").read_text())
    assert len(kept["trials"]) == len(runs)
    assert (folder / "choice.png").is_file()
    again = CliRunner().invoke(commands, ["recommend", *CELL, "--measure", "2"])
    assert again.exit_code == 0
    assert len(runs) == len(kept["trials"])  # nothing twice


def test_a_workflow_that_cannot_measure_ends_with_an_answer(runs, monkeypatch, tmp_path) -> None:
    commands_run = []

    def run(command, **_more):
        commands_run.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr("ddlbench.commands.questions.subprocess.run", run)
    ended = CliRunner().invoke(commands, ["recommend", *CELL, "--measure", "2", "--json"])
    assert ended.exit_code == 0, ended.output
    assert ended.stderr.count("was not measured: snakemake ended with 1") == len(commands_run) > 0
    assert "recommended" in json.loads(ended.stdout)
    (path,) = (tmp_path / "results").rglob("choice.json")
    kept = json.loads(path.read_text())
    assert kept["trials"] == []  # the workflow failed, not a strategy
    assert "workflow could not begin" in kept["stopped"]


def test_a_cell_that_crashes_takes_only_its_strategy_out(runs, monkeypatch, tmp_path) -> None:
    def run(command, **_more):
        log = (tmp_path / command[3]).with_name("log.txt")
        log.parent.mkdir(parents=True)
        log.write_text("it crashed")
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr("ddlbench.commands.questions.subprocess.run", run)
    ended = CliRunner().invoke(commands, ["recommend", *CELL, "--measure", "2"])
    assert ended.exit_code == 0, ended.output
    (path,) = (tmp_path / "results").rglob("choice.json")
    kept = json.loads(path.read_text())
    assert [trial["status"] for trial in kept["trials"]] == ["not measured"] * 2


@pytest.mark.parametrize(
    ("further", "says"),
    [
        (["--measure", "1", "--recommender", "thesis"], "--recommender thesis does not"),
        (["--budget-device-hours", "1"], "give K, too"),
    ],
)
def test_what_would_be_ignored_is_refused(runs, further, says) -> None:
    with pytest.raises(ConfigError, match=says):
        CliRunner().invoke(commands, ["recommend", *CELL, *further], catch_exceptions=False)
    assert runs == []


def test_each_case_has_a_file_of_its_own(runs, tmp_path) -> None:
    further = ["--option", "pipe-gpipe.chunks=8"]
    for more in ([], further):
        CliRunner().invoke(commands, ["recommend", *CELL, "--measure", "1", *more])
    kept = {path.parent.name for path in (tmp_path / "results").rglob("choice.json")}
    assert kept == {"batch_size=16", "batch_size=16+pipe-gpipe.chunks=8"}
