"""Jobs of one shape are one sbatch; each task runs its own command, and fails or runs by itself."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import snakemake_executor_plugin_slurm as plugin
from made_up_jobs import POLICY, Group, RuleJob

from ddlbench.cluster import executor as module
from ddlbench.cluster import job_array
from ddlbench.cluster.executor import SlurmExecutor, _Pace
from ddlbench.common.owner import Writer
from ddlbench.slurm import jobs as slurm_jobs


@pytest.fixture
def several(executor, sbatch, tmp_path, monkeypatch):
    """Cells in folders of their own, an executor that submits in this thread, and the calls."""
    calls = tmp_path / "calls.txt"
    monkeypatch.setattr(module, "_array_tasks", 500)
    monkeypatch.setattr(plugin, "validate_slurm_extra", lambda _job: None)
    monkeypatch.setattr(
        SlurmExecutor, "format_job_exec", lambda _self, job: f"echo run {job.output[0]}"
    )
    executor.run_job_pre = lambda _job: None
    executor._job_submission_executor = SimpleNamespace(submit=lambda f, *a: f(*a))
    executor._pace = _Pace(1000)

    def make(count: int, script: str = "echo 12", **resources: Any) -> list[RuleJob]:
        sbatch(f"echo $@ >> {calls}; cat > {tmp_path}/script.sh; {script}")
        jobs = []
        for number in range(count):
            folder = tmp_path / f"cell{number}"
            folder.mkdir(exist_ok=True)
            job = RuleJob("cell", folder, **resources)
            job.threads, job.priority, job.jobid = 1, 0, number
            jobs.append(job)
        return jobs

    make.calls = lambda: calls.read_text().splitlines()
    make.script = tmp_path / "script.sh"
    return make


def test_cells_of_one_shape_are_one_sbatch(several, executor):
    executor.run_jobs(several(40))
    (call,) = several.calls()
    assert "--array=1-40" in call
    assert [info.external_jobid for info in executor.active_jobs] == [
        f"12_{task}" for task in range(1, 41)
    ]


def test_each_task_runs_the_command_of_its_own_job(several, executor):
    jobs = several(3)
    executor.run_jobs(jobs)
    for info in executor.active_jobs:
        task = info.external_jobid.partition("_")[2]
        environment = {**os.environ, "SLURM_ARRAY_TASK_ID": task}
        ran = subprocess.run(
            ["sh", str(several.script)], env=environment, capture_output=True, text=True, check=True
        )
        assert ran.stdout == f"run {info.job.output[0]}\n"


def test_cells_of_other_shapes_are_other_arrays(several, executor):
    large = several(4, nodes=2)
    small = several(3, nodes=1)
    executor.run_jobs([*large[:2], *small, *large[2:]])
    assert sorted(call.split("--array=")[1].split(" ")[0] for call in several.calls()) == [
        "1-3", "1-4",
    ]  # fmt: skip


def test_an_array_is_as_long_as_the_site_says(several, executor, monkeypatch):
    monkeypatch.setattr(module, "_array_tasks", 4)
    executor.run_jobs(several(10))
    assert [call.partition("--array=")[2].split(" ")[0] for call in several.calls()] == [
        "1-4", "1-4", "1-2",
    ]  # fmt: skip


def test_one_job_or_a_site_without_arrays_submits_as_before(several, executor, monkeypatch):
    executor.run_jobs(several(1))
    monkeypatch.setattr(module, "_array_tasks", 1)
    executor.run_jobs(several(2))
    assert len(several.calls()) == 3
    assert not any("--array" in call for call in several.calls())


def test_the_screen_counts_the_tasks_of_an_array(several, executor):
    executor.run_jobs(several(3))
    (line,) = executor.logger.infos
    assert line.startswith("submitted: ")
    assert line.endswith("(job 12_1) and 2 more")


def test_a_group_of_rules_goes_alone(cell_folder):
    group = Group(cell_folder)
    assert job_array.shape_of(group) is None
    assert list(job_array.arrays_of([group, group], 500)) == [[group, group]]


def test_bases_are_the_first_tasks(several):
    jobs = several(3)
    jobs[2].priority = 1
    ((first, *_),) = job_array.arrays_of(jobs, 500)
    assert first is jobs[2]


def test_the_sbatch_of_a_base_is_the_first(several):
    jobs = [*several(2), *several(1, gpu=1)]
    jobs[2].priority = 1
    assert [len(alike) for alike in job_array.arrays_of(jobs, 500)] == [1, 2]


def test_an_array_that_sbatch_refuses_is_one_call_and_a_failure_each(several, executor):
    refuses = "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1"
    jobs = several(5, refuses)
    executor.run_jobs(jobs)
    assert len(several.calls()) == 1
    assert executor.workflow.scheduler.failed == jobs
    assert all("change slurm.partition" in job.errors[0][0] for job in jobs)


def test_a_limit_on_jobs_halves_an_array(several, executor, monkeypatch):
    monkeypatch.setattr(module.partitions, "has_jobs", lambda: True)
    limit = (
        f'case "$*" in *array=1-8*) echo "sbatch: error: QOSMaxSubmitJobPerUserLimit: {POLICY}"'
        " >&2; exit 1;; esac; echo 12"
    )
    executor.run_jobs(several(8, limit))
    assert len(executor.active_jobs) == 8
    assert len(several.calls()) == 3
    assert executor.workflow.scheduler.failed == []


def test_a_script_that_slurm_would_not_take_is_split(several, executor, monkeypatch):
    monkeypatch.setattr(job_array, "_MOST_SCRIPT_BYTES", 400)
    executor.run_jobs(several(8))
    assert len(executor.active_jobs) == 8
    assert len(several.calls()) > 1


def test_a_task_that_was_cancelled_fails_alone(several, executor, slurm):
    jobs = several(3)
    executor.run_jobs(jobs)
    slurm.jobs.update(
        {f"12_{task}": slurm_jobs.JobState("CANCELLED" if task == 2 else "RUNNING")
         for task in (1, 2, 3)}
    )  # fmt: skip
    executor._look()
    assert executor.workflow.scheduler.failed == [jobs[1]]
    assert len(executor.active_jobs) == 2


def test_a_task_names_itself_as_squeue_does(monkeypatch):
    for name, value in (("JOB", "14"), ("ARRAY_JOB", "12"), ("ARRAY_TASK", "3")):
        monkeypatch.setenv(f"SLURM_{name}_ID", value)
    assert Writer.here().job_id == "12_3"
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID")
    assert Writer.here().job_id == "14"


def test_calls_of_sbatch_are_spread():
    waited: list[float] = []
    stopping = threading.Event()
    stopping.wait = lambda seconds: waited.append(seconds) or False  # type: ignore[method-assign]
    pace, began_s = _Pace(calls=3, period_s=60.0), time.monotonic()
    for _ in range(5):
        pace.wait(stopping)
    assert len(waited) == 2
    assert all(60.0 - (time.monotonic() - began_s) <= seconds <= 60.0 for seconds in waited)
