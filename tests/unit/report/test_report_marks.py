"""What stands in the place of a number."""

import math
from types import SimpleNamespace

import pytest

from ddlbench.report.labels import speedup_mark, status_mark

UNLIKE = "unlike_base"


@pytest.mark.parametrize(
    ("status", "mark"),
    [("ok", ""), ("out_of_memory", "OOM"), ("timeout", "timeout"), ("not run", "not run")],
)
def test_a_status_is_its_own_mark(status, mark):
    assert status_mark(status) == mark


@pytest.mark.parametrize(
    ("status", "no_speedup", "speedup", "mark"),
    [
        ("ok", "", 1.7, ""),
        ("ok", UNLIKE, 1.7, ""),  # of the repeats that have one
        ("ok", "", math.nan, "no base"),
        ("ok", UNLIKE, math.nan, "unlike base"),
        ("out_of_memory", UNLIKE, math.nan, "OOM"),
    ],
)
def test_a_missing_speedup_says_why(status, no_speedup, speedup, mark):
    row = SimpleNamespace(status=status, no_speedup=no_speedup)
    assert speedup_mark(row, speedup) == mark
