"""What SLURM says of a site: partitions, nodes, GRES and limits; accounts and QOS of the user.

Parsing is separate from the query, so that tests can use the output of other clusters.
"""

from __future__ import annotations

import os
import pwd
import re
from collections import Counter
from dataclasses import dataclass

from ddlbench.slurm.commands import SlurmError, ask

_SINFO = "%R|%D|%c|%m|%G|%l|%a|%f"


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
    """Partitions, as sinfo lists them.

    Raises:
        SlurmError: there is no SLURM here, or it does not answer.
    """
    try:
        marked = ask(["sinfo", "--all", "--noheader", "--format=%P"])
        text = ask(["sinfo", "--all", "--noheader", f"--format={_SINFO}"])
    except SlurmError as error:
        raise SlurmError(f"{_NO_SLURM} ({error})", error.words) from None
    default = re.search(r"^(\S+)\*", marked, re.MULTILINE)
    return parse_partitions(text, default[1] if default else None)


_NO_SLURM = (
    "no SLURM answers here; run this on a login node, or copy config/sites/slurm-example.yaml"
)


def usable_nodes(partition: str | None) -> int | None:
    """Nodes of a partition that run jobs or could; None if SLURM does not tell."""
    chosen = ["--partition", partition] if partition else ["--all"]  # not both
    try:
        counts = ask(["sinfo", "--noheader", *chosen, "--format=%F"])
        # allocated/idle/other/total, a line each partition
        lines = [line.split("/") for line in counts.splitlines()]
        return max(int(allocated) + int(idle) for allocated, idle, *_ in lines)
    except (SlurmError, ValueError):
        return None


def accounts() -> list[str]:
    """Accounts that this user may charge; empty if the site has no accounting."""
    # Not getpass, which believes LOGNAME: it is another user's after su.
    user = f"user={pwd.getpwuid(os.getuid()).pw_name}"
    return _accounting("associations", user, "format=account")


def qos_names() -> list[str]:
    """Every QOS of the site; empty if it has no accounting."""
    return _accounting("qos", "format=name")


def enforced_limits() -> list[str]:
    """What SLURM refuses jobs for: associations, limits, qos, ...; empty if it does not tell."""
    try:
        text = ask(["scontrol", "show", "config"])
    except SlurmError:
        return []
    enforced = re.search(r"^AccountingStorageEnforce\s*=\s*(\S+)", text, re.MULTILINE)
    return enforced[1].lower().split(",") if enforced else []


def _accounting(*what: str) -> list[str]:
    try:
        text = ask(["sacctmgr", "--noheader", "--parsable2", "show", *what])
    except SlurmError:
        return []
    return sorted({line.strip() for line in text.splitlines() if line.strip()})


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
