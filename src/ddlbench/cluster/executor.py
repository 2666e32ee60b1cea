"""Snakemake's SLURM executor, as a run needs it: no job waits for ever, and each failure is told.

The plugin submits jobs; this class submits through it and follows the jobs itself. Jobs of one
shape that are ready at once are one array (``job_array.py``), whose tasks are followed as jobs::

    sbatch refuses -- a limit on jobs in the queue --> wait, and submit again, half of an array
         |          '- anything else --------------> the job fails with sbatch's words,
         |                                           for good if the request is wrong
         v
    follow: one squeue for all jobs
         |-- COMPLETED -------------------------> done
         |-- waits, runs, or SLURM is silent ---> looked at again; why it waits is shown
         |-- waits and can never start ---------> cancelled, the job fails for good, SLURM's reason
         '-- ended, or unknown to SLURM: result on disk --> done
                                         |- cancelled ----> the job fails for good
                                         '- none ---------> the job fails with the reason

A cell that fails before its code could write anything gets its ``failure.json`` here.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import snakemake_executor_plugin_slurm as plugin
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from ddlbench.cluster import job_array
from ddlbench.cluster.job_files import JobFiles
from ddlbench.experiment.status import Reason
from ddlbench.slurm import jobs as slurm
from ddlbench.slurm import partitions
from ddlbench.slurm.jobs import SlurmError, ask, refusal

_SOON_S = 35.0  # a job that waits longer says why
_REMIND_S = 3600.0
_LIMIT_PAUSE_S = 20.0
_SUBMISSION_S = 300.0  # an sbatch that takes longer is ended
_LOOKS = 2  # that must agree before a job is given up
_BUSY_LIMIT_S = 600.0
_NO_REASON = "sbatch failed and gave no reason"


@dataclass
class _Followed:
    """A submitted job.

    Args:
        began_s: when it was submitted; monotonic.
        over_since_s: when it was first seen to be over without a result.
        lost_looks: how often in turn it was so.
        hopeless_looks: how often in turn it waited for what never comes.
        shown: the reason that was shown last, and when.
        before: its results as they were when it was submitted; see ``JobFiles.changed``.
    """

    began_s: float = field(default_factory=time.monotonic)
    over_since_s: float | None = None
    lost_looks: int = 0
    hopeless_looks: int = 0
    shown: tuple[str, float] = ("", 0.0)
    before: Mapping[str, int | None] = field(default_factory=dict)


class SlurmExecutor(plugin.Executor):
    """Submits and follows the jobs of a run."""

    def __init__(self, workflow: Any, logger: Any) -> None:
        # The thread that follows jobs starts within the call below.
        self._stopping = threading.Event()
        self._followed: dict[str, _Followed] = {}
        self._submitting: dict[int, float] = {}
        self._refused = threading.local()
        self._silent_since_s: float | None = None
        self._shown: dict[str, float] = {}
        self._pace = _Pace()
        super().__init__(workflow, logger)

    # -- submission ------------------------------------------------------------------------------

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Submit all jobs that are ready, those of one shape together."""
        if getattr(self, "_main_event_loop", None) is None:
            with suppress(RuntimeError):
                self._main_event_loop = asyncio.get_running_loop()
        for alike in job_array.arrays_of(jobs, _array_tasks):
            for job in alike:
                self.run_job_pre(job)
            self._job_submission_executor.submit(self._run_alike, alike)

    def _run_alike(self, jobs: list[JobExecutorInterface]) -> None:
        """Submit jobs of one shape; called in a thread of the plugin, whose errors nobody reads."""
        self._pace.wait(self._stopping)
        try:
            reason = self._submit_in_time(jobs)
        except Exception as error:
            reason = Reason("not_submitted", f"it was not submitted: {_in_words(error)}")
        if reason is not None:
            for job in jobs:
                self._fail(SubmittedJobInfo(job), reason)

    def run_job(self, job: JobExecutorInterface) -> None:
        self._run_alike([job])

    def _submit_in_time(self, jobs: list[JobExecutorInterface]) -> Reason | None:
        """Submit, and wait as long as a limit holds; returns why it failed, or None.

        An array of which sbatch does not take as many jobs is submitted by halves.
        """
        begin_s = time.monotonic()
        while not self._stopping.is_set():
            words = self._submit(jobs)
            if words is None:
                return None
            if len(jobs) > 1 and (words == job_array.TOO_LONG or partitions.limits_jobs(words)):
                half = len(jobs) // 2
                self._run_alike(jobs[:half])
                self._run_alike(jobs[half:])
                return None
            waited_s = time.monotonic() - begin_s
            busy = partitions.is_busy(words)  # SLURM does not answer; else other jobs may end
            if not (waited_s < _BUSY_LIMIT_S if busy else partitions.may_pass(words)):
                return _not_taken(words)
            self._show(f"sbatch does not take jobs now ({words}); they are submitted later")
            self._stopping.wait(_LIMIT_PAUSE_S)
        return None

    def _submit(self, jobs: list[JobExecutorInterface]) -> str | None:
        """Submit once; returns why it failed, or None."""
        self._refused.words = None
        me = threading.get_ident()
        self._submitting[me] = time.monotonic()
        try:
            if len(jobs) == 1:
                super().run_job(jobs[0])
            else:
                self._submit_array(jobs)
        except job_array.ArrayRefused as refused:
            return refusal(str(refused)) or _NO_REASON
        except Exception as error:  # the plugin's own handler breaks for a group of jobs
            return _in_words(error.__context__ or error)
        finally:
            self._submitting.pop(me, None)
        return self._refused.words

    def _submit_array(self, jobs: list[JobExecutorInterface]) -> None:
        tasks = job_array.submit(self, jobs)
        infos = [
            SubmittedJobInfo(job, external_jobid=task, aux={"slurm_logfile": log})
            for job, (task, log) in zip(jobs, tasks, strict=True)
        ]
        for info in infos:
            super()._report_job_submission_threadsafe(info)
        self._show_submitted(infos)

    def _report_job_submission_threadsafe(self, job_info: SubmittedJobInfo) -> None:
        """What the plugin calls when it has submitted a job."""
        super()._report_job_submission_threadsafe(job_info)
        self._show_submitted([job_info])

    def _show_submitted(self, infos: list[SubmittedJobInfo]) -> None:
        """A line for each job or array; the plugin's line names neither the cell nor an array."""
        self.logger.info(f"submitted: {_first_and_more(infos)}")

    def _report_job_error_threadsafe(self, job_info: SubmittedJobInfo, msg: str) -> None:
        """What the plugin calls when it could not submit: keep the words for :meth:`_submit`."""
        quoted = re.search(r"The error message was '(.*?)'\.\n", msg, re.DOTALL)
        words = refusal(quoted[1]) if quoted else " ".join(msg.split())
        self._refused.words = words or _NO_REASON

    def report_job_submission(self, job_info: SubmittedJobInfo, register_job: bool = True) -> None:
        """Follow a job from now on; its cells' folders name it, for ``ddlbench status``."""
        files = JobFiles(job_info)
        self._followed[str(job_info.external_jobid)] = _Followed(before=files.changed())
        files.note_queued()
        super().report_job_submission(job_info, register_job=register_job)

    def format_job_exec(self, job: JobExecutorInterface) -> str:
        """The command of a job; one that starts its steps itself needs no Snakemake around it.

        The plugin has each job start a Snakemake, which starts another one with srun; for such a
        job it does so without srun, which only takes the time of one more start.
        """
        command = str(super().format_job_exec(job))
        if not job.is_group() and "mpi" in job.resources.keys():  # noqa: SIM118
            command = command.replace(self.additional_general_args(), "", 1)
        return command

    # The site file gives account and partition, or SLURM's own defaults hold: nothing is guessed.

    def get_account_arg(self, job: JobExecutorInterface) -> Iterator[str]:
        account = job.resources.get("slurm_account")
        yield f" -A {shlex.quote(str(account))}" if account else ""

    def get_partition_arg(self, job: JobExecutorInterface) -> str:
        if self._partitions:  # the user's own --slurm-partition-config
            return str(super().get_partition_arg(job))
        partition = job.resources.get("slurm_partition")
        return f" -p {shlex.quote(str(partition))}" if partition else ""

    # -- following -------------------------------------------------------------------------------

    async def _wait_for_jobs(self) -> None:
        """Look at all jobs again and again, until the run ends."""
        settings = self.workflow.executor_settings
        await self._pause(getattr(settings, "init_seconds_before_status_checks", None) or 0)
        while self.wait:
            try:
                self._look()
            except Exception as error:  # what breaks here must not end the watch
                self._show(f"jobs could not be looked at: {type(error).__name__}: {error}")
            await self._pause(self.workflow.remote_execution_settings.seconds_between_status_checks)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not beyond the end of the run."""
        limit = time.monotonic() + seconds
        while self.wait and (left_s := limit - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, 0.5))

    def _look(self) -> None:
        self._end_silent_submissions()
        if self._stopping.is_set():
            return  # all jobs are being cancelled
        with self.lock:
            active = list(self.active_jobs)
        began_s = time.monotonic()
        states = slurm.states(str(info.external_jobid) for info in active)
        waiting: dict[str, list[SubmittedJobInfo]] = {}
        silent = False
        for info in active:
            job = states[str(info.external_jobid)]
            silent |= job.state == slurm.NO_ANSWER
            try:
                self._look_at(info, job, waiting)
            except Exception as error:  # the other jobs are looked at all the same
                self._show(f"job {info.external_jobid} could not be followed: {_in_words(error)}")
        self._show_waiting(waiting)
        self._show_silence(silent, began_s)

    def _look_at(
        self,
        info: SubmittedJobInfo,
        job: slurm.JobState,
        waiting: dict[str, list[SubmittedJobInfo]],
    ) -> None:
        """Decide on one job; those that wait are added to ``waiting`` by their reason."""
        if job.state == "PENDING":
            self._look_at_waiting(info, job, waiting)
        elif not job.may_live or (job.state == "COMPLETING" and self._has_results(info)):
            self._look_at_ended(info, job)
        else:
            self._record(info).over_since_s = None
            if job.state not in ("RUNNING", slurm.NO_ANSWER):
                sentence = f"SLURM says {job.state} {job.reason}".strip()
                waiting.setdefault(sentence, []).append(info)

    def _look_at_waiting(
        self,
        info: SubmittedJobInfo,
        job: slurm.JobState,
        waiting: dict[str, list[SubmittedJobInfo]],
    ) -> None:
        """Show why a job waits; end one that never starts."""
        record = self._record(info)
        sentence, starts = job.why_pending()
        if starts:
            record.hopeless_looks = 0
            waiting.setdefault(sentence, []).append(info)
            return
        record.hopeless_looks += 1
        never = f"SLURM would never start job {info.external_jobid}: {sentence}"
        if record.hopeless_looks < _LOOKS:
            self._show(never)
            return
        with suppress(SlurmError):
            ask(["scancel", str(info.external_jobid)])
        self._end(info, Reason("never_starts", never))

    def _look_at_ended(self, info: SubmittedJobInfo, job: slurm.JobState) -> None:
        """Report a job that is over; its result may be on its way through the file system."""
        files = JobFiles(info)
        if self._has_results(info) or (job.state == "COMPLETED" and not files.results()):
            self._end(info, None)
            return
        record = self._record(info)
        record.lost_looks = 1 if record.over_since_s is None else record.lost_looks + 1
        record.over_since_s = record.over_since_s or time.monotonic()
        waited_s = time.monotonic() - record.over_since_s
        latency_s = self.workflow.execution_settings.latency_wait
        if job.state == "COMPLETED" and waited_s < latency_s:
            return
        if job.state is None and record.lost_looks < _LOOKS:
            return
        self._end(info, files.why_ended(job))

    def _end(self, info: SubmittedJobInfo, reason: Reason | None) -> None:
        """Hand a job that is over to the scheduler: done, or failed for a reason."""
        with self.lock:
            if info not in self.active_jobs:
                return
            self.active_jobs.remove(info)
        self._followed.pop(str(info.external_jobid), None)
        with suppress(Exception):  # a note must not keep the scheduler from the news
            JobFiles(info).forget_queued()
        if reason is None:
            self.report_job_success(info)
        else:
            self._fail(info, reason)

    def _has_results(self, info: SubmittedJobInfo) -> bool:
        """Whether all that a job should make is there, made since it was submitted."""
        return JobFiles(info).results_there(self._record(info).before)

    def _record(self, info: SubmittedJobInfo) -> _Followed:
        return self._followed.setdefault(str(info.external_jobid), _Followed())

    def _end_silent_submissions(self) -> None:
        """Tell of an sbatch that does not answer, and end it at last: its job is lost otherwise."""
        now_s = time.monotonic()
        longest_s = max((now_s - begin_s for begin_s in [*self._submitting.values()]), default=0.0)
        if longest_s > _SOON_S:
            self._show("sbatch has not answered for over a minute")
        if longest_s < _SUBMISSION_S:
            return
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                is_sbatch = any(Path(word).name == "sbatch" for word in child.cmdline()[:2])
                if is_sbatch and time.time() - child.create_time() > _SUBMISSION_S:
                    child.terminate()

    # -- what is shown ----------------------------------------------------------------------------

    def _fail(self, info: SubmittedJobInfo, reason: Reason) -> None:
        """Report a failed job; its cells get a failure.json if they could not write one."""
        try:
            files = JobFiles(info)
            files.write_failure(reason)
            log = None if files.log is None else str(files.log)
            self.print_job_error(info, msg=str(reason), reason=str(reason), reason_log=log)
        except Exception as error:  # the scheduler must hear of it, whatever else breaks
            self.logger.warning(f"ddlbench: a job failed: {reason} ({_in_words(error)})")
        finally:
            if _is_for_good(reason):  # Snakemake repeats what has attempts left
                with suppress(Exception):
                    info.job.attempt = max(info.job.attempt, info.job.restart_times + 1)
            self.workflow.scheduler.error_callback(info.job)

    def print_job_error(
        self, job_info: SubmittedJobInfo, msg: str | None = None, **details: Any
    ) -> None:
        """Pass the reason on to the screen and to Snakemake's log, also of a group of jobs."""
        if job_info.job.is_group():  # its own event holds no message
            self.logger.info(f"Failed because {msg}")
        job_info.job.log_error(msg, external_jobid=job_info.external_jobid, **details)

    def _show(self, sentence: str, every_s: float = _REMIND_S) -> None:
        """A line on the screen; the same one once in a while only."""
        now_s = time.monotonic()
        if now_s - self._shown.get(sentence, -every_s) >= every_s:
            self._shown[sentence] = now_s
            self.logger.warning(f"ddlbench: {sentence}")

    def _show_waiting(self, waiting: Mapping[str, list[SubmittedJobInfo]]) -> None:
        """Why jobs wait that have waited for a minute; one line a reason, when it changes."""
        now_s = time.monotonic()
        for sentence, infos in waiting.items():
            late = [info for info in infos if now_s - self._record(info).began_s > _SOON_S]
            shown = [self._record(info).shown for info in late]
            if all(words == sentence and now_s - at_s <= _REMIND_S for words, at_s in shown):
                continue
            for info in late:
                self._record(info).shown = (sentence, now_s)
            self.logger.warning(f"ddlbench: waiting: {_first_and_more(late)}: {sentence}")

    def _show_silence(self, silent: bool, began_s: float) -> None:
        if not silent:
            if self._silent_since_s is not None and self._shown.pop(_SILENT, 0.0):
                self.logger.warning("ddlbench: SLURM answers again")
            self._silent_since_s = None
            return
        self._silent_since_s = self._silent_since_s or began_s
        if time.monotonic() - self._silent_since_s > _SOON_S / 2:
            self._show(_SILENT)

    # -- the end ---------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Cancel all jobs after Ctrl-C; a second one does not break it off."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._wait_for_cancel)
        try:
            super().cancel()
            # sbatch may have taken a job meanwhile.
            late = list(self.active_jobs)
            if late:
                self.cancel_jobs(late)
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, before)

    def _wait_for_cancel(self, *_: object) -> None:
        self._show("jobs are being cancelled; this takes some seconds")

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        self._stopping.set()
        cancelled = True
        try:
            super().cancel_jobs(active_jobs)
        except Exception as error:
            cancelled = False
            ids = " ".join(str(info.external_jobid) for info in active_jobs)
            self._show(f"jobs could not be cancelled ({error}); by hand: scancel {ids}")
        for info in active_jobs:
            if cancelled:  # else `ddlbench status` still names the job, which goes on
                JobFiles(info).forget_queued()
            with self.lock, suppress(ValueError):  # it ended meanwhile
                self.active_jobs.remove(info)

    def shutdown(self) -> None:
        self._stopping.set()
        super().shutdown()


_SILENT = (
    "SLURM does not answer; submitted jobs go on, and this run waits until it does "
    "(squeue shows the same)"
)


_array_tasks = 1  # most in one sbatch


def install(array_tasks: int = 1) -> None:
    """Have Snakemake use this executor in place of the plugin's.

    One sbatch submits at most ``array_tasks`` jobs of one shape.
    """
    global _array_tasks  # noqa: PLW0603 - Snakemake makes the executor
    registered = ExecutorPluginRegistry().get_plugin("slurm")
    if registered.executor is SlurmExecutor:
        return
    registered.executor = SlurmExecutor
    # A site without job arrays is refused by the plugin, though no array is submitted.
    largest: Callable[[], int] = plugin.get_max_array_size
    plugin.get_max_array_size = lambda: max(largest(), 1000)
    # Tasks are counted from 1, and MaxArraySize is one more than the largest number.
    _array_tasks = max(1, min(array_tasks, largest() - 1)) if array_tasks > 1 else 1
    # A cell's path may be longer than a folder's name can be, and there are thousands of them.
    wildcards: Callable[[Any], str] = plugin.get_job_wildcards
    plugin.get_job_wildcards = lambda job: "" if job.name == "cell" else wildcards(job)
    # It advises on how the plugin would follow jobs.
    plugin.validate_status_command_settings = lambda *_: None


class _Pace:
    """At most some calls of sbatch a minute, so that the controller is not flooded."""

    def __init__(self, calls: int = 10, period_s: float = 60.0) -> None:
        self._period_s = period_s
        self._recent = deque[float](maxlen=calls)
        self._lock = threading.Lock()

    def wait(self, stopping: threading.Event) -> None:
        """Wait until one more call is allowed, or the run ends."""
        with self._lock:
            if len(self._recent) == self._recent.maxlen:
                stopping.wait(max(0.0, self._recent[0] + self._period_s - time.monotonic()))
            self._recent.append(time.monotonic())


def _is_for_good(reason: Reason) -> bool:
    """Whether this run submits the job no more.

    Somebody cancelled it, or only a change of the site's file helps.
    """
    refused = reason.code == "not_submitted" and partitions.is_wrong(reason)
    return reason.code in ("job_cancelled", "never_starts") or refused


def _not_taken(words: str) -> Reason:
    key = None if partitions.limits_jobs(words) else partitions.key_of(words)
    change = f"; change {key} in the site's file" if key else ""
    return Reason("not_submitted", f"SLURM did not take the job: {words}{change}")


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _first_and_more(infos: list[SubmittedJobInfo]) -> str:
    """``mnist vgg11 ddp 2x2 (job 12) and 3 more``."""
    more = f" and {len(infos) - 1} more" if len(infos) > 1 else ""
    return f"{JobFiles(infos[0]).name}{more}"
