"""What SLURM knows of a job: squeue while it lives and a while after, then sacct where it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import datetime

__all__ = ["ENDED_FOR_MEMORY", "ENDED_FOR_TIME", "is_alive", "own_job_id", "state", "submitted_at"]

ENDED_FOR_MEMORY = "OUT_OF_MEMORY"
ENDED_FOR_TIME = "TIMEOUT"
_ALIVE = {
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "SUSPENDED",
    "COMPLETING",
    "STAGE_OUT",
    "SIGNALING",
    "REQUEUED",
    "RESIZING",
    "STOPPED",
}
_PATIENCE_S = 30


def own_job_id() -> str | None:
    """Id of the SLURM job that this process runs in."""
    return os.environ.get("SLURM_JOB_ID")


def state(job_id: str) -> str | None:
    """The job's state, without "by <uid>" and the like; None when nobody remembers it."""
    for command in (
        ["squeue", "--noheader", "--jobs", job_id, "--states=all", "--format=%T"],
        ["sacct", "-X", "--noheader", "--parsable2", "--jobs", job_id, "--format=State"],
    ):
        words = _ask(command).split()
        if words:
            return words[0].rstrip("+")
    return None


def is_alive(job_id: str) -> bool:
    """Whether the job waits, runs or ends just now."""
    return state(job_id) in _ALIVE


def submitted_at(job_id: str) -> float | None:
    """When the job was submitted, in seconds since the epoch."""
    text = _ask(["squeue", "--noheader", "--jobs", job_id, "--states=all", "--format=%V"]).strip()
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _ask(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout if answer.returncode == 0 else ""
