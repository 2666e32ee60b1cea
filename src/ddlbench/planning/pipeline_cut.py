"""Where to cut a network for stages whose replicas are given.

::

    blocks    | a | b | c | d | e | f |
    replicas  |   2   |   1   |   1   |       dearest stage: max over s of cost_s / r_s

``r_s`` replicas take every ``r_s``-th mini-batch each, so the stage costs ``cost_s / r_s`` of a
mini-batch. The dearest stage is the period of a pipeline without a bubble. Among the cuts with the
least period, the one that sends least is taken: slack of the other stages costs nothing.

Unlike :func:`ddlbench.planning.partition.partition` this needs no profile and no links, and takes
the replicas as they are.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

__all__ = ["even_blocks", "even_costs"]


def even_costs(
    costs: Sequence[float], sent: Sequence[float], replicas: Sequence[int]
) -> tuple[int, ...]:
    """Blocks of each stage so that the dearest is as cheap as can be.

    Args:
        costs: of each block, in any unit; at least as many as stages.
        sent: what crosses a cut behind each block, in any unit.
        replicas: of each stage, first to last.
    """
    return _even_costs(tuple(costs), tuple(sent), tuple(replicas))


@lru_cache(maxsize=4096)
def _even_costs(
    costs: tuple[float, ...], sent: tuple[float, ...], replicas: tuple[int, ...]
) -> tuple[int, ...]:
    """One network is cut alike in many cells."""
    until = [0.0, *accumulate(costs)]

    def share(first: int, last: int, count: int) -> float:
        return (until[last] - until[first]) / count

    period, _ = _best(len(costs), replicas, share, max)
    within = period * (1 + 1e-12)  # sums of floats

    def leaves(first: int, last: int, count: int) -> float:
        if share(first, last, count) > within:
            return math.inf
        return sent[last - 1] if last < len(costs) else 0.0

    return _best(len(costs), replicas, leaves, operator.add)[1]


def _best(
    blocks: int,
    replicas: Sequence[int],
    cost: Callable[[int, int, int], float],
    join: Callable[[float, float], float],
) -> tuple[float, tuple[int, ...]]:
    """The least cost of all stages joined, and their lengths; the earliest cut among equal ones.

    ``cost`` takes a stage's first block, the one behind its last, and its replicas.
    """
    first, *others = replicas
    # best[n]: the first n blocks in the stages so far, and the lengths of these.
    best: dict[int, tuple[float, tuple[int, ...]]] = {
        n: (cost(0, n, first), (n,)) for n in range(1, blocks + 1)
    }
    for count in others:
        best = {
            n: min(
                (join(before, cost(k, n, count)), (*lengths, n - k))
                for k, (before, lengths) in best.items()
                if k < n
            )
            for n in range(min(best) + 1, blocks + 1)
        }
    return best[blocks]


def even_blocks(blocks: int, replicas: Sequence[int]) -> tuple[int, ...]:
    """As many blocks for each replica, one more for the first ones; at least one for each."""
    devices = sum(replicas)
    each, more = divmod(blocks, devices)
    ends = [each * until + min(until, more) for until in accumulate(replicas)]
    return tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))
