"""A choice that measures on a real SLURM: killed in the middle, it measures nothing twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml
from cluster_project import Project
from testbed import Options, TestBed, missing

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing()), reason=f"no test bed here: {missing()}"),
]

EXPERIMENT = {
    "experiment": "choosing",
    "site": "testbed",
    "matrix": {
        "dataset": ["mnist"],
        "network": ["cluster_network:plain"],
        "strategy": ["sequential", "ddp"],
        "geometry": ["2x1"],
    },
    "settings": {"batch_size": 16, "data_scale": 0.004, "epochs": 1, "warmup_steps": 1},
    "profile": {"budget_s": 1, "batch_sizes": [4, 8, 16]},
}
# Notes the job of every process that builds it; the login node has no job. It computes long and has
# few weights: whatever the links measured, DDP and Horovod are predicted to take nearly the same
# time, and only measuring tells which is faster.
NETWORK = """
import os
from pathlib import Path
from torch import nn

def plain(spec):
    with Path("built.txt").open("a") as file:
        file.write(os.environ.get("SLURM_JOB_ID", "") + "\\n")
    return nn.Sequential(nn.Conv2d(1, 80, 5, padding=2), nn.ReLU(),
                         nn.Conv2d(80, 80, 5, padding=2), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(80, 10))
"""
# Pauses for jobs of seconds, not of minutes.
PAUSES = {
    "slurm-init-seconds-before-status-checks": 1,
    "seconds-between-status-checks": 1,
    "max-jobs-per-timespan": "100/1s",
    "latency-wait": 10,
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    with TestBed(Options(nodes=2, devices=1, bandwidth="1gbit")) as bed:
        made = Project(tmp_path_factory.mktemp("choosing"), bed, EXPERIMENT, NETWORK)
        made.change_site(interconnect={"sweep_budget_s": 0.3, "largest_bytes": 2**18})
        profile = made.folder / "profiles" / "slurm" / "config.yaml"
        profile.write_text(yaml.safe_dump({**yaml.safe_load(profile.read_text()), **PAUSES}))
        run = made.snakemake("profiles", "links")
        assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
        yield made


def recommend(project: Project) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "ddlbench.cli", "recommend", "--site", "testbed"),
            *("--network", "cluster_network:plain", "--dataset", "mnist", "--geometry", "2x1"),
            *("--batch-size", "16", "--measure", "2"),
        ],
        cwd=project.folder,
        env=project.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def jobs(project: Project) -> set[str]:
    """SLURM jobs that have built the network."""
    return set((project.folder / "built.txt").read_text().split())


def test_killed_in_the_middle_it_measures_nothing_twice(project):
    before = jobs(project)
    killed = recommend(project)
    limit = time.monotonic() + 240
    while jobs(project) == before and killed.poll() is None and time.monotonic() < limit:
        time.sleep(0.2)
    assert killed.poll() is None, killed.stdout.read()[-4000:]
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    again = recommend(project)
    output, _ = again.communicate(timeout=400)
    assert again.returncode == 0, output[-4000:]
    (path,) = project.folder.glob("results/testbed/choices/**/choice.json")
    choice = json.loads(path.read_text())
    # One is enough where its time is far from what is predicted of the other.
    measured = len(choice["trials"])
    assert measured in (1, 2), choice["stopped"]
    assert len(jobs(project) - before) == measured, "a cell was measured twice"
    cells = {result["cell_id"] for result in project.results().values()}
    assert cells == {trial["cell_id"] for trial in choice["trials"]}
    finished = recommend(project)
    finished.communicate(timeout=120)
    assert finished.returncode == 0
    assert len(jobs(project) - before) == measured
