"""Which blocks a pipeline puts on which device.

::

    blocks   | a | b | c | d | e |        cut so that the dearest partition is as cheap as can be
    devices  |---0---|---1---|-2-|
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ddlbench.experiment.errors import ConfigError
from ddlbench.planning.plan import Plan
from ddlbench.predict.workload import Block, Workload

__all__ = ["balanced", "partitions_of"]


def partitions_of(workload: Workload, plan: Plan, micro_batch: float) -> list[tuple[Block, ...]]:
    """The blocks of each device of a pipeline or model-parallel plan.

    ``5+9`` and ``blocks`` are exact. For ``time`` and ``size`` the run lets torchgpipe profile the
    network at its start; here the profile's times, or bytes, are balanced, which may cut elsewhere.

    Raises:
        ConfigError: there are fewer blocks than devices, or the numbers do not add up.
    """
    blocks = workload.blocks
    parts = len(plan.processes[0].devices)
    rule = str(plan.details["balance"])
    if len(blocks) < parts:
        raise ConfigError(
            f"{workload.network} has {len(blocks)} blocks, too few for {parts} devices; "
            "use fewer devices"
        )
    if rule == "time":
        costs = [b.forward.at(micro_batch) + b.backward.at(micro_batch) for b in blocks]
        counts = balanced(costs, parts)
    elif rule == "size":
        costs = [2 * b.parameter_bytes + plan.cell.batch_size * b.saved_bytes for b in blocks]
        counts = balanced(costs, parts)
    elif rule == "blocks":
        counts = [len(blocks) // parts + (p < len(blocks) % parts) for p in range(parts)]
    else:
        counts = [int(count) for count in rule.split("+")]
    if sum(counts) != len(blocks) or len(counts) != parts:
        raise ConfigError(
            f"balance {rule} deals {sum(counts)} blocks to {len(counts)} devices; "
            f"{workload.network} has {len(blocks)} blocks, the cell {parts} devices"
        )
    ends = list(itertools.accumulate(counts))
    return [blocks[end - count : end] for count, end in zip(counts, ends, strict=True)]


def balanced(costs: Sequence[float], parts: int) -> list[int]:
    """Lengths of ``parts`` contiguous, non-empty runs whose dearest is as cheap as possible."""
    total = [0.0, *itertools.accumulate(costs)]
    count = len(costs)
    # best[p][n]: dearest run of the first n costs in p runs, and where the last of them begins.
    best: list[dict[int, tuple[float, int]]] = [{n: (total[n], 0) for n in range(1, count + 1)}]
    for part in range(2, parts + 1):
        before = best[-1]
        best.append(
            {
                n: min((max(before[k][0], total[n] - total[k]), k) for k in range(part - 1, n))
                for n in range(part, count + 1)
            }
        )
    counts, end = [], count
    for table in reversed(best):
        begin = table[end][1]
        counts.append(end - begin)
        end = begin
    return counts[::-1]
