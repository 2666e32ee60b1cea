"""Which pairs are slower than their like: a bad cable, a wrong slot, a busy switch.

A pair is slow when its bandwidth is below 0.8 of the median pair of the same level (within a node,
or between nodes). One run of a link test varies by 5 to 10 %; medians of several runs vary less, so
a pair that lacks a fifth is no accident. Of two pairs none can be told to be the slow one, so a
level needs three.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ddlbench.experiment.links import PairMatrix, SlowPair

__all__ = ["SLOW_BELOW", "levels_of", "slow_pairs", "with_slow_pairs"]

SLOW_BELOW = 0.8
_LEAST_PAIRS = 3


def levels_of(pair: PairMatrix) -> dict[str, list[tuple[int, int]]]:
    """Ordered pairs (row, column) of a pair matrix by level, "node" or "network"."""
    nodes = pair.nodes
    levels: dict[str, list[tuple[int, int]]] = {}
    for row, sender in enumerate(nodes):
        for column, receiver in enumerate(nodes):
            if row != column:
                level = "node" if sender == receiver else "network"
                levels.setdefault(level, []).append((row, column))
    return levels


def slow_pairs(pair: PairMatrix, below: float = SLOW_BELOW) -> tuple[SlowPair, ...]:
    """Entries of ``slow_pairs`` of links.json, slowest first.

    Args:
        pair: an entry of ``pairs``.
        below: ratio to the median of the level under which a pair is slow.
    """
    bandwidth = pair.bandwidth_bytes_per_s
    found = []
    for places in levels_of(pair).values():
        known = {(i, j): value for i, j in places if (value := bandwidth[i][j]) is not None}
        if len(known) < _LEAST_PAIRS:
            continue
        median = float(np.median(list(known.values())))
        for (i, j), value in known.items():
            ratio = value / median
            if ratio < below:
                found.append(SlowPair(i, j, ratio))
    return tuple(sorted(found, key=lambda entry: entry.bandwidth_ratio))


def with_slow_pairs(pair: PairMatrix) -> PairMatrix:
    """The same matrix with its slow pairs."""
    return replace(pair, slow_pairs=slow_pairs(pair))
