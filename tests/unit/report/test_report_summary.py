import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_factory import failed, matrix, result, write, write_all

from ddlbench.report import collect, summarise
from ddlbench.report.intervals import median_interval, ratio_interval, scaled
from ddlbench.report.summary import COLUMNS

seconds = st.floats(min_value=1e-6, max_value=1e6)


@given(st.lists(seconds, min_size=2, max_size=40))
def test_a_median_lies_in_its_interval(values):
    found = median_interval(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    assert found.median == np.median(values)
    assert found.coverage >= 0.95 or (len(values) < 6 and found.low == min(values))


@pytest.mark.parametrize(
    ("count", "coverage"), [(2, 0.5), (3, 0.75), (4, 0.875), (5, 0.9375), (6, 0.96875)]
)
def test_few_values_say_how_little_they_cover(count, coverage):
    found = median_interval(list(range(count)))
    assert (found.low, found.high) == (0, count - 1)
    assert found.coverage == pytest.approx(coverage)


def test_ranks_are_those_of_the_binomial_tables():
    found = median_interval(list(range(1, 11)))
    assert (found.low, found.high) == (2, 9)  # n = 10: ranks 2 and 9, 97.9 %
    assert found.coverage == pytest.approx(0.9785, abs=1e-4)


def test_an_interval_covers_as_often_as_it_says():
    random = np.random.default_rng(1)
    hits = [
        (found := median_interval(list(random.lognormal(0, 1, 9)))).low <= 1 <= found.high
        for _ in range(2000)
    ]
    assert np.mean(hits) == pytest.approx(found.coverage, abs=0.015)


def test_one_value_has_no_interval():
    found = median_interval([3.0])
    assert found.median == 3.0
    assert math.isnan(found.low)
    assert math.isnan(found.high)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(seconds, seconds), min_size=3, max_size=12))
def test_a_ratio_lies_in_its_interval_and_is_the_same_twice(pairs):
    base, cell = zip(*pairs, strict=True)
    found = ratio_interval(base, cell)
    assert found.low <= found.median <= found.high
    assert found.median == pytest.approx(np.median(base) / np.median(cell))
    assert found == ratio_interval(base, cell)


def test_pairing_narrows_the_interval():
    drift = np.linspace(1, 3, 9)
    assert ratio_interval(2 * drift, drift).high == pytest.approx(2.0, rel=0.6)
    found = ratio_interval([2.0] * 5, [1.0] * 5)
    assert (found.low, found.median, found.high) == (2.0, 2.0, 2.0)


@given(seconds, seconds, st.floats(0, 0.9), st.floats(0, 5))
def test_steps_stand_for_their_epoch(value, median, below, above):
    found = scaled(value, median, median * (1 - below), median * (1 + above))
    assert found.low <= found.median <= found.high


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Write ``seconds`` of base and ddp, a pair a repeat, and summarise."""

    def run(base_seconds, ddp_seconds):
        rows = matrix(
            monkeypatch,
            datasets=["mnist"],
            networks=["vgg11"],
            strategies=["sequential", "ddp"],
            repeats=len(base_seconds),
        )
        for row in rows:
            ours = base_seconds if row.cell.strategy == "sequential" else ddp_seconds
            value = ours[row.cell.repeat]
            if isinstance(value, str):
                write(tmp_path, row.cell, failed(row.cell, value, "as asked"))
            else:
                write(tmp_path, row.cell, result(row.cell, epoch_s=value))
        summary = summarise(collect("demo", "local", rows, tmp_path))
        assert list(summary.columns) == [column.name for column in COLUMNS]
        return summary[summary["strategy"] == "ddp"].iloc[0]

    return run


def test_a_single_run_has_the_interval_of_its_steps(measured):
    row = measured([10.0], [5.0])
    assert (row["interval_of"], row["n"], row["coverage"]) == ("steps", 1, 0.95)
    assert row["epoch_low_s"] < row["epoch_s"] == 5.0 < row["epoch_high_s"]
    assert row["speedup_low"] < row["speedup"] == 2.0 < row["speedup_high"]
    assert row["samples_per_s"] == pytest.approx(120.0)
    assert row["samples_low_per_s"] == pytest.approx(600 / row["epoch_high_s"])


def test_repeats_have_a_median_and_derive_rates_from_it(measured):
    row = measured([10.0, 12.0, 11.0], [5.0, 8.0, 5.5])
    assert (row["interval_of"], row["n"], row["repeats"]) == ("repeats", 3, 3)
    assert (row["epoch_low_s"], row["epoch_s"], row["epoch_high_s"]) == (5.0, 5.5, 8.0)
    assert row["speedup"] == pytest.approx(11.0 / 5.5)  # of medians, not the mean of ratios
    assert row["samples_per_s"] == pytest.approx(600 / 5.5)


def test_two_repeats_give_a_bound(measured):
    row = measured([10.0, 12.0], [5.0, 6.0])
    assert row["speedup_low"] == pytest.approx(10.0 / 6.0)
    assert row["speedup_high"] == pytest.approx(12.0 / 5.0)
    assert row["coverage"] == pytest.approx(0.5)


def test_lost_repeats_are_counted_and_named(measured):
    row = measured([10.0, 12.0, 11.0], [5.0, "timeout", "failed"])
    assert (row["status"], row["n"], row["repeats"]) == ("ok", 1, 3)
    assert "1 timeout" in row["reason"]
    assert "1 failed" in row["reason"]


def test_the_gravest_status_stands_for_all(measured):
    row = measured([10.0, 12.0], ["timeout", "out_of_memory"])
    assert (row["status"], row["reason"], row["n"]) == ("out_of_memory", "as asked", 0)
    assert math.isnan(row["epoch_s"])
    assert row["interval_of"] == ""


def test_a_speedup_uses_shared_repeats_only(measured):
    row = measured([10.0, "failed", 30.0], [5.0, 1.0, 10.0])
    assert row["speedup_n"] == 2
    assert row["speedup"] == pytest.approx(20.0 / 7.5)


def test_intervals_of_a_whole_matrix_hold_their_medians(tmp_path, monkeypatch):
    rows = matrix(monkeypatch, repeats=4)
    write_all(tmp_path, rows)
    good = summarise(collect("demo", "local", rows, tmp_path)).query("status == 'ok'")
    for name, low, high in (
        ("epoch_s", "epoch_low_s", "epoch_high_s"),
        ("samples_per_s", "samples_low_per_s", "samples_high_per_s"),
        ("speedup", "speedup_low", "speedup_high"),
    ):
        assert (good[low] <= good[name]).all()
        assert (good[name] <= good[high]).all()
