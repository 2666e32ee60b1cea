"""What a submitted job leaves on the shared disk: results, logs, notes; and why it ended without.

::

    queued.json      while the job waits or runs: its number, for `ddlbench status`
    stage.log        of making the cell's data
    *.log            of each rule; the first line of a log names the job
    failure.json     why a cell has no result, by the cell itself or written here
    result.json      made since the job was submitted: its work is done, whatever SLURM says of it
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from snakemake.io import is_flagged
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from ddlbench.common.document import UnreadableJson, write_json
from ddlbench.common.owner import Writer
from ddlbench.experiment.cell import Cell, short_names
from ddlbench.experiment.paths import QUEUED_FILE, STAGE_LOG
from ddlbench.experiment.status import Failure, Reason
from ddlbench.slurm.jobs import ENDED_FOR_MEMORY, ENDED_FOR_TIME, JobState, telling_line

_TAIL_LINES = 20

# What became of a job in a final state; where its log may tell more, it is added.
_ENDINGS = {
    "PREEMPTED": "SLURM preempted job {job} for another one",
    "NODE_FAIL": "a node of job {job} failed ({nodes})",
    "BOOT_FAIL": "a node of job {job} did not boot ({nodes})",
    "CANCELLED": "job {job} was cancelled",
    "COMPLETED": "job {job} ended well, but its result is not in this folder; its node may see "
    "another one of that name (ddlbench site doctor checks it)",
    "DEADLINE": "job {job} ran into its deadline",
    "FAILED": "job {job} failed",
    ENDED_FOR_TIME: "SLURM ended job {job} at its time limit",
    ENDED_FOR_MEMORY: "SLURM ended job {job}: out of memory",
    None: "SLURM does not know job {job} any more",
}
_LOG_TELLS = ("FAILED", "NODE_FAIL", None)


class JobFiles:
    """Files of a submitted job, which is one rule's or a group of rules."""

    def __init__(self, info: SubmittedJobInfo) -> None:
        job = info.job
        self._members: list[Any] = list(job) if job.is_group() else [job]
        self._name = str(job.name)
        self.job_id = None if info.external_jobid is None else str(info.external_jobid)
        self._slurm_log = Path((info.aux or {}).get("slurm_logfile") or "")
        self._cells = {
            Path(member.output[0]).parent: member
            for member in self._members
            if member.rule.name == "cell"
        }

    @property
    def name(self) -> str:
        """``mnist vgg11 ddp 2x2 (job 12)``."""
        name = self._name
        for member in self._cells.values():
            name = short_names([Cell.from_id(str(member.wildcards.cell))])[0]
        return f"{name} (job {self.job_id})"

    @property
    def log(self) -> Path | None:
        """The log that tells most of this job; None if it wrote none."""
        written = [log for _, log in self._logs() if self._wrote(log)]
        kept = [self._slurm_log] if self._slurm_log.is_file() else []
        return next(iter([*written[-1:], *kept]), None)

    def changed(self) -> dict[str, int | None]:
        """When each result was changed, in nanoseconds; None of one that is not there."""
        times: dict[str, int | None] = {}
        for file in self.results():
            times[file] = None
            with suppress(OSError):
                times[file] = Path(file).stat().st_mtime_ns
        return times

    def results_there(self, before: Mapping[str, int | None]) -> bool:
        """Whether all that the job should make is there and new; no clock decides what is new.

        False of a job that makes temporary files only: its end decides. ``before`` is
        :meth:`changed` when it was submitted.
        """
        now = self.changed()
        return bool(now) and all(
            at_ns is not None and at_ns != before.get(file) for file, at_ns in now.items()
        )

    def results(self) -> list[str]:
        """Files that it makes, but for temporary ones."""
        return [
            str(file)
            for member in self._members
            for file in member.output
            if not is_flagged(file, "temp")
        ]

    def note_queued(self) -> None:
        """Name the job in the folders of its cells."""
        for folder, member in self._cells.items():
            with suppress(OSError):
                write_json(folder / QUEUED_FILE, {"writer": self._writer(member).to_dict()})

    def forget_queued(self) -> None:
        for folder in self._cells:
            with suppress(OSError):
                (folder / QUEUED_FILE).unlink(missing_ok=True)

    def write_failure(self, reason: Reason) -> None:
        """Write why its cells failed, unless they could do so themselves."""
        for folder, member in self._cells.items():
            if self._failure(folder) is None:
                with suppress(OSError):
                    Failure(
                        cell_id=str(member.wildcards.cell),
                        cause="infrastructure",
                        reason=reason,
                        writer=self._writer(member),
                        log_tail=_text(self._slurm_log).splitlines()[-_TAIL_LINES:],
                    ).write(folder)

    def why_ended(self, job: JobState) -> Reason:
        """Why the job ended without a result: the cell's reason, or SLURM's with the log's."""
        ending = _ENDINGS.get(job.state, f"job {{job}} ended as {job.state}")
        sentence = ending.format(job=self.job_id, nodes=job.nodes or "of unknown name")
        if job.state == "CANCELLED":  # a cell may have written that a signal ended it
            return Reason("job_cancelled", sentence)
        for folder in self._cells:
            failure = self._failure(folder)
            if failure is not None:
                return failure.reason
        started = [part for part, log in self._logs() if self._wrote(log)]
        if job.state == ENDED_FOR_TIME and started == ["data"]:
            sentence += " while the data were made; raise stage_timeout_s"
        line = telling_line(_text(self._slurm_log))
        if job.state in ("FAILED", None) and not started and not line:
            sentence += (
                f" and wrote nothing, not even {self._slurm_log}: its node may not see this "
                "folder; run from a file system that all nodes share (ddlbench site doctor "
                "checks it)"
            )
        elif line and job.state in _LOG_TELLS:
            sentence += f": {line}"
        return Reason("job_preempted" if job.state == "PREEMPTED" else "job_lost", sentence)

    def _writer(self, member: Any) -> Writer:
        return replace(Writer.here(member.attempt), job_id=self.job_id)

    def _failure(self, folder: Path) -> Failure | None:
        """What this job wrote on why a cell failed; None if it wrote nothing."""
        if self.job_id is None:
            return None
        with suppress(UnreadableJson):
            failure = Failure.read(folder)
            if failure is not None and failure.writer is not None:
                return failure if failure.writer.job_id == self.job_id else None
        return None

    def _logs(self) -> list[tuple[str, Path]]:
        """What a job does in turn, each with its log."""
        data = [("data", folder / STAGE_LOG) for folder in self._cells]
        rules = [(member.rule.name, Path(log)) for member in self._members for log in member.log]
        return data + rules

    def _wrote(self, log: Path) -> bool:
        """Whether a rule's log is of this job, and not of an earlier one."""
        first, _, _ = _text(log).partition("\n")
        return self.job_id is not None and f"SLURM job {self.job_id}," in first


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
