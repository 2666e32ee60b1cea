"""Intervals: ranks against the binomial they come from, bootstraps against what they must hold."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import ddlbench
from ddlbench.common import statistics
from ddlbench.common.statistics import (
    is_known,
    mean_interval,
    median_interval,
    ratio_interval,
    scaled,
)

seconds = st.floats(min_value=1e-6, max_value=1e6)


def test_one_value_has_no_interval():
    actual = median_interval([3.0])
    assert actual.median == 3.0
    assert math.isnan(actual.low)
    assert math.isnan(actual.high)
    assert actual.ends() is None
    assert not is_known(actual)


def test_few_values_have_their_range_with_its_coverage():
    actual = median_interval([3.0, 1.0, 2.0])
    assert (actual.median, actual.low, actual.high) == (2.0, 1.0, 3.0)
    assert actual.coverage == pytest.approx(0.75)


@pytest.mark.parametrize("count", [6, 9, 20, 101, 1500, 10_001])
def test_ranks_are_the_widest_that_leave_95_percent(count):
    actual = median_interval(list(range(1, count + 1)))
    rank = int(actual.low)
    assert actual.high == count + 1 - rank
    assert actual.coverage == pytest.approx(1 - 2 * stats.binom.cdf(rank - 1, count, 0.5))
    assert actual.coverage >= 0.95 > 1 - 2 * stats.binom.cdf(rank, count, 0.5)


@given(st.lists(seconds, min_size=2, max_size=40))
def test_a_median_lies_in_its_interval(values):
    actual = median_interval(values)
    assert min(values) <= actual.low <= actual.median <= actual.high <= max(values)
    assert actual.median == np.median(values)
    assert actual.coverage >= 0.95 or (len(values) < 6 and actual.low == min(values))


@pytest.mark.parametrize(
    ("count", "coverage"), [(2, 0.5), (3, 0.75), (4, 0.875), (5, 0.9375), (6, 0.96875)]
)
def test_few_values_say_how_little_they_cover(count, coverage):
    actual = median_interval(list(range(count)))
    assert (actual.low, actual.high) == (0, count - 1)
    assert actual.coverage == pytest.approx(coverage)


def test_ranks_are_those_of_the_binomial_tables():
    actual = median_interval(list(range(1, 11)))
    assert (actual.low, actual.high) == (2, 9)  # n = 10: ranks 2 and 9, 97.9 %
    assert actual.coverage == pytest.approx(0.9785, abs=1e-4)


def test_an_interval_covers_as_often_as_it_says():
    random = np.random.default_rng(1)
    hits = [
        (actual := median_interval(list(random.lognormal(0, 1, 9)))).low <= 1 <= actual.high
        for _ in range(2000)
    ]
    assert np.mean(hits) == pytest.approx(actual.coverage, abs=0.015)


@given(st.lists(st.tuples(seconds, seconds), min_size=3, max_size=12))
def test_a_ratio_lies_in_its_interval_and_is_the_same_twice(pairs):
    base, cell = zip(*pairs, strict=True)
    actual = ratio_interval(base, cell)
    assert actual.low <= actual.median <= actual.high
    assert actual.median == pytest.approx(np.median(base) / np.median(cell))
    assert actual == ratio_interval(base, cell)


@pytest.mark.parametrize("pairs", [3, 5])
def test_the_interval_of_a_ratio_covers_it_as_often_as_it_says(pairs):
    random = np.random.default_rng(1)
    hits = []
    for _ in range(150):
        actual = ratio_interval(
            2 * random.lognormal(0, 0.1, pairs), random.lognormal(0, 0.1, pairs)
        )
        hits.append(actual.low <= 2 <= actual.high)
    assert np.mean(hits) == pytest.approx(actual.coverage, abs=0.08)


@pytest.mark.parametrize("count", [6, 10])
def test_the_interval_of_a_mean_covers_it_as_often_as_it_says(count, monkeypatch):
    monkeypatch.setattr(statistics, "_RESAMPLES", 999)
    random = np.random.default_rng(1)
    intervals = [mean_interval(random.normal(1, 0.3, count)) for _ in range(300)]
    covered = np.mean([low <= 1 <= high for low, high in intervals])
    assert 0.92 <= covered <= 0.97
    assert mean_interval(random.normal(1, 0.3, 5)) is None


def test_pairing_narrows_the_interval():
    drift = np.linspace(1, 3, 9)
    assert ratio_interval(2 * drift, drift).high == pytest.approx(2.0, rel=0.6)
    actual = ratio_interval([2.0] * 5, [1.0] * 5)
    assert (actual.low, actual.median, actual.high) == (2.0, 2.0, 2.0)


@given(seconds, seconds, st.floats(0, 0.9), st.floats(0, 5))
def test_steps_stand_for_their_epoch(value, median, below, above):
    actual = scaled(value, median, median * (1 - below), median * (1 + above))
    assert actual.low <= actual.median <= actual.high


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=60))
def test_ends_are_told_from_six_values_on(values):
    ends = median_interval(np.array(values)).ends()
    assert (ends is None) == (len(values) < 6)


def test_intervals_are_computed_in_one_module():
    """Nobody else asks scipy for a bootstrap or a binomial tail of ranks."""
    users = {
        path.name
        for path in Path(ddlbench.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if getattr(node, "attr", getattr(node, "name", "")) in ("bootstrap", "bdtr")
    }
    assert users == {"statistics.py"}
