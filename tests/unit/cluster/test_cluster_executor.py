"""The executor follows made-up jobs: each end is reported once, and none is given up early."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time

import pytest
from made_up_jobs import BEGAN_S, CELL, Group, log_of, submitted, write_result

from ddlbench.cluster import executor as module
from ddlbench.common.document import read_object
from ddlbench.common.owner import RUN, Writer
from ddlbench.experiment.paths import LOG_HEADING, QUEUED_FILE
from ddlbench.experiment.status import Failure, Reason
from ddlbench.slurm.jobs import NO_ANSWER, JobState, SlurmError

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
    assert info.job.attempt == 1  # it may be repeated
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


def test_a_cancelled_job_is_not_submitted_again_by_this_run(executor, slurm, cell_folder):
    info = submitted(executor, Group(cell_folder))
    slurm.jobs["12"] = JobState("CANCELLED")
    executor._look()
    assert Failure.read(cell_folder).reason.code == "job_cancelled"
    assert info.job.attempt > info.job.restart_times


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
    assert info.job.attempt > info.job.restart_times  # Snakemake does not repeat it
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
