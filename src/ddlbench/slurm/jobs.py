"""The state of a SLURM job, from squeue and, once squeue has forgotten the job, from sacct.

::

    squeue          sacct             state
    a state         (not asked)       squeue's
    no such job     a final state     sacct's
    no such job     anything else     None: the job is over, its final state unknown
    no answer       a state           sacct's
    no answer       anything else     NO_ANSWER: for example, slurmctld restarts; the job may run
"""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import datetime

ENDED_FOR_MEMORY = "OUT_OF_MEMORY"
ENDED_FOR_TIME = "TIMEOUT"
NO_ANSWER = "no answer"
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
_FORGOTTEN = "Invalid job id"  # squeue's error for a job that slurmctld no longer knows
_PATIENCE_S = 30


def own_job_id() -> str | None:
    """Id of the SLURM job that this process runs in."""
    return os.environ.get("SLURM_JOB_ID")


def state(job_id: str) -> str | None:
    """The job's state in one word, without "by <uid>"; see the table above."""
    queue = _ask(["squeue", "--noheader", "--jobs", job_id, "--states=all", "--format=%T"])
    if queue:
        return _first_word(queue)
    accounting = ["sacct", "-X", "--noheader", "--parsable2", "--jobs", job_id, "--format=State"]
    recorded = _first_word(_ask(accounting) or "")
    if queue is None:
        return recorded or NO_ANSWER
    # The accounting may lag behind: a job that the controller does not know does not run.
    return None if recorded in _ALIVE else recorded


def may_live(state: str | None) -> bool:
    """Whether a job in this state may still wait, run or be about to end."""
    return state in _ALIVE or state == NO_ANSWER


def submitted_at(job_id: str) -> float | None:
    """When the job was submitted, in seconds since the epoch."""
    text = _ask(["squeue", "--noheader", "--jobs", job_id, "--states=all", "--format=%V"]) or ""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _first_word(answer: str) -> str | None:
    words = answer.split()
    return words[0].rstrip("+") if words else None


def _ask(command: list[str]) -> str | None:
    """Output of a SLURM command: "" for an unknown job, None if the command does not answer."""
    if shutil.which(command[0]) is None:
        return None
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
        return None
    if answer.returncode == 0:
        return answer.stdout.strip()
    return "" if _FORGOTTEN in answer.stderr else None
