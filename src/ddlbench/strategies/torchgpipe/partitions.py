"""The partitions of a pipeline: each device's blocks, and their peak memory.

::

    blocks   | a | b | c | d | e |        cut so that the maximum cost of a partition is minimal
    devices  |---0---|---1---|-2-|

The memory of each micro-batch in flight depends on recomputation (Huang et al. 2019, section 2.3;
in torchgpipe: Kim et al. 2020, section 3.2.3)::

    never          everything that autograd saves
    except_last    its input only, but everything for the last micro-batch
    always         its input only; one is recomputed at a time
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddlbench.common.errors import ConfigError
from ddlbench.planning.memory import backward_peak_bytes, persistent_bytes
from ddlbench.planning.pipeline_stages import even_blocks, even_costs

if TYPE_CHECKING:
    from ddlbench.experiment.cell import Cell
    from ddlbench.planning.plan import Plan
    from ddlbench.planning.workload import Block, Workload


def partitions_of(
    workload: Workload, plan: Plan, rule: str, by_profile: Sequence[int], micro_batch: float
) -> list[tuple[Block, ...]]:
    """The blocks of each device of a pipeline or model-parallel plan.

    Balances ``5+9``, ``blocks`` and ``profile`` (whose cut is in the plan) are exact. For ``time``
    and ``size`` torchgpipe profiles the network when a run starts. Here the profile's times or
    bytes are balanced, which may give another cut.

    Raises:
        ConfigError: there are fewer blocks than devices, or the numbers do not add up.
    """
    blocks = workload.blocks
    parts = len(plan.processes[0].devices)
    if len(blocks) < parts:
        raise ConfigError(
            f"{workload.network} has {len(blocks)} blocks, too few for {parts} devices; "
            "use fewer devices"
        )
    if rule == "time":
        costs = [b.forward.at(micro_batch) + b.backward.at(micro_batch) for b in blocks]
        counts = _balanced(costs, parts)
    elif rule == "size":
        costs = [2 * b.parameter_bytes + plan.cell.batch_size * b.saved_bytes for b in blocks]
        counts = _balanced(costs, parts)
    elif rule == "profile":
        counts = list(by_profile)
    elif rule == "blocks":
        counts = list(even_blocks(len(blocks), (1,) * parts))
    else:
        counts = [int(count) for count in rule.split("+")]
    if sum(counts) != len(blocks) or len(counts) != parts:
        raise ConfigError(
            f"balance {rule} deals {sum(counts)} blocks to {len(counts)} devices; "
            f"{workload.network} has {len(blocks)} blocks, the cell {parts} devices"
        )
    ends = list(itertools.accumulate(counts))
    return [blocks[end - count : end] for count, end in zip(counts, ends, strict=True)]


def _balanced(costs: Sequence[float], parts: int) -> list[int]:
    """Blocks of each partition, such that the maximum cost of a partition is minimal."""
    return list(even_costs(costs, [0.0] * len(costs), (1,) * parts))


def partition_bytes(
    workload: Workload,
    cell: Cell,
    partitions: Sequence[Sequence[Block]],
    chunks: int,
    checkpoint: str,
) -> tuple[int, ...]:
    """Peak bytes of every partition."""
    micro_batch = cell.batch_size / chunks
    peaks = []
    for blocks in partitions:
        everything = micro_batch * sum(block.saved_bytes for block in blocks)
        boundary = micro_batch * blocks[0].input_bytes
        # Memory of waiting micro-batches while the first, then the second, goes backward.
        waiting = everything if checkpoint == "never" else boundary
        first = (chunks - 1) * waiting + backward_peak_bytes(blocks, micro_batch)
        if checkpoint == "always":
            first += boundary
        peak = first
        if chunks > 1:
            recomputed = boundary if checkpoint != "never" else 0.0
            second = (chunks - 2) * waiting + recomputed
            second += backward_peak_bytes(blocks, micro_batch, gradients_exist=True)
            peak = max(first, second)
        persistent = persistent_bytes(blocks, cell.momentum)
        peaks.append(round(workload.fixed_memory_bytes + persistent + peak))
    return tuple(peaks)
