"""What sbatch's words mean: try later, or change a key of the site's file."""

from __future__ import annotations

import re
from contextlib import suppress

from ddlbench.slurm.commands import SlurmError, ask

# A limit on the jobs that one user has in the queue; the last words stand for other limits too.
_MANY_JOBS = re.compile(
    r"MaxSubmit|GrpSubmit|^(?!.*\b(Assoc|QOS)\w+:).*job submit limit", re.IGNORECASE
)
_BUSY = re.compile(
    r"temporarily unable|Connection timed out|Message receive failure|nodes are busy|"
    r"Unable to establish configuration source|Unable to contact slurm controller|"
    r"Socket timed out|Resource temporarily|"
    r"Zero Bytes were transmitted|Connection refused|Communication connection failure|"
    r"backup controller|Slurmctld is down|Unable to allocate resources: Connection",
    re.IGNORECASE,
)
_UNAVAILABLE = re.compile(r"down, drained|not available \(down", re.IGNORECASE)

# Words of a refusal, and the key that decides what is refused; the first that fits holds.
_KEYS = (
    # Limits of an account or QOS. The words after their names are the same, with time and QOS.
    (r"\b(Assoc|QOS)\w*Wall", "cell_timeout_s"),
    (r"\b(Assoc|QOS)\w*Mem", "memory_per_device_mb"),
    (r"\b(Assoc|QOS)\w*GRES", "slurm.gres"),
    (r"\b(Assoc|QOS)\w*CPU", "cpus_per_device"),
    (r"\b(Assoc|QOS)(Max|Min|Grp)Node", "nodes"),
    (r"\bAssoc\w+Limit", "slurm.account"),
    (r"request at least|must request.*gpu|number of gpus", "slurm.gres"),
    (r"\baccount\b|AccountNotAllowed|hours.*(exhausted|used)|budget", "slurm.account"),
    (r"invalid partition|partition (name|not available|configuration)", "slurm.partition"),
    (r"this partition|no partition specified", "slurm.partition"),
    (r"qos", "slurm.qos"),
    (r"feature|constraint", "slurm.constraint"),
    (r"generic resource|gres|gpu", "slurm.gres"),
    (r"time ?limit|wall", "cell_timeout_s"),
    (r"memory|MaxMem", "memory_per_device_mb"),
    (r"node count|more nodes|too many nodes|MaxNode", "nodes"),
    (r"\btasks?\b", "devices_per_node"),
    (r"cpu|processors", "cpus_per_device"),
    (r"reserv|option|argument|licen[cs]e|node name|'slurm_extra'", "slurm.extra"),
)
_NO_SUCH_NODE = re.compile(r"node configuration is not available", re.IGNORECASE)


def is_busy(words: str) -> bool:
    """Whether SLURM did not answer or was too busy, so that it may take the job soon."""
    return bool(_BUSY.search(words))


def lacks_nodes(words: str) -> bool:
    """Whether nodes are down or drained now: a job would wait for them."""
    return bool(_UNAVAILABLE.search(words))


def limits_jobs(words: str) -> bool:
    """Whether a limit on the jobs in the queue refuses one more."""
    return bool(_MANY_JOBS.search(words))


def fits_no_node(words: str) -> bool:
    """Whether no node is as the job wants it; SLURM does not say in what they differ."""
    return bool(_NO_SUCH_NODE.search(words))


def may_pass(words: str) -> bool:
    """Whether a limit on jobs is lifted when other jobs end: this user's, or those of a group."""
    return limits_jobs(words) and ("Grp" in words or has_jobs())


def has_jobs() -> bool:
    """Whether this user has jobs in the queue."""
    with suppress(SlurmError):
        return bool(ask(["squeue", "--noheader", "--me", "--format=%i"]))
    return True


def key_of(words: str) -> str | None:
    """The key of the site's file that a refusal is about; None if nobody knows."""
    for pattern, key in _KEYS:
        if re.search(pattern, words, re.IGNORECASE):
            return key
    return None
