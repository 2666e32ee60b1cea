"""How srun is called: for ranks and for staging."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time

import pytest

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import load_site
from ddlbench.planning.planner import make_plan
from ddlbench.runtime import staging
from ddlbench.runtime.launch import SrunLaunch, Step, srun_command
from ddlbench.runtime.staging import StagingFailed, stage_cell

# By hand: example site, 6 cores a device, 4 devices a node.
RANKS = ["srun", "--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--cpus-per-task=6"]
STAGING = ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--cpus-per-task=24"]
ADDED = ["--cpu-bind=cores", "--threads-per-core=1"]


def site(**slurm):
    example = load_site("slurm-example", as_example=True)
    settings = dataclasses.replace(example.slurm, **slurm)
    return dataclasses.replace(example, slurm=settings, scratch="/tmp/nowhere")


@pytest.fixture
def srun(tmp_path, monkeypatch):
    """An srun that notes its words and runs nothing."""
    program = tmp_path / "srun"
    notes = tmp_path / "said"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$0" "$@" > {notes}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return lambda: ["srun", *notes.read_text().splitlines()[1:]]


def cell(**changes):
    return Cell("mnist", "resnet18", "ddp", batch_size=16, nodes=2, devices_per_node=4).with_(
        **changes
    )


def test_options_of_the_site_come_last():
    actual = srun_command(site(mpi="pmix", srun=ADDED), nodes=2, tasks=8, per_node=4, devices=1)
    assert actual == [*RANKS, "--mpi=pmix", *ADDED]


def test_ranks(srun):
    plan = make_plan(cell(), "slurm-example")
    step = Step(("true",), plan.processes, 2, 4, threads=1, interface=None)
    running = SrunLaunch(step, site(srun=ADDED))
    try:
        list(running.lines(time.monotonic() + 30))
    finally:
        running.stop()
    assert srun() == [*RANKS, *ADDED, "--kill-on-bad-exit=1", "--label", "--unbuffered", "true"]


def test_staging_has_the_cores_of_all_devices_of_a_node(srun, tmp_path):
    with pytest.raises(StagingFailed, match="only 0 of 2 nodes answered"):
        stage_cell(cell(), site(srun=ADDED), tmp_path)
    assert srun()[: len(STAGING) + len(ADDED)] == [*STAGING, *ADDED]


def test_a_job_that_the_controller_has_forgotten_is_told_so(monkeypatch):
    """slurmctld was killed and restarted while a cell was staging."""
    monkeypatch.setenv("SLURM_JOB_ID", "66")
    words = "srun: error: Check SLURM_JOB_ID environment variable. Expired or invalid job 66"
    sentence = staging._silent_nodes(1, [], words, "srun ended with 1")
    assert "controller does not know job 66 any more, as after a restart" in sentence
    assert "Expired or invalid job 66" in sentence


def test_data_that_took_the_cells_time_is_a_failure(tmp_path):
    """Else SLURM would end the cell early, which reads as a cell that ran out of time."""
    late = dataclasses.replace(
        site(), scratch=str(tmp_path / "scratch"), stage_timeout_s=1e-9, devices_per_node=1
    )
    small = cell(nodes=1, devices_per_node=1, data_scale=0.0008)
    with pytest.raises(StagingFailed, match=r"more than the site's stage_timeout_s .*raise it to"):
        stage_cell(small, late, tmp_path)
    assert (tmp_path / "failure.json").is_file()
    enough = dataclasses.replace(late, stage_timeout_s=600)
    assert stage_cell(small, enough, tmp_path)["reused"]
    here = dataclasses.replace(late, launcher="local")
    assert stage_cell(small, here, tmp_path)["reused"]


def test_scratch_that_is_no_path_here_is_a_failure_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOT_THERE", raising=False)
    here = dataclasses.replace(load_site("local"), scratch="$NOT_THERE")
    with pytest.raises(StagingFailed, match=r"scratch: '\$NOT_THERE' is no path on"):
        stage_cell(cell(nodes=1, devices_per_node=2), here, tmp_path / "cell")
    assert [path.name for path in tmp_path.iterdir()] == ["cell"]


def test_the_fake_srun_is_the_one_that_runs(srun):
    subprocess.run(["srun", "a", "b c"], check=True)
    assert srun() == ["srun", "a", "b c"]
