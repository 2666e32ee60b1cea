"""Cut a chain of layers into stages so that the slowest is as fast as can be."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["cut_evenly"]

HALVINGS = 60
"""Bisection steps: the slowest stage to a share of 2^-60 of the whole, below rounding."""


def cut_evenly(times_s: Sequence[float], stages: int) -> list[int]:
    """Where each stage ends (one past its last layer), the slowest stage as short as possible.

    A stage has at least one layer; with more stages than layers the last stages are left out.
    """
    stages = min(stages, len(times_s))
    low, high = max(times_s), sum(times_s)
    if len(_filled(times_s, low)) > stages:
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if len(_filled(times_s, middle)) > stages:
                low = middle
            else:
                high = middle
    else:
        high = low
    return _with_more(_filled(times_s, high), stages)


def _filled(times_s: Sequence[float], most_s: float) -> list[int]:
    """Ends of stages that take layers as long as they stay within ``most_s``."""
    ends, held = [], 0.0
    for index, time in enumerate(times_s):
        if held and held + time > most_s:
            ends.append(index)
            held = 0.0
        held += time
    return [*ends, len(times_s)]


def _with_more(ends: list[int], stages: int) -> list[int]:
    """Further ends until there are ``stages``: the slowest stage gets no slower by them."""
    missing = stages - len(ends)
    free = [end for end in range(1, ends[-1]) if end not in ends]
    return sorted([*ends, *free[:missing]]) if missing > 0 else ends
