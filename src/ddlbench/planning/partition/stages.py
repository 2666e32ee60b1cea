"""A partition: what the programme found, in the words of whoever runs or prints it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddlbench.experiment.errors import ConfigError
from ddlbench.planning.partition.chain import Chain
from ddlbench.planning.partition.cost import Level, cost_model
from ddlbench.planning.partition.memory import MemoryLimit
from ddlbench.planning.partition.programme import Piece, solve
from ddlbench.planning.warmup import warmups

__all__ = ["Partition", "Stage", "balance", "partition", "stage_memory_bytes"]

NO_LINKS = float("inf")  # bytes per second: cuts cost nothing


@dataclass(frozen=True)
class Stage:
    """Nodes ``[first, last)`` of the network on so many replicas."""

    first: int
    last: int
    replicas: int


@dataclass(frozen=True)
class Partition:
    """Stages from the input to the loss, and the seconds per mini-batch they promise."""

    stages: tuple[Stage, ...]
    period_s: float

    @property
    def replicas(self) -> tuple[int, ...]:
        """Replicas of each stage."""
        return tuple(stage.replicas for stage in self.stages)

    def to_dict(self) -> dict[str, Any]:
        """The form that plans and ``ddlbench partition --json`` hold."""
        return {
            "stages": [[stage.first, stage.last, stage.replicas] for stage in self.stages],
            "period_s": self.period_s,
        }


def partition(
    chain: Chain,
    levels: Sequence[Level],
    model: str = "released",
    straight: bool = False,
    memory: MemoryLimit | None = None,
) -> Partition:
    """Cut a network into the stages of least period.

    Args:
        chain: the network at the batch size of one replica.
        levels: the machine, innermost level first (devices of a node, then nodes).
        model: ``released`` or ``paper``, see :mod:`ddlbench.planning.partition.cost`.
        straight: as many stages as devices, no replication.
        memory: what a device has; None for no limit.

    Raises:
        ConfigError: there is no such model or level, or no partition exists or fits.
    """
    if not levels:
        raise ConfigError("no machines; write how many devices there are, innermost level first")
    period, pieces = solve(chain, levels, cost_model(model), straight)
    if memory is not None and pieces and not _fits(pieces, chain, memory):
        period, pieces = solve(chain, levels, cost_model(model), straight, memory)
    if not pieces:
        raise ConfigError(_why_none(chain, levels, straight, memory))
    return Partition(tuple(Stage(p.first, p.last, p.replicas) for p in pieces), period)


def stage_memory_bytes(found: Partition, chain: Chain, memory: MemoryLimit) -> tuple[float, ...]:
    """Bytes that one device of each stage needs, by the terms of a memory limit."""
    waiting = warmups(found.replicas, memory.extra_warmup)
    return tuple(
        memory.stage_bytes(chain, stage.first, stage.last, count + 1)
        for stage, count in zip(found.stages, waiting, strict=True)
    )


def balance(chain: Chain, partitions: int) -> tuple[int, ...]:
    """Nodes of each partition so that the slowest takes least time; torchgpipe's ``balance``.

    Unlike ``torchgpipe.balance.balance_by_time`` the result is optimal. Links are not counted.

    Raises:
        ConfigError: there are fewer nodes than partitions.
    """
    found = partition(chain, [Level(partitions, NO_LINKS)], "paper", straight=True)
    return tuple(stage.last - stage.first for stage in found.stages)


def _fits(pieces: Sequence[Piece], chain: Chain, memory: MemoryLimit) -> bool:
    stages = tuple(Stage(piece.first, piece.last, piece.replicas) for piece in pieces)
    return max(stage_memory_bytes(Partition(stages, 0.0), chain, memory)) <= memory.limit_bytes


def _why_none(
    chain: Chain, levels: Sequence[Level], straight: bool, memory: MemoryLimit | None
) -> str:
    devices = 1
    for level in levels:
        devices *= level.machines
    if straight and devices > len(chain):
        return (
            f"{len(chain)} nodes cannot make {devices} stages without replication; "
            f"use at most {len(chain)} devices or leave --straight out"
        )
    if memory is None:
        return f"no partition of {len(chain)} nodes over {devices} devices exists"
    alone = max(memory.stage_bytes(chain, n, n + 1, 1) for n in range(len(chain)))
    return (
        f"the network does not fit: no partition over {devices} devices keeps each within "
        f"{memory.limit_bytes:.0f} bytes (its largest node alone needs {alone:.0f}); give more "
        "memory, more devices or a smaller batch"
    )
