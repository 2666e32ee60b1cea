"""Kinds of node: what sinfo says of a partition's nodes, equal ones added.

::

    sinfo's rows, one a state and configuration   -- parse_kinds -->   one NodeKind for equal nodes

Nodes that run jobs, or could, are usable. Others are counted apart, by their state.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

# A node in any other state takes jobs, now or after those that it has; sinfo(1), NODE STATE CODES.
_UNUSABLE = {
    "down": "down",
    "drain": "drained",
    "drained": "drained",
    "draining": "draining",
    "drng": "draining",
    "error": "down",
    "fail": "broken",
    "failg": "failing",
    "failing": "failing",
    "future": "not built yet",
    "futr": "not built yet",
    "inval": "misconfigured",
    "maint": "in maintenance",
    "no_respond": "not responding",
    "not_responding": "not responding",
    "reserved": "reserved",
    "resv": "reserved",
    "unk": "in an unknown state",
    "unknown": "in an unknown state",
}
_STATE = re.compile(r"([a-z_]+(?:\+[a-z_]+)*)([*~#!%$@^-]*)", re.IGNORECASE)
_MARKS = {"*": "not responding", "$": "in maintenance"}

# Of NVIDIA's profiles, as 1g.5gb or 3g.20gb+me; sites shorten them to 1g, or write mig.
_SLICE = re.compile(
    r"((?<![a-z0-9])([1-7]g[._-]?\d+(gb)?|[12347]g)|(?<![a-z])mig\d*)(?![a-z0-9])", re.IGNORECASE
)
# Equal nodes of two racks are of one kind.
_OF_A_PLACE = re.compile(
    r"(rack|row|chassis|switch|leaf|spine|island|isle|cage|cabinet|pod|room|enclosure|building|dc)"
    r"([-_.:]?\w*\d\w*|[-_.:][a-z])|r\d+(-?[cun]\d+)*|sw\d+",
    re.IGNORECASE,
)
_UNSET_MEMORY_MB = 1  # SLURM's default where the administrator gave none; slurm.conf(5), RealMemory
_COLUMNS = 8


@dataclass(frozen=True)
class NodeKind:
    """Nodes of one partition that have the same GPUs, memory and features.

    Args:
        partition: its name.
        is_default: jobs that name no partition go there.
        is_up: the partition accepts jobs.
        time_limit_s: of a job; None for no limit.
        cpus_per_node: that SLURM allocates, the least of these nodes.
        memory_mb: of a node (SLURM's MB); None where the administrator gave none.
        gpus: types of a node's GPUs and how many it has of each; "" is a GPU without a type.
        features: of each node, but for those that only say where it stands.
        places: features that say where nodes stand, such as a rack; those of some of the nodes.
        usable: nodes that run jobs or could.
        unusable: states of the other nodes, and how many are in each.
    """

    partition: str
    is_default: bool
    is_up: bool
    time_limit_s: int | None
    cpus_per_node: int
    memory_mb: int | None
    gpus: tuple[tuple[str, int], ...]
    features: tuple[str, ...]
    usable: int
    unusable: tuple[tuple[str, int], ...] = ()
    places: tuple[str, ...] = ()

    @property
    def nodes(self) -> int:
        return self.usable + sum(count for _, count in self.unusable)

    @property
    def all_features(self) -> tuple[str, ...]:
        """Features that a constraint may name."""
        return (*self.features, *self.places)

    def gpus_of(self, gpu_type: str | None) -> int:
        """GPUs of a type that a node has; of all types together where none is named."""
        return sum(count for name, count in self.gpus if not gpu_type or name == gpu_type)


def parse_kinds(text: str, default: str | None) -> list[NodeKind]:
    """Parse sinfo's lines of the format ``%R|%D|%c|%m|%G|%l|%a|%f|%T``; equal nodes are added.

    Args:
        text: of sinfo. The last column may be missing: then all nodes count as usable.
        default: name of the default partition.
    """
    kinds: dict[tuple[object, ...], NodeKind] = {}
    for line in text.splitlines():
        kind = _parse_row(line.strip(), default)
        if kind is None:
            continue
        same = (kind.partition, kind.gpus, kind.memory_mb, frozenset(kind.features))
        kinds[same] = kind if same not in kinds else _added(kinds[same], kind)
    return list(kinds.values())


def _parse_row(line: str, default: str | None) -> NodeKind | None:
    """One row of sinfo as a kind of node; None for a line of anything else."""
    parts = [part.strip() for part in line.split("|", _COLUMNS - 1)]
    if len(parts) != _COLUMNS or not re.match(r"\d", parts[1]):
        return None
    name, nodes, cpus, memory, gres, limit, up, rest = parts
    before, bar, last = rest.rpartition("|")
    why = why_unusable(last) if bar else None
    features = before if bar else rest
    memory_mb, count = _whole(memory), _whole(nodes)
    named = [name for name in features.split(",") if name and name != "(null)"]
    return NodeKind(
        partition=name.removesuffix("*"),
        is_default=name in (default, f"{name.removesuffix('*')}*"),
        is_up=up == "up",
        time_limit_s=_seconds(limit),
        cpus_per_node=_whole(cpus),
        memory_mb=memory_mb if memory_mb > _UNSET_MEMORY_MB else None,
        gpus=tuple(sorted(parse_gres(gres).items())),
        features=tuple(name for name in named if not _OF_A_PLACE.fullmatch(name)),
        places=tuple(filter(_OF_A_PLACE.fullmatch, named)),
        usable=0 if why else count,
        unusable=((why, count),) if why and count else (),
    )


def _added(first: NodeKind, second: NodeKind) -> NodeKind:
    """Both as one, with the fewest cores."""
    return replace(
        first,
        cpus_per_node=min(first.cpus_per_node, second.cpus_per_node),
        usable=first.usable + second.usable,
        unusable=tuple(unusable_in([first, second]).items()),
        places=tuple(dict.fromkeys((*first.places, *second.places))),
    )


def why_unusable(state: str) -> str | None:
    """Why a node in a state of sinfo takes no jobs; None if it does, or if that is no state."""
    match = _STATE.fullmatch(state.strip())
    if match is None:
        return None
    words = match[1].lower().split("+")
    reasons = [_UNUSABLE[word] for word in words if word in _UNUSABLE]
    reasons += [_MARKS[mark] for mark in match[2] if mark in _MARKS]
    return reasons[0] if reasons else None


def parse_gres(text: str) -> dict[str, int]:
    """GPUs of a GRES text like ``gpu:a100:4(S:0-1),nvme:1``: how many of each type; "" for none.

    Counts of a type that is listed twice are added. SLURM writes ``name[:type][:no_consume]:count``
    (gres.conf(5)), and reads a count without a number as one.
    """
    counts: Counter[str] = Counter()
    for part in re.sub(r"\([^)]*\)", "", text).split(","):
        name, *words = part.strip().split(":")
        words = [word for word in words if word.lower() != "no_consume"]
        if name != "gpu":
            continue
        count = re.fullmatch(r"(\d+)(k?)", words[-1], re.IGNORECASE) if words else None
        kind = ":".join(words[:-1] if count else words)
        counts[kind] += int(count[1]) * (1024 if count[2] else 1) if count else 1
    return {kind: count for kind, count in counts.items() if count}


def is_slice(gpu_type: str) -> bool:
    """Whether a GRES type names slices of a GPU (NVIDIA's MIG), as ``a100_1g.5gb`` does."""
    return _SLICE.search(gpu_type) is not None


# NVIDIA's MIG user guide; NVIDIA/nccl issue 1716: a PCI device is one GPU and one rank.
SLICES_ALONE = (
    "MIG slices of one card cannot work together: none reaches the memory of another, and NCCL "
    "takes them for one GPU"
)


def counted(states: Mapping[str, int]) -> str:
    """``3 drained, 1 down``: the states of unusable nodes in words, the most frequent first."""
    order = sorted(states.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {state}" for state, count in order)


def unusable_in(kinds: Iterable[NodeKind]) -> Counter[str]:
    """Unusable nodes of several kinds, by state."""
    states: Counter[str] = Counter()
    for kind in kinds:
        states.update(dict(kind.unusable))
    return states


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
