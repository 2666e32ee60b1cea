"""The partitioner's formulas again, one partition at a time: what the programme is held against."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, product

from ddlbench.planning.partition import Chain, Level, MemoryLimit
from ddlbench.planning.schedules.orders import warmups

Cut = tuple[int, int, int]  # first node, node behind the last, replicas


def partitions(first: int, last: int, machines: int, straight: bool) -> Iterator[list[Cut]]:
    """Every way to give nodes [first, last) to exactly so many machines."""
    for stages in range(1, min(machines, last - first) + 1):
        for inner in combinations(range(first + 1, last), stages - 1):
            ends = [first, *inner, last]
            most = 1 if straight else machines - stages + 1
            for replicas in product(range(1, most + 1), repeat=stages):
                if sum(replicas) == machines:
                    yield list(zip(ends[:-1], ends[1:], replicas, strict=True))


def period(
    chain: Chain, cuts: Sequence[Cut], level: Level, model: str, *, inner: int = 1, below=None
) -> float:
    """Seconds per mini-batch of one partition on one level."""
    return max(
        stage_cost(chain, cut, level, model, first=position == 0, inner=inner, below=below)
        for position, cut in enumerate(cuts)
    )


def stage_cost(
    chain: Chain, cut: Cut, level: Level, model: str, *, first: bool, inner: int, below
) -> float:
    start, last, r = cut
    bandwidth = level.bandwidth_bytes_per_s
    time = below(start, last) if below else sum_of(chain, "time_s", start, last)
    weights = sum_of(chain, "parameter_bytes", start, last)
    a_in = chain.nodes[start - 1].output_bytes
    a_out = chain.nodes[last - 1].output_bytes
    if model == "paper":
        stage = max(time, 2 * (r - 1) * weights / bandwidth) / r
        return stage if first else max(stage, 2 * a_in / bandwidth)
    reduce = 4 * (r - 1) * weights / (bandwidth * r)
    if first:
        return (time + reduce / inner) / r
    crossing = [2.0 * a_in / (bandwidth * r)]
    if last < len(chain):
        crossing.append(2.0 * a_out / (bandwidth * r))
    return max((time + reduce) / r, *crossing)


def sum_of(chain: Chain, what: str, first: int, last: int) -> float:
    """A difference of running sums, as the release has it."""
    until = before = 0.0
    for number, node in enumerate(chain.nodes[:last]):
        until += getattr(node, what)
        if number < first:
            before += getattr(node, what)
    return until - before


def best_period(chain: Chain, levels: Sequence[Level], model: str, straight: bool) -> float:
    """Least period over all partitions of all levels."""

    @cache
    def solve(depth: int, first: int, last: int) -> float:
        if depth < 0:
            return sum_of(chain, "time_s", first, last)
        level = levels[depth]
        inner = levels[depth - 1].machines if depth else 1
        return min(
            (
                period(
                    chain,
                    cuts,
                    level,
                    model,
                    inner=inner,
                    below=lambda i, j: solve(depth - 1, i, j),
                )
                for cuts in partitions(first, last, level.machines, straight)
            ),
            default=math.inf,
        )

    return solve(len(levels) - 1, 0, len(chain))


def fits(chain: Chain, cuts: Sequence[Cut], memory: MemoryLimit) -> bool:
    """Whether each device holds what its stage keeps, by the schedule's own warm-up."""
    waiting = warmups([r for _, _, r in cuts], memory.extra_warmup)
    for (first, last, _), count in zip(cuts, waiting, strict=True):
        nodes = chain.nodes[first:last]
        weights = sum(node.parameter_bytes for node in nodes)
        saved = sum(node.saved_bytes for node in nodes)
        once = weights * (1 + memory.optimizer_states) + sum(n.buffer_bytes for n in nodes)
        if (count + 1) * (saved + weights) + once + chain.fixed_bytes > memory.limit_bytes:
            return False
    return True


def graph_line(
    name: str,
    layer: str = "Conv2d(3, 8)",
    *,
    time_ms: object = 0.0,
    output: object = 0.0,
    weights: object = 0.0,
    stage: str = "",
) -> str:
    """A node of PipeDream's ``graph.txt``; a third of the time is the forward pass's."""
    forward, backward = (
        (time_ms / 3, time_ms * 2 / 3) if isinstance(time_ms, int | float) else (time_ms, 0.0)
    )
    return (
        f"{name} -- {layer} -- forward_compute_time={forward}, backward_compute_time={backward}, "
        f"activation_size={output}, parameter_size={weights}{stage}"
    )
