"""What the guard of a rank adds to the rank's report when the rank has ended."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddlbench.common.errors import signal_name
from ddlbench.experiment.status import Status
from ddlbench.runtime.job import Job, report_file, stacks_file
from ddlbench.runtime.launch import own_process
from ddlbench.runtime.pauses import Pause, within
from ddlbench.runtime.rank_report import (
    RankFailure,
    RankReport,
    read_rank_report,
    write_rank_report,
)


def _run_of(job_path: str) -> tuple[Path, int]:
    """The folder of the run, and the rank."""
    job = Job.load(Path(job_path))
    return job.run_dir, own_process(job.plan.processes).rank


def stacks_of(job_path: str) -> Path:
    """The file into which the rank dumps its stacks."""
    return stacks_file(*_run_of(job_path))


def add_pauses(job_path: str, pauses: Sequence[Pause]) -> None:
    """Write those of the measured steps into the rank's report, if it measured some."""
    path = report_file(*_run_of(job_path))
    report = read_rank_report(path) if path.exists() else None
    if isinstance(report, RankReport):
        write_rank_report(path, replace(report, pauses=within(pauses, report.measured_at)))


def report_signal(job_path: str, number: int, for_memory: bool) -> None:
    """Write the report of a rank that a signal ended, if it left none itself."""
    folder, rank = _run_of(job_path)
    status, code = Status.FAILED, "rank_killed"
    reason = f"killed by signal {number} ({signal_name(number)})"
    if number == signal.SIGKILL and for_memory:
        status, code = Status.OUT_OF_MEMORY, "out_of_memory_killed"
        reason = "the kernel killed the rank because memory ran out"
    if not (path := report_file(folder, rank)).exists():
        failure = RankFailure(
            rank=rank, status=status, reason=reason, reason_code=code, signal=number
        )
        write_rank_report(path, failure)
