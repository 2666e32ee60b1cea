"""Cores that this process may run on, as a result records them."""

from __future__ import annotations

import os
from collections.abc import Iterable

__all__ = ["compact", "own_cores"]


def own_cores() -> str:
    """This process's CPU affinity, for example ``0-3,8``.

    Ask before numerical libraries compute: an OpenMP library may bind its first thread to one core.
    """
    return compact(os.sched_getaffinity(0))


def compact(cores: Iterable[int]) -> str:
    """Numbers as ranges, in the words of Linux's own lists: {0, 1, 2, 3, 8} is ``0-3,8``."""
    ranges: list[list[int]] = []
    for core in sorted(set(cores)):
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
