"""Rank-based intervals of a median, against the binomial they come from."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from ddlbench.experiment.intervals import is_known, median_interval


def test_one_value_has_no_interval():
    found = median_interval([3.0])
    assert found.median == 3.0
    assert math.isnan(found.low)
    assert not is_known(found)


def test_few_values_have_their_range_with_its_coverage():
    found = median_interval([3.0, 1.0, 2.0])
    assert (found.median, found.low, found.high) == (2.0, 1.0, 3.0)
    assert found.coverage == pytest.approx(0.75)


@pytest.mark.parametrize("count", [6, 9, 20, 101, 1500])
def test_ranks_are_the_widest_that_leave_95_percent(count):
    found = median_interval(list(range(1, count + 1)))
    rank = int(found.low)
    assert found.high == count + 1 - rank
    assert found.coverage == pytest.approx(1 - 2 * stats.binom.cdf(rank - 1, count, 0.5))
    assert found.coverage >= 0.95 > 1 - 2 * stats.binom.cdf(rank, count, 0.5)
