"""Partitions as SLURM describes them: kinds of node, features, limits, and what sbatch refuses.

A kind of node is what sinfo says of a partition's nodes, equal ones added::

    sinfo's rows, one a state and configuration   -- parse_kinds -->   one NodeKind for equal nodes

Nodes that run jobs, or could, are usable. Others are counted apart, by their state. Features of
nodes decide which of them sbatch's ``--constraint`` takes. The words with which sbatch refuses a
job mean: try later, or change a key of the site's file.
"""

from __future__ import annotations

import os
import pwd
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ddlbench.slurm.jobs import WORDS, SlurmError, ask

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
    reasons = [WORDS["unusable"][word] for word in words if word in WORDS["unusable"]]
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


def in_words(states: Mapping[str, int]) -> str:
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


_SINFO = "%R|%D|%c|%m|%G|%l|%a|%f|%T"


def node_kinds() -> list[NodeKind]:
    """Kinds of node of every partition, as sinfo lists them.

    Raises:
        SlurmError: there is no SLURM here, or it does not answer.
    """
    try:
        marked = ask(["sinfo", "--all", "--noheader", "--format=%P"])
        # Without --exact, nodes that differ would be one row with the least of each number.
        text = ask(["sinfo", "--all", "--noheader", "--exact", f"--format={_SINFO}"])
    except SlurmError as error:
        why = _SILENT if _is_silent(error) else _NO_SLURM
        raise SlurmError(f"{why} ({error})", error.words) from None
    default = re.search(r"^(\S+)\*$", marked, re.MULTILINE)
    return parse_kinds(text, default[1] if default else None)


_NO_SLURM = (
    "no SLURM answers here; run this on a login node, or copy config/sites/slurm-example.yaml"
)


# What a machine of no cluster lacks.
_NO_CONFIGURATION = re.compile(r"configuration source", re.IGNORECASE)
_SILENT = "SLURM's controller does not answer; try again later"


def _is_silent(error: SlurmError) -> bool:
    """Whether a command of SLURM got no answer: neither the site's file nor the shell is wrong."""
    if not error.words:
        return "did not answer" in str(error)
    return is_busy(error.words) and not _NO_CONFIGURATION.search(error.words)


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
    names = (line.strip().rstrip("|") for line in text.splitlines())
    return sorted({name for name in names if name})


def unknown_nodes(names: str) -> list[str]:
    """Nodes of a list, as ``n[1-4],n9``, that SLURM does not know; what is no list is one.

    Empty where SLURM does not tell.
    """
    try:
        ask(["scontrol", "--oneliner", "show", "node", names])
    except SlurmError as error:
        # It names them on its standard output, among those that it knows.
        unknown = re.findall(r"^Node (\S+) not found", error.output, re.MULTILINE)
        return unknown or ([names] if "parse node list" in error.words else [])
    return []


# Signs with which sbatch(1) combines features are none of a name; nor is what a shell would read.
_FEATURE = r"[A-Za-z0-9_][A-Za-z0-9_.:=+@/-]*"
_ALL_OF = re.compile(rf"{_FEATURE}(&{_FEATURE})*")
# A feature that speaks of the GPU or its memory says more than the number of a rack.
_OF_A_GPU = re.compile(r"gpu|\d+ ?gb?\b", re.IGNORECASE)


def is_plain(constraint: str) -> bool:
    """Whether a constraint is one feature or several that all must be there, as ``v100&ib``."""
    return _ALL_OF.fullmatch(constraint) is not None


def holds(constraint: str, features: Collection[str]) -> bool:
    """Whether nodes with these features satisfy a plain constraint; any other is taken to hold."""
    return not is_plain(constraint) or set(constraint.split("&")) <= set(features)


def telling(
    features: Sequence[str], others: Sequence[Collection[str]], gpu_type: str = ""
) -> str | None:
    """The constraint that takes nodes with some features and leaves others out, as far as it can.

    Args:
        features: of the nodes to take.
        others: features of each kind of node to leave out.
        gpu_type: features that name it, or a GPU's memory, are taken first.

    Returns:
        None if no feature tells them apart.
    """

    def says_little(feature: str) -> bool:
        names_type = bool(gpu_type) and gpu_type.lower() in feature.lower()
        return not (names_type or _OF_A_GPU.search(feature))

    usable = sorted((f for f in features if re.fullmatch(_FEATURE, f)), key=says_little)
    left, chosen = [set(other) for other in others], []
    while left:
        best = max(usable, key=lambda f: sum(f not in other for other in left), default=None)
        if best is None or all(best in other for other in left):
            break
        chosen.append(best)
        left = [other for other in left if best in other]
    return "&".join(chosen) or None


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

EITHER = " or "  # between keys of which SLURM's words do not tell one
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


def is_wrong(words: str) -> bool:
    """Whether a request is refused for what it asks, whatever else runs or is down."""
    passes = is_busy(words) or lacks_nodes(words) or limits_jobs(words)
    return not passes and (fits_no_node(words) or key_of(words) is not None)


def may_pass(words: str) -> bool:
    """Whether a limit on jobs is lifted when other jobs end: this user's, or those of a group."""
    return limits_jobs(words) and ("Grp" in words or has_jobs())


def has_jobs() -> bool:
    """Whether this user has jobs in the queue."""
    with suppress(SlurmError):
        return bool(ask(["squeue", "--noheader", "--me", "--format=%i"]))
    return True


def key_of(words: str) -> str | None:
    """The key of the site's file that a refusal is about; None if nobody knows.

    Several are joined by :data:`EITHER`.
    """
    for pattern, key in WORDS["keys"]:
        if re.search(pattern, words, re.IGNORECASE):
            return key
    return None
