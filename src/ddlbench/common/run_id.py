"""Which start of the workflow, and which of its jobs, wrote a file on the shared disk.

::

    snakemake (run) --+-- SLURM job 12, attempt 1 --> staged.json, failure.json, *.log
                      +-- SLURM job 15, attempt 2 --> ...

Files of one cell stay in its folder when a job dies. The next job must not take them for its own:
data lies on other nodes, and a bug may be mended since. So such a file names its writer.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

RUN = "DDLBENCH_RUN"
_NS = 1e9


@dataclass(frozen=True)
class Writer:
    """The job that wrote a file.

    Args:
        run: the start of the workflow; None outside of a workflow.
        job_id: of SLURM; None on a local site.
        attempt: 1, or more if the workflow repeats a failed job.
    """

    run: str | None
    job_id: str | None
    attempt: int = 1

    @classmethod
    def here(cls, attempt: int = 1) -> Self:
        """This process."""
        return cls(os.environ.get(RUN), os.environ.get("SLURM_JOB_ID"), attempt)

    @classmethod
    def of(cls, document: Any) -> Self | None:
        """The writer that a document names; None if it names none."""
        values = document.get("writer") if isinstance(document, Mapping) else None
        try:
            return cls(**(values or {}))
        except TypeError:
            return None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def is_same_job(self, other: Writer | None) -> bool:
        """Whether both are one job: SLURM's number decides, on a local site the run."""
        if other is None or self.job_id != other.job_id:
            return False
        return self.job_id is not None or self.run == other.run

    def comes_after(self, other: Writer | None) -> bool:
        """Whether this is a later attempt of the run that wrote the file."""
        return other is not None and self.run == other.run and self.attempt > other.attempt

    def __str__(self) -> str:
        job = "local job" if self.job_id is None else f"SLURM job {self.job_id}"
        return f"{job}, attempt {self.attempt}"


def begin_run(folder: Path) -> None:
    """Name this start of the workflow for all jobs that it starts.

    Args:
        folder: on the file system of the results, whose clock decides what is older than the run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".begin-{secrets.token_hex(8)}"
    probe.touch()
    began_ns = probe.stat().st_mtime_ns
    probe.unlink()
    os.environ[RUN] = f"{began_ns}-{secrets.token_hex(4)}"


def run_began_s() -> float | None:
    """When the run began, by the clock of the results' file system; None outside of a workflow."""
    began, _, _ = os.environ.get(RUN, "").partition("-")
    return int(began) / _NS if began.isdigit() else None
