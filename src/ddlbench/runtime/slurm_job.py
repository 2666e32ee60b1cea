"""What SLURM knows of a job: squeue while it lives and a while after, then sacct where it is.

::

    squeue          sacct           state
    a state         (not asked)     that
    no such job     an end          that end
    no such job     anything else   None: it is over, and nobody remembers how
    no answer       a state         that
    no answer       anything else   NO_ANSWER: slurmctld restarts, say; the job may well run
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
_FORGOTTEN = "Invalid job id"  # how squeue ends for a job that slurmctld no longer has
_PATIENCE_S = 30


def own_job_id() -> str | None:
    """Id of the SLURM job that this process runs in."""
    return os.environ.get("SLURM_JOB_ID")


def state(job_id: str) -> str | None:
    """The job's state, without "by <uid>" and the like; None when nobody remembers it.

    :data:`NO_ANSWER` where nobody could be asked just now.
    """
    queue = _ask(["squeue", "--noheader", "--jobs", job_id, "--states=all", "--format=%T"])
    if queue:
        return _first_word(queue)
    accounting = ["sacct", "-X", "--noheader", "--parsable2", "--jobs", job_id, "--format=State"]
    told = _first_word(_ask(accounting) or "")
    if queue is None:
        return told or NO_ANSWER
    # The accounting may lag behind: what the controller does not have does not run.
    return None if told in _ALIVE else told


def may_live(state: str | None) -> bool:
    """Whether a job of this state waits, runs or ends just now, for all that is known."""
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
    """What it prints: nothing of a job that it does not have; None where it does not answer."""
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
