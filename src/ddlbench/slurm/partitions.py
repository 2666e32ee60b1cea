"""Query SLURM's partitions, GRES, memory, limits and accounts.

Parsing is separate from the query, so that tests can use the output of other clusters.
"""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass

from ddlbench.experiment.errors import ConfigError

_SINFO = "%R|%D|%c|%m|%G|%l|%a|%f"
_PATIENCE_S = 60


@dataclass(frozen=True)
class Partition:
    """One kind of node in one partition."""

    name: str
    is_default: bool  # jobs go there by default
    nodes: int  # of this kind
    cpus_per_node: int  # that SLURM allocates
    memory_mb: int  # of a node (SLURM's MB)
    gres: str  # of a node; "" without GPUs
    gpu_type: str  # "" without GPUs
    gpus_per_node: int
    time_limit_s: int | None  # of a job; None for no limit
    is_up: bool  # accepts jobs
    features: str  # separated by commas


def partitions() -> list[Partition]:
    """Partitions according to sinfo.

    Raises:
        ConfigError: there is no SLURM here, or it does not answer.
    """
    default = re.search(r"^(\S+)\*", _ask(["sinfo", "--noheader", "--format=%P"]), re.MULTILINE)
    text = _ask(["sinfo", "--noheader", f"--format={_SINFO}"])
    return parse_partitions(text, default[1] if default else None)


def accounts() -> list[str]:
    """Accounts that this user may charge; empty if the site has no accounting."""
    if shutil.which("sacctmgr") is None:
        return []
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "associations"]
    try:
        text = _ask([*command, f"user={getpass.getuser()}", "format=account"])
    except ConfigError:
        return []
    return sorted({line.strip() for line in text.splitlines() if line.strip()})


def why_pending(job_id: str) -> str:
    """SLURM's reason why a job waits; "" if it does not wait or squeue does not answer."""
    try:
        reason = _ask(["squeue", "--noheader", "--jobs", job_id, "--format=%r"]).strip()
    except ConfigError:
        return ""
    return "" if reason == "None" else reason


def parse_partitions(text: str, default: str | None) -> list[Partition]:
    """Parse sinfo's lines of the format ``%R|%D|%c|%m|%G|%l|%a|%f``; the default comes first."""
    rows = []
    for line in text.splitlines():
        parts = line.strip().split("|")
        if len(parts) != 8:
            continue
        name, nodes, cpus, memory, gres, limit, up, features = parts
        kind, gpu_type, count = parse_gres(gres)
        rows.append(
            Partition(
                name=name,
                is_default=name == default,
                nodes=int(nodes),
                cpus_per_node=_whole(cpus),
                memory_mb=_whole(memory),
                gres=kind,
                gpu_type=gpu_type,
                gpus_per_node=count,
                time_limit_s=_seconds(limit),
                is_up=up == "up",
                features="" if features == "(null)" else features,
            )
        )
    return sorted(rows, key=lambda p: (not p.is_default, -p.gpus_per_node, p.name))


def parse_gres(text: str) -> tuple[str, str, int]:
    """Name, type and count of the GPUs in a GRES text like ``gpu:a100:4(S:0-1),nvme:1``.

    Counts of a type that is listed twice are added; of several types the most frequent is taken.
    """
    counts: Counter[str] = Counter()
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        if gpu := re.fullmatch(r"gpu(?::([^:]+))??(?::(\d+))?", part):
            counts[gpu[1] or ""] += int(gpu[2] or 1)
    if not counts:
        return "", "", 0
    ((gpu_type, count),) = counts.most_common(1)
    return "gpu", gpu_type, count


def _whole(text: str) -> int:
    digits = re.match(r"\d+", text)
    return int(digits[0]) if digits else 0


def _seconds(text: str) -> int | None:
    """SLURM's ``[days-]hours:minutes:seconds``."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


_NO_SLURM = (
    "no SLURM answers here; run this on a login node, or copy config/sites/slurm-example.yaml"
)


def _ask(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        raise ConfigError(f"{_NO_SLURM} ({command[0]} is not on this machine)")
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{_NO_SLURM} ({command[0]} did not answer within {_PATIENCE_S} s)"
        ) from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise ConfigError(f"{_NO_SLURM} ({lines[-1] if lines else f'{command[0]} failed'})")
    return done.stdout
