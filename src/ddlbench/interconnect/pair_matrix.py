"""Pair matrices of links.json (row = sender, column = receiver) and their slow pairs.

A bad cable, a wrong slot or a busy switch makes a pair slow: its bandwidth is below 0.8 of the
median pair of the same level (within a node, or between nodes). One run of a link test varies by 5
to 10 %, and medians of several runs vary less, so a fifth less is no accident. A level needs three
pairs, as nothing says which of two is the slow one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.links import PairMatrix, SlowPair

Matrix = list[list[float | None]]


def pair_matrix(
    *,
    scope: str,
    method: str,
    endpoints: Sequence[str],
    nodes: Sequence[int],
    bandwidth_bytes_per_s: Matrix,
    latency_s: Matrix,
    access: str | None = None,
    direction: str = "unidirectional",
    operation: str | None = None,
    repeats: int = 1,
    sampled: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """An entry of ``pairs`` as in links.json, without its slow pairs."""
    entry = {
        "scope": scope,
        "method": method,
        "access": access,
        "direction": direction,
        "operation": operation,
        "node_type": None,
        "endpoints": list(endpoints),
        "nodes": list(nodes),
        # A link that carries nothing was not measured.
        "bandwidth_bytes_per_s": [
            [value or None for value in row] for row in bandwidth_bytes_per_s
        ],
        "latency_s": latency_s,
        "repeats": repeats,
        "slow_pairs": [],
    }
    return entry if sampled is None else {**entry, "sampled": sampled}


_BEYOND_ANY_LINK = 1e30


def finite(value: float) -> float | None:
    """``value``; None for nan, inf and what no link can do, which are no measurements."""
    return value if abs(value) < _BEYOND_ANY_LINK else None


def peer_access(reach: Iterable[bool]) -> str | None:
    """``access`` of a matrix by whether each pair reaches its peer; None where pairs differ."""
    kinds = set(reach)
    return None if len(kinds) > 1 else "direct" if kinds.pop() else "staged"


def off_diagonal(size: int, value: Callable[[int, int], float | None]) -> Matrix:
    """The matrix of ``value(row, column)``, with None on the diagonal."""
    return [[None if i == j else value(i, j) for j in range(size)] for i in range(size)]


def scaled(matrix: Matrix, factor: float = 1.0, divisor: float = 1.0) -> Matrix:
    """Every value times ``factor``, over ``divisor``; None stays None, and overflow becomes it."""
    return [
        [None if value is None else finite(value * factor / divisor) for value in row]
        for row in matrix
    ]


def transposed(matrix: Matrix) -> Matrix:
    """Rows as columns."""
    return [list(column) for column in zip(*matrix, strict=True)]


def median_of_runs(runs: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The element-wise medians of the matrices of several runs, which are in the same order.

    Raises:
        ConfigError: the runs saw different devices or measured different things.
    """
    first = runs[0]
    kinds = [_kind(pair) for pair in first]
    for number, run in enumerate(runs[1:], start=2):
        if [_kind(pair) for pair in run] != kinds:
            raise ConfigError(
                f"run {number} measured other devices or other matrices than run 1: "
                "measure again while nothing changes on the node"
            )
    merged = []
    for index, pair in enumerate(first):
        same = [run[index] for run in runs]
        merged.append({**pair, "repeats": sum(entry["repeats"] for entry in same)})
        for key in ("bandwidth_bytes_per_s", "latency_s"):
            merged[-1][key] = _median([entry[key] for entry in same])
    return merged


def _kind(pair: dict[str, Any]) -> tuple[Any, ...]:
    return (
        *(pair[key] for key in ("method", "access", "direction", "operation")),
        tuple(pair["endpoints"]),
    )


def _median(matrices: Sequence[Matrix]) -> Matrix:
    """Element by element; None where no run has a value."""
    values = np.array(matrices, dtype=float)  # None becomes nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of elements that are nan in all runs
        medians = np.nanmedian(values, axis=0)
    return [[finite(float(value)) for value in row] for row in medians]


SLOW_BELOW = 0.8
_LEAST_PAIRS = 3


def slow_pairs(pair: PairMatrix, below: float = SLOW_BELOW) -> tuple[SlowPair, ...]:
    """Pairs below ``below`` times the median of their level, slowest first."""
    levels: dict[bool, dict[tuple[int, int], float]] = {}  # within a node, between nodes
    for (i, sender), (j, receiver) in permutations(enumerate(pair.nodes), 2):
        bandwidth = pair.bandwidth_bytes_per_s[i][j]
        if bandwidth is not None:
            levels.setdefault(sender == receiver, {})[i, j] = bandwidth
    slow = []
    for known in levels.values():
        if len(known) < _LEAST_PAIRS:
            continue
        median = float(np.median(list(known.values())))
        if median == 0:  # of which nothing is a fraction
            continue
        for (i, j), value in known.items():
            ratio = value / median
            if ratio < below:
                slow.append(SlowPair(i, j, ratio))
    return tuple(sorted(slow, key=lambda entry: entry.bandwidth_ratio))


def with_slow_pairs(pair: PairMatrix) -> PairMatrix:
    """The same matrix with its slow pairs."""
    return replace(pair, slow_pairs=slow_pairs(pair))
