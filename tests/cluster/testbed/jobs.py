"""Jobs of the bed as tests look at them: how they ended, which processes they have."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .processes import Identity
from .shell import system

ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED"),
        *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"),
    }
)


@dataclass(frozen=True)
class JobEnd:
    """State of a job, in SLURM's word, its exit code, and the signal that ended it (0: none)."""

    state: str
    exit_code: int
    signal: int


@dataclass(frozen=True)
class NodeProcess:
    """A process of a job."""

    pid: int
    command: str


def clean_environment() -> dict[str, str]:
    """This process's environment without what an outer SLURM job would pass on."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM_", "SBATCH_", "SRUN_", "SLURMD_"))
    }


def job_end(job: int) -> JobEnd:
    """What the controller knows of the job; it forgets ten minutes after the end."""
    text = system("scontrol", "--oneliner", "show", "job", str(job))
    fields = dict(re.findall(r"\b(JobState|ExitCode)=(\S+)", text))
    code, _, number = fields["ExitCode"].partition(":")
    return JobEnd(fields["JobState"], int(code), int(number or 0))


def processes_of(job: int, holders: Mapping[str, Identity]) -> dict[str, list[NodeProcess]]:
    """Processes of the job by node: those that carry its id, wherever they hide."""
    node_of = {
        Path(f"/proc/{holder.pid}/ns/net").readlink(): node for node, holder in holders.items()
    }
    processes: dict[str, list[NodeProcess]] = {node: [] for node in holders}
    mark = f"SLURM_JOB_ID={job}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            node = node_of.get((folder / "ns" / "net").readlink())
            if node is None or mark not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            if command and "slurmstepd" not in command:
                processes[node].append(NodeProcess(int(folder.name), command))
    return processes
