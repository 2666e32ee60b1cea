"""CPU affinity as a result records it."""

from __future__ import annotations

import os

import pytest

from ddlbench.runtime.launch import compact, own_cores


@pytest.mark.parametrize(
    ("cores", "text"),
    [
        ({0, 1, 2, 3, 8}, "0-3,8"),
        ({5}, "5"),
        ({7, 6}, "6-7"),
        ({0, 2, 4}, "0,2,4"),
        (set(range(128)), "0-127"),
        (set(), ""),
    ],
)
def test_ranges(cores, text):
    assert compact(cores) == text


def test_own_cores_are_the_affinity():
    before = os.sched_getaffinity(0)
    core = min(before)
    try:
        os.sched_setaffinity(0, {core})
        assert own_cores() == str(core)
    finally:
        os.sched_setaffinity(0, before)
    assert own_cores() == compact(before)
