"""The start of a run: logs that name their job, a clean shell, options that are refused."""

from __future__ import annotations

import os
import sys

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.common.owner import RUN
from ddlbench.experiment.site import load_site
from ddlbench.planning.matrix import matrix_of
from ddlbench.workflow import guards
from ddlbench.workflow.guards import begin, check_cluster
from ddlbench.workflow.run import logged, nothing_runs

CELL = "mnist/vgg11/ddp/1x2/batch_size=8/rep0"


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "12")


def test_the_first_line_of_a_log_names_the_job(job, tmp_path):
    with logged(str(tmp_path / "cell.log"), attempt=2):
        pass
    (line,) = (tmp_path / "cell.log").read_text().splitlines()
    assert line.startswith("# SLURM job 12, attempt 2, ")


def test_a_failure_stands_below_the_heading(job, tmp_path, capsys):
    with pytest.raises(SystemExit), logged(str(tmp_path / "cell.log"), ConfigError):
        raise ConfigError("no room is left")
    heading, sentence = (tmp_path / "cell.log").read_text().splitlines()
    assert heading.startswith("# SLURM job 12, attempt 1, ")
    assert sentence == "no room is left"
    assert capsys.readouterr().err == "ddlbench: no room is left\n"


def test_a_name_that_is_no_text_hides_no_reason(job, tmp_path, capsys):
    name = os.fsdecode(b"caf\xe9.jpg")
    with pytest.raises(SystemExit), logged(str(tmp_path / "cell.log"), RuntimeError):
        raise RuntimeError(f"{name} is no image")
    assert "caf\\udce9.jpg is no image" in (tmp_path / "cell.log").read_text("utf-8")
    assert "is no image" in capsys.readouterr().err


def test_a_log_of_an_earlier_job_is_replaced(job, tmp_path):
    (tmp_path / "cell.log").write_text("# SLURM job 11, attempt 1\na bug\n")
    with logged(str(tmp_path / "cell.log")):
        assert "a bug" not in (tmp_path / "cell.log").read_text()


@pytest.mark.parametrize(
    ("geometries", "says"),
    [
        (["64x64"], ["no cell can run (site local has 1 node of "]),
        (["64x64", "1x1"], []),
    ],
)
def test_a_run_of_no_cell_is_told(geometries, says):
    axes = {"dataset": ["mnist"], "network": ["mlp"], "strategy": ["ddp"]}
    config = {
        "experiment": "mine",
        "site": "local",
        "matrix": {**axes, "geometry": geometries},
        "settings": {"batch_size": 8192},
    }
    _, _, rows = matrix_of(config, where="mine.yaml")
    remarks = list(nothing_runs(rows))
    assert len(remarks) == len(says)
    assert all(map(str.startswith, remarks, says))


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A cluster's site."""
    site = load_site("slurm-example", as_example=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(RUN, "")
    monkeypatch.setattr(guards, "_shell", {})
    monkeypatch.delitem(sys.modules, "snakemake_executor_plugin_slurm", raising=False)
    return site


def test_a_run_has_a_name_on_every_site(cluster):
    begin(load_site("local"))
    assert os.environ[RUN]


def test_a_cluster_decides_and_not_the_users_shell(cluster, monkeypatch):
    site = cluster
    monkeypatch.setenv("SBATCH_ACCOUNT", "lab")
    begin(site)
    assert "SBATCH_ACCOUNT" not in os.environ
    assert guards._shell["SBATCH_ACCOUNT"] == "lab"  # so that the check can tell of it


def test_job_arrays_are_refused(cluster):
    site = cluster
    with pytest.raises(ConfigError, match="--slurm-array-jobs: leave the option out"):
        check_cluster(site, ["a cell"], "all")
    check_cluster(site, [], "all")  # nothing is submitted
