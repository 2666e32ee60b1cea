"""Numbers that were silently wrong: what differs is a note, what is no number is refused."""

from __future__ import annotations

import json
import math

import pandas as pd
import pytest
from report_factory import SITE_NAME, collect, matrix, result, timing, write

from ddlbench.report.comparability import sentences
from ddlbench.report.summary import summarise

OLD, NEW = "EPYC 7402 24-Core", "EPYC 9334 32-Core"


def measured(tmp_path, monkeypatch, change, repeats=1):
    """The tables of a base and DDP; ``change`` alters each result, by its cell."""
    rows = matrix(
        monkeypatch,
        datasets=["mnist"],
        networks=["vgg11"],
        strategies=["sequential", "ddp"],
        repeats=repeats,
    )
    for row in rows:
        values = result(row.cell, epoch_s=10.0)
        change(row.cell, values)
        write(tmp_path, row.cell, values)
    frame = collect("demo", SITE_NAME, rows, tmp_path)
    return frame, summarise(frame).set_index("strategy")


# --- A1 ------------------------------------------------------------------------------------------


def test_repeats_on_different_processors_have_no_speedup_and_a_note(tmp_path, monkeypatch):
    """hardening A1: one median over both, speed-up 2.0 [2.0, 2.0], no word."""

    def change(cell, values):
        first = cell.repeat == 0
        values["timing"] = timing(1.0 if first else 10.0, 0.1, 0.01)
        values["provenance"]["cpu_model"] = OLD if first else NEW

    _, summary = measured(tmp_path, monkeypatch, change, repeats=3)
    row = summary.loc["ddp"]
    assert math.isnan(row["speedup"])
    assert f"unlike_repeats processors: {OLD}, {NEW}" in row["comparability"]
    assert row["no_speedup"] == "unlike_repeats"


def test_repeats_on_hosts_of_other_sizes_have_a_note(tmp_path, monkeypatch):
    """hardening A1: a host of the same model with 64 cores, not a word."""

    def change(cell, values):
        values["provenance"]["cpu_count"] = 2 if cell.repeat else 64

    _, summary = measured(tmp_path, monkeypatch, change, repeats=2)
    assert "repeats_differ cpu_count: 64, 2" in summary.loc["ddp", "comparability"]
    assert "Repeats ran on hosts with different numbers of cores: 64, 2" in sentences(summary)


# --- A3 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["torch", "horovod"])
def test_a_speedup_across_versions_has_a_note(package, tmp_path, monkeypatch):
    """hardening A3."""

    def change(cell, values):
        version = "1.0" if cell.strategy == "sequential" else "2.0"
        values["provenance"]["packages"] = {package: version, "numpy": "2"}

    frame, _ = measured(tmp_path, monkeypatch, change)
    row = frame[frame["strategy"] == "ddp"].iloc[0]
    assert row["speedup"] == 1.0
    assert row["comparability"] == (
        f"base_differs versions: {package} 1.0 (base), {package} 2.0 (cell)"
    )
    assert sentences(frame) == [
        f"Base and cell ran with different software: {package} 1.0 (base), {package} 2.0 (cell)"
    ]


def test_a_speedup_across_commits_has_a_note(tmp_path, monkeypatch):
    """hardening A3."""

    def change(cell, values):
        values["provenance"]["git_commit"] = ("a" if cell.strategy == "ddp" else "b") * 40

    frame, _ = measured(tmp_path, monkeypatch, change)
    note = frame[frame["strategy"] == "ddp"].iloc[0]["comparability"]
    assert note == "base_differs commit: bbbbbbb (base), aaaaaaa (cell)"


# --- A4 ------------------------------------------------------------------------------------------


def test_one_cold_step_is_not_called_quiet(tmp_path, monkeypatch):
    """hardening A4: ``noisy`` was False, and nothing was said."""

    def change(cell, values):
        values["timing"] |= {"warmup_steps": 0, "steps_per_epoch": 1}
        values["timing"]["step_s"] |= {"count": 1, "low_s": None, "high_s": None}

    frame, _ = measured(tmp_path, monkeypatch, change)
    row = frame.iloc[0]
    assert row["noisy"] is None or row.isna()["noisy"]
    assert row["comparability"] == "few_steps | no_warm_up"
    assert sentences(frame) == [
        "Fewer than 4 measured steps, so their spread is unknown",
        "No warm-up, so the slow first steps count",
    ]


def test_many_notes_of_one_kind_are_counted():
    entries = [f"base_differs commit: {commit} (base), b (cell)" for commit in "acde"]
    (sentence,) = sentences(pd.DataFrame({"comparability": entries}))
    assert sentence == (
        "Base and cell were measured by different commits: 4 pairs, named in summary.csv"
    )


def test_ranks_of_other_software_are_noted(tmp_path, monkeypatch):
    def change(cell, values):
        values["ranks_differ"] = {"versions": "torch 1.0 and 2.0"}

    frame, _ = measured(tmp_path, monkeypatch, change)
    assert set(frame["comparability"]) == {"ranks_differ versions: torch 1.0 and 2.0"}
    assert frame["speedup"].notna().all()


# --- A5 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", ["-1", "0", "NaN", "Infinity", "1e999", "true", '"1"'])
def test_a_time_that_is_none_is_an_invalid_result(seconds, tmp_path, monkeypatch):
    """hardening A5: it was a row of status ok, with -1 s in the table."""
    (row,) = matrix(monkeypatch, datasets=["mnist"], networks=["vgg11"], strategies=["sequential"])
    path = write(tmp_path, row.cell)
    text = json.dumps({**json.loads(path.read_text()), "elapsed_s": 1.0})
    epoch_s = json.dumps(json.loads(text)["timing"]["epoch_s"])
    path.write_text(text.replace(f'"epoch_s": {epoch_s}', f'"epoch_s": {seconds}'))
    actual = collect("demo", SITE_NAME, [row], tmp_path).iloc[0]
    assert (actual["status"], actual["reason_code"]) == ("invalid", "invalid_result")
    assert math.isnan(actual["epoch_s"])


@pytest.mark.parametrize("step_s", [1e-320, 1e12])
def test_a_step_that_no_clock_tells_is_an_invalid_result(step_s, tmp_path, monkeypatch):
    """Ratios of it overflowed: a comparison ended in a traceback, a report in a message on NaN."""
    (row,) = matrix(monkeypatch, datasets=["mnist"], networks=["vgg11"], strategies=["sequential"])
    path = write(tmp_path, row.cell)
    values = json.loads(path.read_text())
    values["timing"]["step_s"]["median_s"] = step_s
    path.write_text(json.dumps(values))
    actual = collect("demo", SITE_NAME, [row], tmp_path).iloc[0]
    assert actual["status"] == "invalid"
    assert "timing.step_s.median_s" in actual["reason"]
