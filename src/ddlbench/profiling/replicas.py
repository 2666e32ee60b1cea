"""How much slower a replica is while others compute on the same node, without talking.

::

    round 0:  P=1 [0]          P=2 [0 1]        P=3 [0 1 2]     ...   the others wait
    round 1:  P=1 [0]          P=2 [0 1]        ...                   so drift hits every P alike

    slowdown(P) = median over rounds of  mean step of the P replicas / that of P=1 in the same round
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from ddlbench.profiling.budget import WINDOW_S, passes
from ddlbench.profiling.samples import median_with_interval
from ddlbench.profiling.steps import StepRunner
from ddlbench.runtime.rendezvous import barrier

__all__ = ["run_rounds", "slowdowns"]

_FEWEST_ROUNDS = 2
_MOST_ROUNDS = 9


def run_rounds(
    runner: StepRunner, store: dist.Store, rank: int, replicas: int, budget_s: float
) -> dict[str, list[float]]:
    """This replica's mean seconds of a step, by the number of replicas, one entry a round."""
    runner.run(1)
    (warm_s,), _ = runner.run(1)
    if rank == 0:
        store.set("rounds", json.dumps(_plan(warm_s, replicas, budget_s)))
    rounds, steps = json.loads(store.get("rounds"))
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        for count in range(1, replicas + 1):
            barrier(store, f"round {number} of {count}", replicas)
            if rank < count:
                step_s, _ = runner.run(steps)
                found.setdefault(str(count), []).append(sum(step_s) / steps)
    barrier(store, "rounds over", replicas)
    return found


def _plan(step_s: float, replicas: int, budget_s: float) -> tuple[int, int]:
    """Rounds, and steps of each number of replicas in a round."""
    steps = max(1, round(WINDOW_S / step_s))
    return passes(budget_s, replicas * steps * step_s, _FEWEST_ROUNDS, _MOST_ROUNDS), steps


def slowdowns(reports: Sequence[dict[str, list[float]]]) -> list[dict[str, Any]]:
    """Entries of profile.json from the seconds of every replica, in the order of ranks.

    The first entry is 1 by definition; it is all there is where nothing was run.
    """
    entries: list[dict[str, Any]] = [{"replicas": 1, "slowdown": 1.0, "interval": None}]
    alone = reports[0]["1"] if reports else []
    for count in range(2, len(reports) + 1):
        of_rounds = zip(*(report[str(count)] for report in reports[:count]), strict=True)
        ratios = [sum(s) / count / base for s, base in zip(of_rounds, alone, strict=True)]
        slowdown, interval = median_with_interval(ratios)
        entries.append({"replicas": count, "slowdown": slowdown, "interval": interval})
    return entries
