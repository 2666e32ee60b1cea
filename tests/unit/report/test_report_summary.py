import math

import pandas as pd
import pytest
from hypothesis import strategies as st
from report_factory import collect, failed, matrix, result, write, write_all

from ddlbench.report.footer import interval_words
from ddlbench.report.summary import summarise
from ddlbench.report.tables import SUMMARY

seconds = st.floats(min_value=1e-6, max_value=1e6)


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
        assert list(summary.columns) == [column.name for column in SUMMARY]
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


@pytest.mark.parametrize(
    ("repeats", "words"),
    [
        (2, "range of 2 repeats (holds the median with 50%)"),
        (3, "paired bootstrap interval over 3 repeats (holds the ratio with 75%)"),
        (6, "95 % paired bootstrap interval over 6 repeats"),
    ],
)
def test_figures_state_how_often_an_interval_holds_a_speedup(measured, repeats, words):
    base = [2.0 + number / 100 for number in range(repeats)]
    shown = measured(base, [1.0] * repeats).to_frame().T
    assert interval_words(shown, True) == words


def test_intervals_of_two_and_of_more_repeats_are_told_apart(measured):
    rows = [measured([2.0 + n / 100 for n in range(count)], [1.0] * count) for count in (2, 3)]
    assert interval_words(pd.DataFrame(rows), True) == (
        "range of 2 repeats (holds the median with 50%); "
        "paired bootstrap interval over 3 repeats (holds the ratio with 75%)"
    )
