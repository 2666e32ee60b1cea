"""Jobs as SLURM knows them: their state, and why they wait.

::

    squeue          sacct             state
    a state         (not used)        squeue's
    no such job     a final state     sacct's
    no such job     anything else     None: the job is over, its final state unknown
    no answer       a final state     sacct's
    no answer       anything else     NO_ANSWER: for example, slurmctld restarts; the job may run

Why a job waits is one of SLURM's words, such as ``Resources``. :data:`WAITS` and :data:`NEVER` put
the frequent ones into sentences.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ddlbench.slurm.commands import SlurmError, ask

ENDED_FOR_MEMORY = "OUT_OF_MEMORY"
ENDED_FOR_TIME = "TIMEOUT"
NO_ANSWER = "no answer"
# Any other word is of a job that lives: newer SLURMs have further ones, such as POWER_UP_NODE.
ENDED = frozenset(
    {
        *("COMPLETED", "CANCELLED", "FAILED", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"),
        *("REVOKED", "LAUNCH_FAILED", ENDED_FOR_MEMORY, ENDED_FOR_TIME),
    }
)
_PATIENCE_S = 10.0
_FORGOTTEN = "Invalid job id"  # squeue's error for a job that slurmctld no longer knows

# A job with one of these reasons starts by itself, sooner or later.
WAITS = {
    "Priority": "jobs before it start first",
    "Resources": "the nodes are busy",
    "Licenses": "its licences are in use",
    "BeginTime": "its begin time has not come",
    "Reservation": "its reservation has not begun",
    "ReqNodeNotAvail": "nodes are down, drained or reserved, often for maintenance",
    "Nodes required": "an administrator must bring them back, or take fewer nodes (geometry)",
    "NodeDown": "a node that it needs is down; an administrator must bring it back",
    "PartitionDown": "the partition is down; an administrator must bring it back",
    "PartitionInactive": "the partition is inactive; an administrator must bring it back",
    "JobHeldUser": "it is held; release it with scontrol release",
    "JobHeldAdmin": "an administrator holds it",
    "launch failed": "its launch failed and SLURM holds it; release it with scontrol release",
}
# A job with one of these reasons never starts, unless an administrator changes a limit.
NEVER = {
    "AccountNotAllowed": "the account may not use the partition; change slurm.account",
    "InvalidAccount": "there is no such account; change slurm.account",
    "InvalidQOS": "there is no such QOS; change slurm.qos",
    "QOSNotAllowed": "the QOS may not be used there; change slurm.qos",
    "BadConstraints": "no node satisfies it; change slurm.constraint, gpu_type or the geometry",
    "PartitionNodeLimit": "the partition gives a job fewer nodes; change nodes or slurm.partition",
    "PartitionTimeLimit": "the partition gives a job less time; change cell_timeout_s",
    "MaxMemPerLimit": "it asks for too much memory; change memory_per_device_mb",
    "ReservationDeleted": "its reservation is gone; change slurm.extra",
    "DependencyNeverSatisfied": "it depends on a job that failed; change slurm.extra",
}
# Limits of an account or QOS on one job, as QOSMaxNodePerJobLimit: no other job's end lifts them.
_LIMIT_OF_A_JOB = re.compile(r"(Assoc|QOS)(Max|Min)\w*(PerJob|PerNode|WallDuration)\w*|QOSMin\w+")
# A budget of time, as AssocGrpCPUMinutesLimit; RunMinutes is what running jobs may still use.
_BUDGET = re.compile(r"(Assoc|QOS)Grp(?!\w*RunMinutes)\w*(Minutes|Wall)\w*")
_LIMIT_OF_ALL = re.compile(r"(Assoc|QOS)\w+")


@dataclass(frozen=True)
class JobState:
    """What SLURM says of a job.

    Args:
        state: one word, such as ``RUNNING``; None if SLURM does not know the job any more.
        reason: why it waits, or why it ended; empty if SLURM gives none.
        nodes: it runs on, in SLURM's short form; empty before it starts.
        partition: that it waits for; several, with commas, if any of them may take it.
    """

    state: str | None
    reason: str = ""
    nodes: str = ""
    partition: str = ""

    def why_pending(self) -> tuple[str, bool]:
        """A sentence on why it waits, and whether it can start by itself."""
        sentence, starts = pending_in_words(self.reason)
        # Of several partitions SLURM tells the reason of one.
        return sentence, starts or "," in self.partition

    @property
    def may_live(self) -> bool:
        """Whether it may still wait, run or be about to end."""
        return may_live(self.state)


def own_job_id() -> str | None:
    """Id of the SLURM job that this process runs in."""
    return os.environ.get("SLURM_JOB_ID")


def may_live(state: str | None) -> bool:
    """Whether a job in this state may still wait, run or be about to end."""
    return state is not None and state not in ENDED


def state(job_id: str) -> str | None:
    """The job's state in one word, without "by <uid>"; see the table above."""
    return states([job_id])[job_id].state


def states(job_ids: Iterable[str]) -> dict[str, JobState]:
    """The state of every job, from one squeue; sacct tells of those that squeue has forgotten."""
    wanted = list(dict.fromkeys(job_ids))
    if not wanted:
        return {}
    queue = _queue(wanted)
    known = queue or {}
    missing = [job for job in wanted if job not in known]
    recorded = _accounting(missing) if missing else {}
    for job in missing:
        last = recorded.get(job, JobState(None))
        if last.state is None or last.may_live:
            # The accounting may lag: a job that the controller does not know does not run.
            last = JobState(NO_ANSWER if queue is None else None)
        known[job] = last
    return known


def hosts(job_id: str | None) -> list[str]:
    """Names of the nodes of a job; empty if SLURM does not tell."""
    if job_id is None:
        return []
    try:
        nodes = states([job_id])[job_id].nodes
        return ask(["scontrol", "show", "hostnames", nodes]).split() if nodes else []
    except SlurmError:
        return []


def description(job_id: str | None) -> str | None:
    """What ``scontrol --oneliner show job`` says; None outside of a job or without an answer."""
    if job_id is None:
        return None
    try:
        return ask(["scontrol", "--oneliner", "show", "job", job_id])
    except SlurmError:
        return None


def pending_in_words(reason: str) -> tuple[str, bool]:
    """A sentence on why a job waits, and whether it can start by itself.

    Args:
        reason: SLURM's word.
    """
    if not reason or reason == "None":
        return "SLURM has not looked at it yet", True
    bare = reason.strip("()")
    for table, starts in ((NEVER, False), (WAITS, True)):
        for word, sentence in table.items():
            if bare.startswith(word):
                return f"{bare}: {sentence}", starts
    if _LIMIT_OF_A_JOB.fullmatch(bare):
        return f"{bare}: the account or QOS allows a job less; ask for less, or change them", False
    if _BUDGET.fullmatch(bare):
        return f"{bare}: its budget of time is used up; ask for more, or change slurm.account", True
    if _LIMIT_OF_ALL.fullmatch(bare):
        sentence = (
            "the limit of the account or QOS is reached: it starts when other jobs end, or never "
            "if it alone asks for more (geometry, slurm.qos)"
        )
        return f"{bare}: {sentence}", True
    return bare, True


def _queue(job_ids: list[str]) -> dict[str, JobState] | None:
    """Squeue's jobs; None if it does not answer."""
    command = ["squeue", "--noheader", "--states=all", "--format=%i|%T|%N|%P|%r"]
    try:
        text = ask([*command, "--jobs", ",".join(job_ids)], patience_s=_PATIENCE_S)
    except SlurmError as error:
        # squeue refuses a single unknown job and leaves out one of several.
        return {} if _FORGOTTEN in error.words else None
    return _jobs_in(text)


def _accounting(job_ids: list[str]) -> dict[str, JobState]:
    """Sacct's jobs; those that it does not know are left out."""
    command = ["sacct", "-X", "--noheader", "--parsable2", "--format=JobIDRaw,State,NodeList"]
    try:
        listed = ask([*command, "--jobs", ",".join(job_ids)], patience_s=_PATIENCE_S)
        return _jobs_in(listed)
    except SlurmError:
        return {}


def _jobs_in(text: str) -> dict[str, JobState]:
    """Parse lines ``id|state|nodes|partition|reason``; the last two may be missing."""
    jobs = {}
    for line in text.splitlines():
        job, *values = (part.strip() for part in line.split("|", 4))
        if not values or not values[0]:
            continue
        word = values[0].split()[0].rstrip("+")  # "CANCELLED by 1000"
        nodes, partition, reason = [*values[1:], "", "", ""][:3]
        jobs[job] = JobState(
            state=word,
            reason="" if reason == "None" else reason,
            nodes="" if "None" in nodes else nodes,
            partition=partition,
        )
    return jobs
