"""``ddlbench recommend tune``: what it prints, what it asks the workflow for, what it refuses."""

from __future__ import annotations

import json
import subprocess

import predict_factory as make
import pytest
from click.testing import CliRunner
from predict_results import write_ok

from ddlbench.cli import commands
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.experiment.cell import Cell

CASE = (
    "recommend", "tune", "--strategy", "pipe-gpipe", "--network", "vgg11", "--dataset", "mnist",
    "--geometry", "1x2", "--batch-size", "16",
)  # fmt: skip
CHUNKS = ("--vary", "chunks=2,4,8")


@pytest.fixture
def measured_ids(tmp_path, monkeypatch):
    """Cells that were asked for; each leaves a result of 0.1 s a step, as the workflow does."""
    make.write_site(
        tmp_path / "results", make.profile((make.MB,) * 23), make.links(make.pair([0] * 2))
    )
    monkeypatch.chdir(tmp_path)
    seen: list[str] = []

    def run(command, **_more):
        cell_id = command[3].removeprefix("results/local/cells/").removesuffix("/result.json")
        seen.append(cell_id)
        write_ok(tmp_path / "results", Cell.from_id(cell_id), 0.1)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("ddlbench.commands.questions.subprocess.run", run)
    return seen


def test_a_dry_run_measures_nothing_and_says_what_it_would_cost(measured_ids, tmp_path) -> None:
    ended = CliRunner().invoke(commands, [*CASE, *CHUNKS, "--dry-run"])
    assert ended.exit_code == 0, ended.output
    assert measured_ids == []
    assert "A search measures up to 3 cells: " in ended.output
    assert "device-hours" in ended.output
    assert "best: chunks=" in ended.output
    assert not (tmp_path / "results/local/tunings").exists()
    assert max(map(len, ended.output.splitlines())) <= 80


def test_the_workflow_measures_and_the_search_is_kept(measured_ids, tmp_path) -> None:
    ended = CliRunner().invoke(commands, [*CASE, *CHUNKS, "--trials", "2"])
    assert ended.exit_code == 0, ended.output
    assert 1 <= len(measured_ids) <= 2
    assert f"Measured for this search: {counted(len(measured_ids), 'cell')}" in ended.output
    path = tmp_path / "results/local/tunings/pipe-gpipe/mnist/vgg11/1x2/batch_size=16/tuning.json"
    kept = json.loads(path.read_text())
    assert [trial["cell_id"] for trial in kept["trials"]] == measured_ids
    assert kept["best"]["basis"] == "measured"
    assert path.with_suffix(".png").is_file()
    second_run = CliRunner().invoke(commands, [*CASE, *CHUNKS, "--trials", "2", "--json"])
    assert json.loads(second_run.stdout)["trials"] == kept["trials"]
    assert len(measured_ids) == len(kept["trials"])  # nothing twice


def test_a_varied_batch_needs_no_other(measured_ids) -> None:
    words = [*CASE[:-2], "--vary", "batch_size=8,16", "--option", "pipe-gpipe.chunks=2"]
    ended = CliRunner().invoke(commands, [*words, "--dry-run", "--json"])
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.stdout)["case"]["varied"] == {"batch_size": [8, 16]}


def test_by_default_it_varies_what_is_worth_it(measured_ids) -> None:
    ended = CliRunner().invoke(commands, [*CASE, "--dry-run", "--json"])
    assert ended.exit_code == 0, ended.output
    assert set(json.loads(ended.stdout)["case"]["varied"]) == {"chunks", "replicas", "balance"}


@pytest.mark.parametrize(
    ("further", "says"),
    [
        (["--vary", "chunks"], "write a name and its values"),
        (["--vary", "chunks=2,,4"], "write a name and its values"),
        (["--vary", "chunks=2", "--vary", "chunks=4"], "given twice"),
        (["--vary", "chunkz=2"], "no such option"),
        (["--vary", "chunks=two"], "chunks"),
        (["--vary", "batch_size=8.5"], "write whole numbers"),
        (["--vary", "chunks=2", "--option", "pipe-gpipe.chunks=4"], "exclude each other"),
        (["--option", "gpipe.chunks=4"], "gpipe.chunks has no effect on pipe-gpipe"),
    ],
)
def test_what_is_wrong_is_one_sentence(measured_ids, further, says) -> None:
    with pytest.raises(ConfigError, match=says):
        CliRunner().invoke(commands, [*CASE, *further], catch_exceptions=False)
    assert measured_ids == []


@pytest.mark.parametrize(
    "words",
    [
        ["recommend"],
        ["recommend", "tune", "--strategy", "gpipe"],
        ["recommend", "tune", "--strategy", "gpipe", "--dry-run"],
    ],
)
def test_a_site_that_is_too_small_asks_for_no_profile(words) -> None:
    """Nobody should profile a network to be told that the devices are too few."""
    case = ["--network", "vgg11", "--dataset", "mnist", "--geometry", "9x64", "--batch-size", "576"]
    with pytest.raises(ConfigError, match="the cell asks for 9x64; write a smaller --geometry"):
        CliRunner().invoke(commands, [*words, *case], catch_exceptions=False)


def test_nor_does_a_cluster_that_could_grow_unless_it_is_predicted(monkeypatch) -> None:
    grown = make.site(name="nowhere", launcher="slurm", nodes=1, devices_per_node=1)
    monkeypatch.setattr("ddlbench.commands.questions.load_site", lambda _: grown)
    for further, says in (([], "--dry-run predicts it"), (["--dry-run"], "there is no profile")):
        with pytest.raises(ConfigError, match=says):
            CliRunner().invoke(commands, [*CASE, *further], catch_exceptions=False)
