"""Chooses the kind of node of a site, and the constraint that keeps its jobs on that kind.

::

    kinds of node --> offers: one type of device on one kind of node --> the best, or the user's
    the one taken, with kinds on which its jobs could run as well    --> Selection

Whole GPUs go before slices of one, and both before none. A partition that is down, or whose nodes
are all drained, is taken only if the user names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.planning.budget import SPARE_MINUTES
from ddlbench.slurm.partition_limits import PartitionLimits
from ddlbench.slurm.partitions import (
    SLICES_ALONE,
    NodeKind,
    holds,
    in_words,
    is_slice,
    telling,
    unusable_in,
)

STAGE_TIMEOUT_S = 1800
CELL_TIMEOUT_S = 3600
SHORTEST_JOB_S = (SPARE_MINUTES + 2) * 60  # a minute for its data, one to run


@dataclass(frozen=True)
class Offer:
    """One type of device on one kind of node.

    Args:
        kind: of node.
        gpu_type: of the GPUs; "" where they have no type, None for CPU workers.
        gpus: that a node has of them; 0 for CPU workers.
    """

    kind: NodeKind
    gpu_type: str | None
    gpus: int

    @property
    def is_slice(self) -> bool:
        return is_slice(self.gpu_type or "")

    @property
    def what(self) -> str:
        """``4x a100``, ``7x a100_1g.5gb (MIG slices)``, ``64 cores``."""
        if self.gpu_type is None:
            return counted(self.kind.cpus_per_node, "core")
        return f"{self.gpus}x {self.gpu_type or 'GPU'}" + (" (MIG slices)" if self.is_slice else "")

    @property
    def text(self) -> str:
        """``40 nodes of 4x a100``."""
        return f"{counted(self.kind.usable, 'node')} of {self.what}"

    @property
    def is_ready(self) -> bool:
        """Whether jobs can start on it: its partition is up, and a node is usable."""
        return self.kind.is_up and self.kind.usable > 0

    def rivals(self, devices: int, kinds: Iterable[NodeKind]) -> list[NodeKind]:
        """Other kinds of node in the partition on which its jobs could run as well."""
        return [
            kind
            for kind in kinds
            if kind.partition == self.kind.partition and kind != self.kind and kind.nodes
            if self.gpu_type is None or kind.gpus_of(self.gpu_type) >= devices
        ]


@dataclass(frozen=True)
class Selection:
    """The offer that a site takes, and what its file says of it.

    Args:
        offer: that was taken.
        device: "cuda" or "cpu".
        devices_per_node: workers of a node.
        nodes: largest cell.
        cpus_per_node: the least of all nodes on which its jobs may run.
        memory_mb: likewise; None where SLURM does not know.
        constraint: features that tell these nodes from others; None if none are needed.
        remarks: sentences about the choice.
    """

    offer: Offer
    device: str
    devices_per_node: int
    nodes: int
    cpus_per_node: int
    memory_mb: int | None
    constraint: str | None
    remarks: tuple[str, ...]

    @property
    def text(self) -> str:
        """``40 nodes of 4x a100``: the largest cell."""
        return f"{counted(self.nodes, 'node')} of {self.offer.what}"


def offers_of(kinds: Iterable[NodeKind], device: str | None) -> list[Offer]:
    """What kinds of node offer to a device, the best first; None takes GPUs where there are any."""
    offers = []
    for kind in kinds:
        if kind.nodes == 0:
            continue
        gpus = kind.gpus if device != "cpu" else ()
        offers += [Offer(kind, gpu_type, count) for gpu_type, count in gpus]
        if not gpus and device != "cuda":
            offers.append(Offer(kind, None, 0))
    return sorted(offers, key=_rank)


def _rank(offer: Offer) -> tuple[object, ...]:
    kind = offer.kind
    limit_s = float("inf") if kind.time_limit_s is None else kind.time_limit_s
    devices = 1 if offer.is_slice else offer.gpus or kind.cpus_per_node
    usual_job_s = STAGE_TIMEOUT_S + CELL_TIMEOUT_S + SPARE_MINUTES * 60
    # Whole GPUs, slices, CPU workers, CPU workers on nodes whose GPUs would be idle.
    device_rank = 1 if offer.is_slice else 0
    if offer.gpu_type is None:
        device_rank = 3 if kind.gpus else 2
    return (
        not offer.is_ready,
        device_rank,
        limit_s < SHORTEST_JOB_S,
        limit_s < usual_job_s,
        not kind.is_default,
        -kind.usable * devices,
        [-int(size) for size in re.findall(r"[1-7](?=g)", offer.gpu_type or "")],
        kind.partition,
        offer.gpu_type or "",
    )


def of_gpu(offers: Sequence[Offer], wanted: str) -> tuple[list[Offer], str | None]:
    """Offers of a GPU that a user names: by its type, a part of it, or a feature of its nodes.

    Returns:
        the offers, and the constraint that the site needs; None if the type says it.

    Raises:
        ConfigError: no offer is of it, or several types are.
    """
    word = wanted.lower()
    typed = [offer for offer in offers if offer.gpu_type]
    same = [offer for offer in typed if (offer.gpu_type or "").lower() == word]
    if same:
        return same, None
    part = [offer for offer in typed if word in (offer.gpu_type or "").lower()]
    part = [offer for offer in part if not offer.is_slice] or part
    types = sorted({offer.gpu_type or "" for offer in part})
    if len(types) > 1:
        raise ConfigError(f"--gpu {wanted}: several types hold it; write one of {', '.join(types)}")
    if types:
        return part, None
    featured = [(offer, f) for offer in offers if offer.gpus for f in offer.kind.features]
    named = [(offer, f) for offer, f in featured if f.lower() == word]
    named = named or [(offer, f) for offer, f in featured if word in f.lower()]
    features = sorted({feature for _, feature in named})
    if len(features) == 1:
        return [offer for offer, _ in named], features[0]
    if features:
        raise ConfigError(
            f"--gpu {wanted}: several features hold it; write one of {', '.join(features)}"
        )
    known = sorted({offer.gpu_type for offer in typed if offer.gpu_type})
    listed = f"write one of {', '.join(known)}" if known else "SLURM names no type of GPU here"
    raise ConfigError(f"--gpu {wanted}: no node has it; {listed}")


def labels(offers: Sequence[Offer]) -> list[str]:
    """Texts of offers; those of one type and count say what else tells them apart."""
    texts = []
    for offer in offers:
        alike = [other.kind for other in offers if other.what == offer.what]
        more = []
        if len({kind.memory_mb for kind in alike}) > 1:
            more.append(_memory_text(offer.kind))
        shared = set.intersection(*(set(kind.features) for kind in alike))
        if len({frozenset(kind.features) for kind in alike}) > 1:
            more.append(" ".join(f for f in offer.kind.features if f not in shared) or "no feature")
        texts.append(offer.text + (f" [{', '.join(more)}]" if more else ""))
    return texts


def _memory_text(kind: NodeKind) -> str:
    return "memory unknown" if kind.memory_mb is None else f"{kind.memory_mb} MB"


def partition_lines(kinds: Sequence[NodeKind], offers: Sequence[Offer]) -> list[str]:
    """A line for each partition: its kinds of node with their counts; the best partition first."""
    ranked = [*(offer.kind.partition for offer in offers), *(kind.partition for kind in kinds)]
    lines = []
    for name in dict.fromkeys(ranked):
        here = [kind for kind in kinds if kind.partition == name]
        mine = [offer for offer in offers if offer.kind.partition == name]
        usable = sum(kind.usable for kind in here)
        others = f"{counted(usable, 'node')}, none of what you ask for" if usable else "no nodes"
        text = ", ".join(labels(mine)) or others
        apart = unusable_in(here)
        state = "" if here[0].is_up else " (down)"
        lines.append(f"{name}{state}: {text}" + (f"; apart: {in_words(apart)}" if apart else ""))
    return lines


def select(
    offer: Offer,
    kinds: Sequence[NodeKind],
    *,
    device: str,
    devices_per_node: int | None = None,
    constraint: str | None = None,
    limits: PartitionLimits | None = None,
) -> Selection:
    """What a site of an offer says: of its nodes, and of others on which its jobs may run.

    It says no more than one job may have. Without ``devices_per_node`` it has all devices of a
    node, or one slice.
    """
    kind = offer.kind
    devices = devices_per_node or (1 if offer.is_slice else offer.gpus)
    rivals = offer.rivals(devices, kinds)
    needed = constraint or telling(
        kind.features, [rival.features for rival in rivals], offer.gpu_type or ""
    )
    left = [rival for rival in rivals if needed is None or holds(needed, rival.features)]
    counts_too = [
        rival for rival in left
        if offer.gpu_type is None or offer.is_slice or rival.gpus_of(offer.gpu_type) == offer.gpus
    ]  # fmt: skip
    memory_mb = [each.memory_mb for each in (kind, *left)]
    known_mb = [size for size in memory_mb if size is not None]
    cpus = min(each.cpus_per_node for each in (kind, *left))
    counted_kinds = [kind, *counts_too]
    usable = sum(each.usable for each in counted_kinds)
    has = _Amounts(
        nodes=usable or sum(each.nodes for each in counted_kinds),
        cpus=cpus,
        memory_mb=min(known_mb) if len(known_mb) == len(memory_mb) else None,
    )
    gets = has.within(limits)
    remarks = [
        *_of_nodes(offer, counted_kinds),
        *_of_limits(kind.partition, has, gets),
        *_of_rivals(offer, needed if constraint is None else None, rivals, left),
        *_of_slices(offer, devices),
    ]
    return Selection(
        offer=offer,
        device=device,
        devices_per_node=devices or max(1, gets.cpus),
        nodes=gets.nodes,
        cpus_per_node=gets.cpus,
        memory_mb=gets.memory_mb,
        constraint=needed,
        remarks=tuple(remarks),
    )


class _Amounts(NamedTuple):
    """What nodes have, or what a job gets of it."""

    nodes: int
    cpus: int  # of a node
    memory_mb: int | None  # of a node; None if it is not known

    def within(self, limits: PartitionLimits | None) -> _Amounts:
        """What a job of a partition gets."""
        if limits is None:
            return self
        memory_mb = self.memory_mb
        if memory_mb is not None:
            memory_mb = _at_most(memory_mb, limits.most_memory_mb(self.cpus))
        nodes, cpus = _at_most(self.nodes, limits.nodes), _at_most(self.cpus, limits.cpus_per_node)
        return _Amounts(nodes, cpus, memory_mb)


def _at_most(amount: int, limit: int | None) -> int:
    return amount if limit is None else min(amount, max(1, limit))


def _of_limits(partition: str, has: _Amounts, gets: _Amounts) -> list[str]:
    names = ("nodes", "cores of a node", "MB of a node")
    amounts = zip(gets, has, names, strict=True)
    less = [f"{part} of {whole} {name}" for part, whole, name in amounts if part != whole]
    return [f"partition {partition} gives a job at most {', '.join(less)}"] if less else []


def _of_nodes(offer: Offer, kinds: Sequence[NodeKind]) -> list[str]:
    """Remarks on nodes that are not counted, and on a partition that takes no jobs."""
    kind, remarks = offer.kind, []
    if not kind.is_up:
        remarks.append(f"partition {kind.partition} is down and takes no jobs now")
    if kind.time_limit_s is not None and kind.time_limit_s < SHORTEST_JOB_S:
        remarks.append(
            f"partition {kind.partition} ends jobs after {kind.time_limit_s / 60:g} min, which is "
            "too short for any cell; take another"
        )
    apart = unusable_in(kinds)
    if apart:
        count, whole = sum(apart.values()), sum(each.nodes for each in kinds)
        what = "not counted" if count < whole else "counted, though none is usable"
        remarks.append(f"{what}: {count} of {counted(whole, 'node')} ({in_words(apart)})")
    return remarks


def _of_rivals(
    offer: Offer, constraint: str | None, rivals: Sequence[NodeKind], left: Sequence[NodeKind]
) -> list[str]:
    """Remarks on other kinds of node that have the same GPUs, or cores for the same workers."""
    remarks = []
    shown_rivals = [rival for rival in rivals if rival not in left]
    name = offer.gpu_type or ("GPUs" if offer.gpus else "cores")
    if constraint and shown_rivals:
        count = sum(each.nodes for each in shown_rivals)
        remarks.append(
            f"slurm.constraint: {constraint} leaves out {counted(count, 'node')} of partition "
            f"{offer.kind.partition} with {name} too, but other features; take it out if these "
            "nodes are alike all the same"
        )
    if left:
        listed = "; ".join(kind_text([each]) for each in (offer.kind, *left))
        differing = [telling(each.features, [offer.kind.features]) for each in left]
        others = " or ".join(dict.fromkeys(feature for feature in differing if feature))
        remarks.append(
            f"jobs may run on more than one kind of node with {name} ({listed}): no feature leaves "
            "the others out, so cores and memory are those of the smallest"
            + (f"; --constraint {others} takes others alone" if others else "")
        )
    return remarks


def kind_text(kinds: Sequence[NodeKind]) -> str:
    """``3 nodes with 4x a100, 512000 MB (ib)``: the sum of equal kinds."""
    kind, count = kinds[0], sum(each.nodes for each in kinds)
    gpus = " and ".join(f"{number}x {name or 'GPU'}" for name, number in kind.gpus)
    text = f"{counted(count, 'node')} with {gpus or 'no GPU'}, {_memory_text(kind)}"
    return f"{text} ({','.join(kind.features)})" if kind.features else text


def _of_slices(offer: Offer, devices: int) -> list[str]:
    if not offer.is_slice:
        return []
    advice = (
        "so a node is one device here"
        if devices == 1
        else f"so cells on {devices} devices of a node will fail; write devices_per_node: 1"
    )
    return [f"{SLICES_ALONE}, {advice}"]


def fitting_accounts(
    names: Iterable[str], gpu_type: str | None, types: Iterable[str] = ()
) -> list[str]:
    """Accounts, those first whose name fits the devices: ``lab_gpu`` and ``lab@a100`` for an a100.

    ``types`` are of every GPU of the cluster; ``gpu_type`` is None for CPU workers.
    """
    mine = _words(gpu_type or "")
    others = set().union(*map(_words, types)) - mine

    def misfit(name: str) -> int:
        words = _words(name)
        says_cpu = any("cpu" in word for word in words)
        says_gpu = any("gpu" in word for word in words)
        if gpu_type is None:
            if says_cpu and not says_gpu:
                return 0
            return 2 if says_gpu or words & others else 1
        if words & mine:
            return 0
        if says_gpu:
            return 1
        return 3 if says_cpu or words & others else 2

    return sorted(names, key=misfit)


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))
