"""What becomes of a cell when something breaks: faults put into real runs on a real SLURM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cluster_project import Project
from testbed import Options, TestBed, missing

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing()), reason=f"no test bed here: {missing()}"),
]

NETWORKS = """
import os, time
from pathlib import Path
from torch import nn
import torch

HERE = Path(__file__).parent

class Slow(nn.Module):
    def forward(self, inputs):
        time.sleep(0.5)
        return inputs

class Greedy(nn.Module):
    def forward(self, inputs):
        self.kept = [torch.ones(250_000_000) for _ in range(8)]   # 8 GB
        return inputs

def _network(spec, first):
    with (HERE / "runs.txt").open("a") as file:
        file.write(f"{os.environ['SLURM_JOB_ID']}\\n")
    return nn.Sequential(first, nn.Flatten(), nn.Linear(spec.image_bytes, 10))

def slow(spec):
    return _network(spec, Slow())

def greedy(spec):
    return _network(spec, Greedy())
"""


def experiment(network: str) -> dict:
    return {
        "experiment": "faults",
        "site": "testbed",
        "matrix": {
            "dataset": ["mnist"],
            "network": [f"cluster_network:{network}"],
            "strategy": ["ddp"],
            "geometry": ["2x1"],
        },
        "settings": {"batch_size": 4, "data_scale": 0.0008, "epochs": 3, "warmup_steps": 0},
    }


@pytest.fixture(scope="module")
def bed():
    with TestBed(Options(nodes=2, devices=2, memory_mb=3000)) as bed:
        yield bed


@pytest.fixture
def project(bed, tmp_path):
    return Project(tmp_path, bed, experiment("slow"), NETWORKS)


def cell_folder(project: Project):
    found = list(project.folder.glob("results/testbed/cells/**/rep0"))
    return found[0] if found else None


def wait_for(condition, seconds=90.0):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError("it did not come")


def training(project: Project) -> int | None:
    """The SLURM job whose ranks train now."""
    folder = cell_folder(project)
    if folder is None or not (folder / "lease.json").exists():
        return None
    runs = project.folder / "runs.txt"
    if not runs.exists() or len(runs.read_text().split()) < 2:
        return None
    return int(json.loads((folder / "lease.json").read_text())["job_id"])


def workers(bed: TestBed, job: int) -> list[int]:
    return [
        process.pid
        for processes in bed.processes(job).values()
        for process in processes
        if "ddlbench.runtime.worker" in _command_line(process.pid)
    ]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def test_a_killed_rank_is_named_and_takes_the_others_along(bed, project):
    run = project.start("--retries", "0")
    job = wait_for(lambda: training(project))
    victims = wait_for(lambda: workers(bed, job))
    os.kill(victims[0], signal.SIGKILL)
    wait_for(lambda: not workers(bed, job), seconds=30)
    assert run.wait(timeout=120) != 0
    failure = json.loads((cell_folder(project) / "failure.json").read_text())
    assert "killed by signal 9" in failure["reason"]
    assert not (cell_folder(project) / "result.json").exists()
    # The next run measures it.
    again = project.snakemake()
    assert again.returncode == 0, again.stderr[-3000:]
    (result,) = project.results().values()
    assert result["status"] == "ok"


def test_a_workflow_that_was_killed_is_started_again_and_no_cell_runs_twice(bed, project):
    first = project.start()
    job = wait_for(lambda: training(project))
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    second = project.snakemake()
    assert second.returncode == 0, second.stderr[-3000:]
    (result,) = project.results().values()
    assert result["status"] == "ok"
    assert result["provenance"]["slurm_job_id"] == str(job)
    # Two ranks built their network, once.
    assert (project.folder / "runs.txt").read_text().split() == [str(job)] * 2


def test_two_workflows_at_once_measure_a_cell_once(bed, project):
    first = project.start()
    wait_for(lambda: training(project))
    second = project.snakemake()
    assert first.wait(timeout=120) == 0
    assert second.returncode == 0, second.stderr[-3000:]
    assert len((project.folder / "runs.txt").read_text().split()) == 2
    (result,) = project.results().values()
    assert result["status"] == "ok"


def test_a_cancelled_job_leaves_no_rank_and_the_cell_runs_next_time(bed, project):
    run = project.start("--retries", "0")
    job = wait_for(lambda: training(project))
    bed.cancel(job)
    wait_for(lambda: not workers(bed, job), seconds=60)
    run.send_signal(signal.SIGINT)
    try:
        run.wait(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
    again = project.snakemake()
    assert again.returncode == 0, again.stderr[-3000:]
    (result,) = project.results().values()
    assert result["status"] == "ok"


def test_more_memory_than_the_job_has_is_a_result(bed, project):
    project.configure(experiment("greedy"))
    run = project.snakemake()
    assert run.returncode == 0, run.stderr[-3000:]
    (result,) = project.results().values()
    assert result["status"] == "out_of_memory"
    assert result["reason"]
    assert project.jobs_submitted(project.snakemake()) == 0
