"""The executor on made-up jobs: each that ends is told of once, and none is given up too early."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from ddlbench.cluster import executor as module
from ddlbench.cluster.executor import SlurmExecutor, install
from ddlbench.common.document import read_object
from ddlbench.common.owner import RUN, Writer
from ddlbench.experiment.paths import LOG_HEADING, QUEUED_FILE
from ddlbench.experiment.status import Failure, Reason
from ddlbench.slurm.jobs import NO_ANSWER, JobState, SlurmError

CELL = "mnist/vgg11/ddp/2x2/batch_size=8/rep0"
BEGAN_S = 1_000_000
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


class Resources(dict[str, Any]):
    __getattr__ = dict.get


class RuleJob:
    """What the executor asks of a job of one rule."""

    def __init__(self, rule: str, folder: Path, **resources: Any) -> None:
        self.rule = SimpleNamespace(name=rule)
        self.name, self.jobid, self.attempt = rule, 7, 1
        self.output = [str(folder / ("result.json" if rule == "cell" else "staged.json"))]
        self.log = [str(folder / f"{rule}.log")]
        self.wildcards = SimpleNamespace(cell=CELL)
        self.resources = Resources(mem_mb=1, runtime=1, **resources)
        self.errors: list[tuple[str | None, dict[str, Any]]] = []

    def is_group(self) -> bool:
        return False

    def register(self, external_jobid: str | None = None) -> None:
        pass

    def log_error(self, msg: str | None = None, **details: Any) -> None:
        self.errors.append((msg, details))


class Group:
    """A cell as a group of rules; it has no rule, as Snakemake's has none."""

    def __init__(self, folder: Path) -> None:
        self.jobs = [RuleJob("cell", folder)]
        self.name, self.jobid = "cell_with_data", 8
        self.resources = Resources(mem_mb=1, runtime=1)
        self.errors: list[tuple[str | None, dict[str, Any]]] = []

    def __iter__(self) -> Iterator[RuleJob]:
        return iter(self.jobs)

    is_group = lambda self: True  # noqa: E731
    register = RuleJob.register
    log_error = RuleJob.log_error


class Scheduler:
    """Notes what became of each job."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.failed: list[Any] = []

    def finish_callback(self, job: Any) -> None:
        self.done.append(job)

    def error_callback(self, job: Any) -> None:
        self.failed.append(job)

    def submit_callback(self, job: Any) -> None:
        pass


class Logger:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, text: str) -> None:
        self.lines.append(text)

    def __getattr__(self, _level: str) -> Any:
        return lambda *_, **__: None


@pytest.fixture
def cell_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(RUN, f"{BEGAN_S * 10**9}-run")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    folder = tmp_path / "results"
    folder.mkdir()
    return folder


@pytest.fixture
def slurm(monkeypatch):
    """States that SLURM gives to jobs, and the commands that were sent to it."""
    slurm = SimpleNamespace(jobs={}, commands=[])
    monkeypatch.setattr(module.slurm, "states", lambda ids: {job: slurm.jobs[job] for job in ids})
    monkeypatch.setattr(module, "ask", lambda command: slurm.commands.append(command) or "")
    return slurm


@pytest.fixture
def executor(tmp_path, cell_folder, slurm, monkeypatch):
    """An executor without the thread that looks at jobs: a test looks itself."""
    monkeypatch.setattr(plugin.Executor, "__init__", lambda *_: None)
    executor = SlurmExecutor(None, None)
    executor.workflow = SimpleNamespace(
        scheduler=Scheduler(),
        executor_settings=SimpleNamespace(
            init_seconds_before_status_checks=0, pass_command_as_script=False
        ),
        remote_execution_settings=SimpleNamespace(seconds_between_status_checks=0),
        execution_settings=SimpleNamespace(latency_wait=3600),
        workdir_init=str(tmp_path),
    )
    executor.logger = Logger()
    executor.active_jobs, executor.lock, executor.wait = [], threading.Lock(), True
    executor.slurm_logdir, executor.run_uuid = tmp_path / "logs", "run"
    executor._failed_nodes, executor._submitted_job_clusters = set(), set()
    executor._main_event_loop, executor._partitions = None, None
    return executor


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """An sbatch that runs a script; the plugin's long command line is left out."""
    monkeypatch.setattr(plugin, "get_job_wildcards", lambda _job: "")
    monkeypatch.setattr(plugin, "get_submit_command", lambda *_, **__: "sbatch")
    monkeypatch.setattr(plugin, "set_gres_string", lambda _job: "")
    monkeypatch.setattr(SlurmExecutor, "format_job_exec", lambda *_: "true")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(script: str) -> None:
        program = tmp_path / "sbatch"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return write


def submitted(executor, job: Any, job_id: str = "12") -> SubmittedJobInfo:
    """A job that SLURM has taken."""
    info = SubmittedJobInfo(job, job_id, {"slurm_logfile": executor.slurm_logdir / "12.log"})
    executor.report_job_submission(info)
    return info


def log_of(executor, text: str) -> None:
    executor.slurm_logdir.mkdir()
    (executor.slurm_logdir / "12.log").write_text(text)


def write_result(folder: Path, changed_s: float) -> None:
    (folder / "result.json").write_text("{}")
    os.utime(folder / "result.json", (changed_s, changed_s))


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


# -- following -------------------------------------------------------------------------------------


def test_a_submitted_cell_is_noted_until_its_job_ends(executor, slurm, cell_folder):
    submitted(executor, Group(cell_folder))
    note = read_object(cell_folder / QUEUED_FILE)
    assert Writer.of(note) == Writer(os.environ[RUN], "12", 1)
    slurm.jobs["12"] = JobState("RUNNING")
    executor._look()
    assert (cell_folder / QUEUED_FILE).exists()
    slurm.jobs["12"] = JobState("CANCELLED")
    executor._look()
    assert not (cell_folder / QUEUED_FILE).exists()


@pytest.mark.parametrize("state", ["COMPLETED", "COMPLETING"])
def test_a_job_with_its_result_is_done_once(state, executor, slurm, cell_folder):
    info = submitted(executor, Group(cell_folder))
    write_result(cell_folder, BEGAN_S + 1)
    slurm.jobs["12"] = JobState(state)
    executor._look()
    executor._look()
    executor._end(info, None)
    assert executor.workflow.scheduler.done == [info.job]
    assert executor.active_jobs == []


def test_a_completed_jobs_result_may_be_on_its_way(executor, slurm, cell_folder):
    info = submitted(executor, Group(cell_folder))
    slurm.jobs["12"] = JobState("COMPLETED")
    for _ in range(5):
        executor._look()
    assert executor.active_jobs == [info]
    executor.workflow.execution_settings.latency_wait = 0
    executor._look()
    assert executor.workflow.scheduler.failed == [info.job]
    assert "its result is not in this folder" in Failure.read(cell_folder).reason


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED", NO_ANSWER])
def test_a_job_that_may_live_is_left_alone(state, executor, slurm, cell_folder):
    info = submitted(executor, Group(cell_folder))
    slurm.jobs["12"] = JobState(state)
    for _ in range(5):
        executor._look()
    assert executor.active_jobs == [info]
    assert executor.workflow.scheduler.failed == executor.workflow.scheduler.done == []
    assert slurm.commands == []
    assert Failure.read(cell_folder) is None


def test_a_preempted_job_without_a_result_failed(executor, slurm, cell_folder):
    info = submitted(executor, Group(cell_folder))
    slurm.jobs["12"] = JobState("PREEMPTED", "", "n1")
    executor._look()
    assert executor.workflow.scheduler.failed == [info.job]
    failure = Failure.read(cell_folder)
    assert failure.reason.code == "job_preempted"
    assert failure.reason == "SLURM preempted job 12 for another one"
    assert failure.writer == Writer(os.environ[RUN], "12", 1)


@pytest.mark.parametrize("old", [True, False])
def test_a_job_that_was_ended_after_its_result_is_done(old, executor, slurm, cell_folder):
    """What was there before the job was submitted is not its result; no clock is read."""
    if old:
        write_result(cell_folder, BEGAN_S + 1)
    info = submitted(executor, Group(cell_folder))
    if not old:
        write_result(cell_folder, BEGAN_S - 90)
    slurm.jobs["12"] = JobState("PREEMPTED")
    executor._look()
    scheduler = executor.workflow.scheduler
    assert (scheduler.done, scheduler.failed) == (([], [info.job]) if old else ([info.job], []))


@pytest.mark.parametrize("broken", ["log_error", "note"])
def test_a_failure_reaches_the_scheduler_whatever_breaks(
    broken, executor, slurm, cell_folder, monkeypatch
):
    def breaks(*_arguments, **_details):
        raise ValueError("broken")

    info = submitted(executor, Group(cell_folder))
    if broken == "note":
        monkeypatch.setattr(module.JobFiles, "forget_queued", breaks)
    else:
        info.job.log_error = breaks
    slurm.jobs["12"] = JobState("CANCELLED")
    executor._look()
    assert executor.workflow.scheduler.failed == [info.job]


def test_a_job_that_slurm_forgot_is_lost_when_two_looks_agree(executor, slurm, cell_folder):
    info = submitted(executor, Group(cell_folder))
    slurm.jobs["12"] = JobState(None)
    executor._look()
    assert executor.active_jobs == [info]
    executor._look()
    assert executor.workflow.scheduler.failed == [info.job]
    failure = Failure.read(cell_folder)
    assert failure.reason.code == "job_lost"
    assert failure.reason.startswith("SLURM does not know job 12 any more")


def test_a_job_that_slurm_forgot_and_found_again_is_not_lost(executor, slurm, cell_folder):
    info = submitted(executor, Group(cell_folder))
    for state in (None, "RUNNING", None, "RUNNING"):
        slurm.jobs["12"] = JobState(state)
        executor._look()
    assert executor.active_jobs == [info]


def test_a_result_that_comes_late_counts(executor, slurm, cell_folder):
    info = submitted(executor, Group(cell_folder))
    slurm.jobs["12"] = JobState(None)
    executor._look()
    write_result(cell_folder, BEGAN_S + 1)
    executor._look()
    assert executor.workflow.scheduler.done == [info.job]


def test_a_job_that_can_never_start_is_cancelled_when_two_looks_agree(executor, slurm, cell_folder):
    info = submitted(executor, Group(cell_folder))
    slurm.jobs["12"] = JobState("PENDING", "PartitionTimeLimit")
    executor._look()
    assert (executor.active_jobs, slurm.commands) == ([info], [])
    executor._look()
    assert slurm.commands == [["scancel", "12"]]
    assert executor.workflow.scheduler.failed == [info.job]
    reason = Failure.read(cell_folder).reason
    assert reason.code == "never_starts"
    assert reason.startswith("SLURM would never start job 12: PartitionTimeLimit: ")


def test_an_scancel_that_fails_does_not_keep_the_job(executor, slurm, cell_folder, monkeypatch):
    def silent(_command):
        raise SlurmError("no answer")

    monkeypatch.setattr(module, "ask", silent)
    submitted(executor, Group(cell_folder))
    slurm.jobs["12"] = JobState("PENDING", "BadConstraints")
    executor._look()
    executor._look()
    assert executor.active_jobs == []


def test_a_job_that_can_start_again_is_kept(executor, slurm, cell_folder):
    info = submitted(executor, Group(cell_folder))
    for reason in ("PartitionTimeLimit", "Priority", "PartitionTimeLimit", "Resources"):
        slurm.jobs["12"] = JobState("PENDING", reason)
        executor._look()
    assert executor.active_jobs == [info]


def wait_for_a_while(executor) -> None:
    for record in executor._followed.values():
        record.began_s -= 2 * module._SOON_S


def test_why_a_job_waits_is_shown_when_it_waits_long_and_when_it_changes(
    executor, slurm, cell_folder
):
    submitted(executor, Group(cell_folder))
    slurm.jobs["12"] = JobState("PENDING", "Resources")
    executor._look()
    assert executor.logger.lines == []
    wait_for_a_while(executor)
    for _ in range(3):
        executor._look()
    (line,) = executor.logger.lines
    assert line.startswith("ddlbench: waiting: mnist vgg11 ddp 2x2")
    assert line.endswith("(job 12): Resources: the nodes are busy")
    slurm.jobs["12"] = JobState("PENDING", "Priority")
    executor._look()
    assert len(executor.logger.lines) == 2


def test_jobs_that_wait_for_one_reason_share_a_line(executor, slurm, cell_folder):
    for job_id in ("12", "13", "14"):
        submitted(executor, Group(cell_folder), job_id)
        slurm.jobs[job_id] = JobState("PENDING", "Priority")
    wait_for_a_while(executor)
    executor._look()
    (line,) = executor.logger.lines
    assert "(job 12) and 2 more: Priority" in line


def test_a_job_that_is_suspended_or_held_is_shown(executor, slurm, cell_folder):
    submitted(executor, Group(cell_folder))
    slurm.jobs["12"] = JobState("SUSPENDED")
    wait_for_a_while(executor)
    executor._look()
    (line,) = executor.logger.lines
    assert "SLURM says SUSPENDED" in line


def test_silence_of_slurm_is_shown_and_its_end(executor, slurm, cell_folder):
    submitted(executor, Group(cell_folder))
    slurm.jobs["12"] = JobState(NO_ANSWER)
    executor._look()
    assert executor.logger.lines == []
    executor._silent_since_s -= module._SOON_S
    executor._look()
    executor._look()
    slurm.jobs["12"] = JobState("RUNNING")
    executor._look()
    executor._look()
    first, last = executor.logger.lines
    assert "SLURM does not answer; submitted jobs go on" in first
    assert last == "ddlbench: SLURM answers again"


def test_an_error_in_one_look_does_not_end_the_watch(executor, monkeypatch):
    looks = []

    def look():
        looks.append(1)
        if len(looks) < 3:
            raise RuntimeError("a bug")
        executor.wait = False

    monkeypatch.setattr(executor, "_look", look)
    asyncio.run(executor._wait_for_jobs())
    assert len(looks) == 3
    assert executor.logger.lines == ["ddlbench: jobs could not be looked at: RuntimeError: a bug"]


def test_an_sbatch_that_hangs_is_shown_and_ended(executor, sbatch, tmp_path, monkeypatch):
    sbatch("read forever")
    hanging = subprocess.Popen([tmp_path / "sbatch"], stdin=subprocess.PIPE)
    executor._submitting[1] = time.monotonic() - 2 * module._SOON_S
    executor._look()
    assert hanging.poll() is None
    assert "sbatch has not answered for" in executor.logger.lines[0]
    monkeypatch.setattr(module, "_SUBMISSION_S", -1.0)
    executor._look()
    assert hanging.wait(timeout=60) == -15
    hanging.stdin.close()


# -- why a job ended -------------------------------------------------------------------------------


def why(executor, slurm, folder, job: JobState) -> Reason:
    """The reason of a group that ended in a state."""
    submitted(executor, Group(folder))
    slurm.jobs["12"] = job
    executor._look()
    executor._look()
    return Failure.read(folder).reason


def test_what_the_cell_wrote_itself_goes_before_slurms_word(executor, slurm, cell_folder):
    reason = Reason("exception", "rank 1: a bug")
    Failure(CELL, "program", reason, Writer("x", "12")).write(cell_folder)
    assert why(executor, slurm, cell_folder, JobState("FAILED")) == reason
    assert Failure.read(cell_folder).cause == "program"  # it is left as it is


def test_what_another_job_wrote_is_not_believed(executor, slurm, cell_folder):
    Failure(CELL, "program", Reason("exception", "a bug"), Writer("x", "11")).write(cell_folder)
    assert "a bug" not in why(executor, slurm, cell_folder, JobState("FAILED"))
    assert Failure.read(cell_folder).writer.job_id == "12"


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        (JobState("NODE_FAIL", "", "n[1-2]"), "a node of job 12 failed (n[1-2]): no torch"),
        (JobState("FAILED"), "job 12 failed: no torch"),
        (JobState("CANCELLED"), "job 12 was cancelled"),
        (JobState("OUT_OF_MEMORY"), "SLURM ended job 12: out of memory"),
        (JobState("TIMEOUT"), "SLURM ended job 12 at its time limit"),
        (JobState("DEADLINE"), "job 12 ran into its deadline"),
        (JobState("REVOKED"), "job 12 ended as REVOKED"),
    ],
)
def test_slurms_word_and_the_logs_line_are_put_together(
    job, sentence, executor, slurm, cell_folder
):
    log_of(executor, "no torch\nsrun: error: n1: task 0: Exited with exit code 1\n")
    assert why(executor, slurm, cell_folder, job) == sentence
    assert Failure.read(cell_folder).log_tail[0] == "no torch"


def test_a_job_that_wrote_nothing_may_not_see_the_folder(executor, slurm, cell_folder):
    reason = why(executor, slurm, cell_folder, JobState("FAILED"))
    assert f"not even {executor.slurm_logdir}/12.log" in reason
    assert "its node may not see this folder" in reason


def test_a_time_limit_while_the_data_were_made_names_the_key(executor, slurm, cell_folder):
    (cell_folder / "stage.log").write_text(f"{LOG_HEADING}SLURM job 12, attempt 1, n1\n")
    reason = why(executor, slurm, cell_folder, JobState("TIMEOUT"))
    assert reason.endswith("while the data were made; raise stage_timeout_s")


def test_the_log_that_is_shown_is_of_this_job(executor, slurm, cell_folder):
    (cell_folder / "stage.log").write_text(f"{LOG_HEADING}SLURM job 12, attempt 1, n1\n")
    (cell_folder / "cell.log").write_text(f"{LOG_HEADING}SLURM job 11, attempt 1, n1\n")
    group = Group(cell_folder)
    submitted(executor, group)
    slurm.jobs["12"] = JobState("CANCELLED")
    executor._look()
    ((_, details),) = group.errors
    assert details["reason_log"] == str(cell_folder / "stage.log")
    assert details["external_jobid"] == "12"


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


def test_snakemake_takes_this_executor(monkeypatch):
    registered = ExecutorPluginRegistry().get_plugin("slurm")
    monkeypatch.setattr(registered, "executor", plugin.Executor)
    monkeypatch.setattr(plugin, "get_max_array_size", lambda: 1)
    monkeypatch.setattr(plugin, "validate_status_command_settings", None)
    install()
    install()  # twice does no harm
    assert registered.executor is SlurmExecutor
    assert plugin.get_max_array_size() == 1000  # a site without arrays is fine
