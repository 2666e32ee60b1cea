"""What SLURM says of itself: partitions, GRES, memory, limits, accounts.

Parsing is apart from asking, so that it can be tested on the words of other clusters.
"""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
from dataclasses import dataclass

from ddlbench.experiment.errors import ConfigError

_SINFO = "%R|%D|%c|%m|%G|%l|%a|%f"
_PATIENCE_S = 60


@dataclass(frozen=True)
class Partition:
    """One kind of node in one partition.

    Args:
        name: of the partition.
        is_default: jobs go there unless they say otherwise.
        nodes: how many nodes of this kind.
        cpus_per_node: cores that SLURM gives out.
        memory_mb: of a node (SLURM's MB).
        gres, gpu_type, gpus_per_node: its GPUs; "" and 0 where it has none.
        time_limit_s: longest job; None for no limit.
        is_up: it takes jobs.
        features: of its nodes, parted by commas; "" where they have none.
    """

    name: str
    is_default: bool
    nodes: int
    cpus_per_node: int
    memory_mb: int
    gres: str
    gpu_type: str
    gpus_per_node: int
    time_limit_s: int | None
    is_up: bool
    features: str


def partitions() -> list[Partition]:
    """Ask sinfo.

    Raises:
        ConfigError: there is no SLURM here, or it does not answer.
    """
    default = re.search(r"^(\S+)\*", _ask(["sinfo", "--noheader", "--format=%P"]), re.MULTILINE)
    text = _ask(["sinfo", "--noheader", f"--format={_SINFO}"])
    return parse_partitions(text, default[1] if default else None)


def accounts() -> list[str]:
    """Accounts that this user may charge; empty where the site keeps none."""
    if shutil.which("sacctmgr") is None:
        return []
    command = ["sacctmgr", "--noheader", "--parsable2", "show", "associations"]
    try:
        text = _ask([*command, f"user={getpass.getuser()}", "format=account"])
    except ConfigError:
        return []
    return sorted({line.strip() for line in text.splitlines() if line.strip()})


def why_pending(job_id: str) -> str:
    """SLURM's word for what a job waits for; "" where it does not wait, or nobody says."""
    try:
        found = _ask(["squeue", "--noheader", "--jobs", job_id, "--format=%r"]).strip()
    except ConfigError:
        return ""
    return "" if found == "None" else found


def parse_partitions(text: str, default: str | None) -> list[Partition]:
    """Read sinfo's lines of the format ``%R|%D|%c|%m|%G|%l|%a|%f``; the default comes first."""
    found = []
    for line in text.splitlines():
        parts = line.strip().split("|")
        if len(parts) != 8:
            continue
        name, nodes, cpus, memory, gres, limit, up, features = parts
        kind, gpu_type, count = parse_gres(gres)
        found.append(
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
    return sorted(found, key=lambda p: (not p.is_default, -p.gpus_per_node, p.name))


def parse_gres(text: str) -> tuple[str, str, int]:
    """Name, type and count of the GPUs in a GRES text like ``gpu:a100:4(S:0-1),nvme:1``.

    A type that is listed twice counts together; several types give the most frequent one.
    """
    counts: dict[str, int] = {}
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        words = part.split(":")
        if words[0] == "gpu":
            kind = words[1] if len(words) > 2 else ""
            count = words[-1] if words[-1].isdigit() else "1"
            if len(words) == 2 and not words[1].isdigit():
                kind = words[1]
            counts[kind] = counts.get(kind, 0) + int(count)
    if not counts:
        return "", "", 0
    kind = max(counts, key=lambda key: counts[key])
    return "gpu", kind, counts[kind]


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
