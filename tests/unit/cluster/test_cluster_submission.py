"""The executor submits: what sbatch refuses, what it takes, and what Ctrl-C leaves."""

from __future__ import annotations

import os

import pytest
import snakemake_executor_plugin_slurm as plugin
from made_up_jobs import CELL, POLICY, Group, RuleJob, submitted
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from ddlbench.cluster import executor as module
from ddlbench.cluster.executor import SlurmExecutor, install
from ddlbench.common.owner import RUN, Writer
from ddlbench.experiment.paths import QUEUED_FILE
from ddlbench.experiment.status import Failure

# -- submission ------------------------------------------------------------------------------------


def test_a_group_that_sbatch_refuses_is_one_failure_in_sbatchs_words(executor, sbatch, cell_folder):
    sbatch("echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    group = Group(cell_folder)
    executor.run_job(group)
    assert executor.workflow.scheduler.failed == [group]
    ((sentence, details),) = group.errors
    assert sentence == (
        "SLURM did not take the job: invalid partition specified: x; "
        "change slurm.partition in the site's file"
    )
    assert (details["reason"], details["reason_log"]) == (sentence, None)
    failure = Failure.read(cell_folder)
    assert (failure.cell_id, failure.cause) == (CELL, "infrastructure")
    assert (failure.reason, failure.reason.code) == (sentence, "not_submitted")
    assert failure.writer == Writer(os.environ[RUN], None, 1)


@pytest.mark.parametrize(
    ("words", "repeated"),
    [
        ("Batch job submission failed: Invalid node name specified", False),
        ("Batch job submission failed: Requested node configuration is not available", False),
        ("Batch job submission failed: Memory specification can not be satisfied", False),
        (f"AssocMaxSubmitJobLimit: {POLICY}", True),
        ("Batch job submission failed: Unable to contact slurm controller", True),
        ("Required node not available (down, drained or reserved)", True),
        ("the site's filter is tired", True),
    ],
)
def test_a_request_that_can_never_pass_is_not_sent_again(
    words, repeated, executor, sbatch, request
):
    cell_folder = request.getfixturevalue("cell_folder")
    monkeypatch = request.getfixturevalue("monkeypatch")
    sbatch(f'echo "sbatch: error: {words}" >&2; exit 1')
    monkeypatch.setattr(module.partitions, "has_jobs", lambda: False)
    monkeypatch.setattr(module, "_BUSY_LIMIT_S", 0.0)
    group = Group(cell_folder)
    executor.run_job(group)
    assert executor.workflow.scheduler.failed == [group]
    # Snakemake's own condition.
    assert (group.restart_times > group.attempt - 1) == repeated


def test_a_group_on_which_the_plugin_itself_breaks_is_a_failure_too(
    executor, sbatch, cell_folder, monkeypatch
):
    def broken(*_arguments, **_options):
        raise ValueError("no such\nsetting")

    monkeypatch.setattr(plugin, "get_submit_command", broken)
    group = Group(cell_folder)
    executor.run_job(group)
    assert executor.workflow.scheduler.failed == [group]
    assert "ValueError: no such setting" in Failure.read(cell_folder).reason


def test_a_job_that_sbatch_takes_is_followed(executor, sbatch, cell_folder):
    sbatch("echo 12")
    job = RuleJob("cell", cell_folder)
    executor.run_job(job)
    (info,) = executor.active_jobs
    assert (info.job, info.external_jobid) == (job, "12")
    assert (cell_folder / QUEUED_FILE).is_file()
    assert executor.workflow.scheduler.failed == []


def test_a_limit_on_jobs_is_waited_for(executor, sbatch, cell_folder, tmp_path, monkeypatch):
    sbatch(
        f"if [ -e {tmp_path}/ended ]; then echo 12; exit; fi\n"
        f'echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2\n'
        f'echo "sbatch: error: Batch job submission failed: {POLICY}" >&2; exit 1'
    )
    monkeypatch.setattr(module.partitions, "has_jobs", lambda: True)
    # In the pause another job ends.
    monkeypatch.setattr(executor._stopping, "wait", lambda _s: (tmp_path / "ended").touch())
    executor.run_job(Group(cell_folder))
    assert [info.external_jobid for info in executor.active_jobs] == ["12"]
    assert executor.workflow.scheduler.failed == []
    (line,) = executor.logger.lines
    assert "QOSMaxSubmitJobPerUserLimit" in line and "submitted later" in line


def test_a_limit_that_no_jobs_end_lifts_is_a_failure(executor, sbatch, cell_folder, monkeypatch):
    sbatch(f'echo "sbatch: error: AssocMaxSubmitJobLimit: {POLICY}" >&2; exit 1')
    monkeypatch.setattr(module.partitions, "has_jobs", lambda: False)
    group = Group(cell_folder)
    executor.run_job(group)
    assert executor.workflow.scheduler.failed == [group]


def test_a_controller_that_stays_busy_is_a_failure(executor, sbatch, cell_folder, monkeypatch):
    sbatch("echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1")
    pauses = []
    monkeypatch.setattr(executor._stopping, "wait", pauses.append)
    monkeypatch.setattr(module, "_BUSY_LIMIT_S", 0.2)
    group = Group(cell_folder)
    executor.run_job(group)
    assert pauses
    assert executor.workflow.scheduler.failed == [group]


def test_after_ctrl_c_nothing_is_submitted(executor, sbatch, cell_folder, tmp_path):
    sbatch(f"touch {tmp_path}/called; echo 12")
    executor._stopping.set()
    executor.run_job(RuleJob("cell", cell_folder))
    assert not (tmp_path / "called").exists()
    assert executor.workflow.scheduler.failed == []


@pytest.mark.parametrize(
    ("resources", "account", "partition"),
    [
        ({}, "", ""),
        ({"slurm_account": "lab", "slurm_partition": "gpu"}, " -A lab", " -p gpu"),
        ({"slurm_account": 42, "slurm_partition": "a b"}, " -A 42", " -p 'a b'"),
    ],
)
def test_account_and_partition_are_the_sites_or_slurms_default(
    resources, account, partition, executor, cell_folder
):
    job = RuleJob("cell", cell_folder, **resources)
    assert next(executor.get_account_arg(job)) == account
    assert executor.get_partition_arg(job) == partition


# -- the end ---------------------------------------------------------------------------------------


def test_ctrl_c_cancels_the_jobs_and_stops_submission(executor, cell_folder, monkeypatch):
    cancelled = []
    monkeypatch.setattr(plugin, "cancel_slurm_jobs", lambda jobs, *_: cancelled.extend(jobs))
    info = submitted(executor, Group(cell_folder))
    executor.cancel_jobs([info])
    assert cancelled == [info]
    assert executor._stopping.is_set()
    assert not (cell_folder / QUEUED_FILE).exists()


def test_a_job_that_ends_while_it_is_cancelled_breaks_nothing(executor, cell_folder, monkeypatch):
    info = submitted(executor, Group(cell_folder))
    monkeypatch.setattr(plugin, "cancel_slurm_jobs", lambda *_: executor._end(info, None))
    executor.cancel_jobs([info])
    assert executor.active_jobs == []


def test_a_job_that_sbatch_took_during_ctrl_c_is_cancelled_too(executor, cell_folder, monkeypatch):
    cancelled = []
    monkeypatch.setattr(plugin, "cancel_slurm_jobs", lambda jobs, *_: cancelled.extend(jobs))

    def last_submission(*_arguments):
        submitted(executor, Group(cell_folder), "13")

    monkeypatch.setattr(plugin.Executor, "shutdown", last_submission)
    submitted(executor, Group(cell_folder), "12")
    executor.cancel()
    assert [info.external_jobid for info in cancelled] == ["12", "13"]
    assert executor.active_jobs == []


def test_jobs_that_could_not_be_cancelled_are_listed(executor, cell_folder, monkeypatch):
    def refused(*_arguments):
        raise RuntimeError("no answer")

    monkeypatch.setattr(plugin, "cancel_slurm_jobs", refused)
    executor.cancel_jobs([submitted(executor, Group(cell_folder))])
    assert (
        "jobs could not be cancelled (no answer); by hand: scancel 12" in (executor.logger.lines[0])
    )
    assert (cell_folder / QUEUED_FILE).exists()  # it goes on


def test_snakemake_takes_this_executor(monkeypatch):
    registered = ExecutorPluginRegistry().get_plugin("slurm")
    monkeypatch.setattr(registered, "executor", plugin.Executor)
    monkeypatch.setattr(plugin, "get_max_array_size", lambda: 1)
    monkeypatch.setattr(plugin, "validate_status_command_settings", None)
    install()
    install()  # twice does no harm
    assert registered.executor is SlurmExecutor
    assert plugin.get_max_array_size() == 1000  # a site without arrays is fine


@pytest.mark.parametrize(
    ("resources", "snakemakes"),
    [pytest.param({"mpi": "srun"}, 1, id="starts its steps"), pytest.param({}, 2, id="one task")],
)
def test_a_job_that_starts_its_steps_itself_runs_one_snakemake(
    resources, snakemakes, executor, cell_folder, monkeypatch
):
    def command(self, job):
        return f"python -m snakemake {job.name} {self.additional_general_args()} --mode remote"

    monkeypatch.setattr(plugin.Executor, "format_job_exec", command)
    text = executor.format_job_exec(RuleJob("cell", cell_folder, **resources))
    assert text.startswith("python -m snakemake cell ")
    assert text.endswith(" --mode remote")
    assert 1 + text.count("--executor slurm-jobstep") == snakemakes
