"""The stages of a pipeline of single-stage processes: block ranges, and replicas of each.

::

    balance    work, size, blocks   block_table.csv      |
               5+9                  by hand              |-> stages [[first, last, replicas], ...]
               profile              the site's profile   |

``work`` evens out floating-point operations, most of a convolutional network's time, and is there
without a measurement. What it does not see - batch norm and ReLU, slow for their few operations,
and how fast a device is at which kernel - only a profile tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import links_file, profile_file
from ddlbench.experiment.profile import Profile, ProfileKey
from ddlbench.experiment.status import Reason
from ddlbench.planning.block_table import block_costs
from ddlbench.planning.link_bandwidth import bandwidth_bytes_per_s
from ddlbench.planning.measured_profile import profile_at
from ddlbench.planning.partition import (
    Chain,
    Level,
    MemoryLimit,
    Partition,
    Stage,
    chain_of_profile,
    partition,
)
from ddlbench.planning.pipeline_cut import even_blocks, even_costs

__all__ = [
    "BALANCE_OPTION",
    "NeedsProfile",
    "Stages",
    "check_enough",
    "measured_chain",
    "measured_files",
    "stages_of",
    "why_no_stages",
]

BALANCE_OPTION: dict[str, Any] = {
    "type": ["string", "integer"],
    "pattern": r"^(work|size|blocks|profile|[1-9]\d*(\+[1-9]\d*)*)$",
    "minimum": 1,
    "default": "work",
    "description": (
        "How blocks are dealt to stages: 'work' evens out floating-point operations, 'size' "
        "parameters, 'blocks' their number, 'profile' measured times, '5+9' says it by hand."
    ),
}

Stages = tuple[Stage, ...]


class NeedsProfile(ConfigError):  # noqa: N818 - what the plan asks for
    """The stages come from a profile, and it is not said of which site or not there."""


def why_no_stages(cell: Cell, balance: str, replicas: Sequence[int]) -> str | None:
    """Why the network cannot be cut so, as far as can be told without a profile; None if it can."""
    costs = block_costs(cell)
    parts = balance.split("+")
    if parts[0].isdigit():
        dealt = sum(map(int, parts))
        if len(parts) != len(replicas):
            return Reason(
                "wrong_balance",
                f"balance {balance} has {len(parts)} parts for {len(replicas)} stages",
            )
        if costs is not None and dealt != len(costs):
            return Reason(
                "wrong_balance",
                f"balance {balance} deals {dealt} blocks, {cell.network} has {len(costs)}",
            )
    elif balance != "profile":
        return _why_not_by_table(cell, balance, replicas)
    return None


def _why_not_by_table(cell: Cell, balance: str, replicas: Sequence[int]) -> str | None:
    costs = block_costs(cell)
    if costs is None:
        return Reason(
            "unknown_blocks",
            f"{cell.network} is not a built-in network, so its blocks are not known before it "
            f"runs; write balance: profile, or the blocks of each stage, as balance: 5+9",
        )
    least = sum(replicas) if balance == "blocks" else len(replicas)
    if len(costs) < least:
        return Reason(
            "too_few_blocks",
            f"{cell.network} has {len(costs)} blocks, too few for "
            f"{f'{least} devices' if balance == 'blocks' else f'{least} stages'}; "
            "use fewer devices or replicate stages",
        )
    return None


def stages_of(
    cell: Cell,
    balance: str,
    replicas: Sequence[int] | None,
    site: str | None,
    samples: int | None = None,
) -> tuple[Stages, float | None]:
    """The stages of a cell that :func:`why_no_stages` finds nothing against.

    Args:
        cell: the cell.
        balance: the rule.
        replicas: of each stage; None lets PipeDream's partitioner find them, too, for which
            ``balance`` must be ``profile``.
        site: whose profile and links are read.
        samples: of one forward pass, at which times are read; a whole mini-batch if left out.

    Returns:
        The stages, and the partitioner's seconds per mini-batch where it made them.

    Raises:
        NeedsProfile: no site is given, or it has no profile of the network.
        ConfigError: a file is wrong, or no partition exists.
    """
    if balance == "profile":
        chain = measured_chain(cell, site, samples or cell.batch_size)
        if replicas is None:
            found = _partition(cell, chain, str(site))
            return found.stages, found.period_s
        check_enough(cell, len(chain), len(replicas))
        times = [node.time_s for node in chain.nodes]
        counts = even_costs(times, [node.output_bytes for node in chain.nodes], replicas)
        return _stages(counts, replicas), None
    assert replicas is not None
    return _stages(_counts(cell, balance, replicas), replicas), None


def _counts(cell: Cell, balance: str, replicas: Sequence[int]) -> tuple[int, ...]:
    parts = balance.split("+")
    if parts[0].isdigit():
        return tuple(map(int, parts))
    costs = block_costs(cell)
    assert costs is not None
    if balance == "blocks":
        return even_blocks(len(costs), replicas)
    chosen = [cost.operations if balance == "work" else cost.parameter_bytes for cost in costs]
    return even_costs(chosen, [cost.output_bytes for cost in costs], replicas)


def _stages(counts: Sequence[int], replicas: Sequence[int]) -> Stages:
    ends = pairwise([0, *accumulate(counts)])
    return tuple(Stage(a, b, count) for (a, b), count in zip(ends, replicas, strict=True))


def check_enough(cell: Cell, blocks: int, stages: int) -> None:
    """Raise ConfigError unless there is a block for every stage."""
    if blocks < stages:
        raise ConfigError(f"{cell.network} has {blocks} blocks, too few for {stages} stages")


def measured_files(cell: Cell, site: str, with_links: bool = False) -> tuple[Path, ...]:
    """Files of a site that stages with balance ``profile`` are planned from."""
    profile = profile_file(site, ProfileKey.of(cell).id)
    return (profile, links_file(site, cell.fabric)) if with_links else (profile,)


def measured_chain(cell: Cell, site: str | None, samples: int) -> Chain:
    """The cell's blocks as a site measured them, at so many samples a pass.

    Raises:
        NeedsProfile: no site is given, or it has no profile of the network.
        ConfigError: the profile is wrong, or was not measured around that many samples.
    """
    return chain_of_profile(_profile(cell, site), samples)


def _profile(cell: Cell, site: str | None) -> Profile:
    if site is None:
        raise NeedsProfile(
            f"{cell.id}: balance profile is planned from a site's measurements, and no site is "
            "given; plan it where the site is known, or write balance: work"
        )
    (path,) = measured_files(cell, site)
    if not path.is_file():
        raise NeedsProfile(
            f"{cell.id}: balance profile needs {path}, which is not there; make it with: "
            f"snakemake --profile profiles/<slurm or local> {path}"
        )
    return profile_at(path)


def _partition(cell: Cell, chain: Chain, site: str) -> Partition:
    """PipeDream's programme over the devices of a node, then over nodes."""
    _, path = measured_files(cell, site, with_links=True)
    levels = []
    if cell.devices > 1 and not path.is_file():
        raise ConfigError(
            f"{cell.id}: balance profile needs {path}, which is not there; measure it with: "
            f"snakemake --profile profiles/<slurm or local> {path}"
        )
    if cell.devices_per_node > 1:
        levels.append(Level(cell.devices_per_node, bandwidth_bytes_per_s(path, "node")))
    if cell.nodes > 1:
        levels.append(Level(cell.nodes, bandwidth_bytes_per_s(path, "network")))
    levels = levels or [Level(1, float("inf"))]
    memory = _memory_limit(cell, _profile(cell, site))
    try:
        return partition(chain, levels, memory=memory)
    except ConfigError:
        if memory is None:
            raise
        # By the limit's terms nothing fits. They count a little too much, so the fastest partition
        # is planned, and its stages are looked at one by one (ddlbench.planning.stage_memory).
        return partition(chain, levels)


def _memory_limit(cell: Cell, profile: Profile) -> MemoryLimit | None:
    capacity = profile.device_memory_bytes
    if not capacity:
        return None
    extra = int(cell.option("extra_warmup", 0))
    return MemoryLimit(float(capacity), 1.0 if cell.momentum > 0 else 0.0, extra)
