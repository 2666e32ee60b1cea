import json
import math

import pytest
from report_factory import (
    collect,
    experiment,
    failed,
    matrix,
    result,
    site,
    timing,
    write,
    write_all,
)

from ddlbench.planning.matrix import expand
from ddlbench.report import measurements
from ddlbench.report.tables import MEASUREMENTS as COLUMNS


def _cell(rows, strategy, repeat=0):
    return next(r.cell for r in rows if (r.cell.strategy, r.cell.repeat) == (strategy, repeat))


@pytest.fixture
def rows(monkeypatch):
    return matrix(
        monkeypatch, datasets=["mnist"], networks=["resnet18"], geometry=["1x2"], repeats=1
    )


def _row_of(frame, strategy):
    return frame[frame["strategy"] == strategy].iloc[0]


def test_every_cell_has_a_row_in_the_order_of_the_matrix(tmp_path, rows):
    frame = collect("demo", "local", rows, tmp_path)
    assert list(frame.columns) == [column.name for column in COLUMNS]
    assert list(frame["cell_id"]) == [row.cell.id for row in rows]
    assert set(frame["status"]) == {"not run"}
    assert frame["reason"].str.len().min() > 0
    assert frame["speedup"].isna().all()


def test_speedup_is_base_seconds_over_cell_seconds(tmp_path, rows):
    write(tmp_path, _cell(rows, "sequential"), result(_cell(rows, "sequential"), epoch_s=12.0))
    write(tmp_path, _cell(rows, "ddp"), result(_cell(rows, "ddp"), epoch_s=8.0))
    frame = collect("demo", "local", rows, tmp_path)
    ddp = _row_of(frame, "ddp")
    assert ddp["speedup"] == pytest.approx(1.5)
    assert ddp["base_samples_per_s"] == pytest.approx(50.0)
    assert ddp["workers"] == 2
    assert ddp["commit"].startswith("0123456")
    assert _row_of(frame, "sequential")["speedup"] == 1.0


@pytest.mark.parametrize(
    "base",
    [
        lambda cell: failed(cell, "timeout", "longer than 600 s"),
        lambda cell: result(cell, timing=timing(10.0, 1.0, 0.05, samples=599)),
    ],
)
def test_no_speedup_without_a_comparable_base(tmp_path, rows, base):
    write(tmp_path, _cell(rows, "sequential"), base(_cell(rows, "sequential")))
    write(tmp_path, _cell(rows, "ddp"))
    assert math.isnan(_row_of(collect("demo", "local", rows, tmp_path), "ddp")["speedup"])


def test_a_base_is_of_the_same_repeat(tmp_path, monkeypatch):
    rows = matrix(monkeypatch, datasets=["mnist"], networks=["vgg11"], repeats=2)
    for repeat, seconds in ((0, 10.0), (1, 30.0)):
        base = _cell(rows, "sequential", repeat)
        write(tmp_path, base, result(base, epoch_s=seconds))
        cell = _cell(rows, "horovod", repeat)
        write(tmp_path, cell, result(cell, epoch_s=10.0))
    frame = collect("demo", "local", rows, tmp_path)
    assert list(frame[frame["strategy"] == "horovod"]["speedup"]) == [1.0, 3.0]


def test_outcomes_keep_their_reason_and_have_no_times(tmp_path, rows):
    write(tmp_path, _cell(rows, "gpipe"), failed(_cell(rows, "gpipe"), "out_of_memory", "full"))
    row = _row_of(collect("demo", "local", rows, tmp_path), "gpipe")
    assert (row["status"], row["reason"]) == ("out_of_memory", "full")
    assert math.isnan(row["epoch_s"])


def test_a_cell_that_cannot_run_is_unsupported(tmp_path, monkeypatch):
    rows = matrix(monkeypatch, datasets=["mnist"], networks=["vgg11"], geometry=["2x2"])
    row = _row_of(collect("demo", "local", rows, tmp_path), "gpipe")
    assert row["status"] == "unsupported"
    assert "one node" in row["reason"]


def _truncated(text):
    return text[: len(text) // 2]


def _older_version(text):
    return json.dumps({**json.loads(text), "schema_version": 0})


def _other_site(text):
    return json.dumps({**json.loads(text), "site": "elsewhere"})


def _other_cell(text):
    return json.dumps({**json.loads(text), "cell_id": "some/other/cell"})


def _no_timing(text):
    return json.dumps({**json.loads(text), "timing": None})


@pytest.mark.parametrize(
    "spoil", [_truncated, _older_version, _other_cell, _other_site, _no_timing]
)
def test_a_spoiled_file_is_invalid_and_says_why(tmp_path, rows, spoil):
    path = write(tmp_path, _cell(rows, "ddp"))
    path.write_text(spoil(path.read_text()))
    row = _row_of(collect("demo", "local", rows, tmp_path), "ddp")
    assert row["status"] == "invalid"
    assert 0 < len(row["reason"]) <= 300
    assert str(tmp_path) not in row["reason"]


def test_a_result_of_another_plan_is_stale_and_kept(tmp_path, rows):
    cell = _cell(rows, "ddp")
    values = result(cell, epoch_s=3.0)
    values["inputs"]["plan_digest"] = "of another plan"
    write(tmp_path, cell, values)
    write(tmp_path, _cell(rows, "horovod"))
    frame = collect("demo", "local", rows, tmp_path)
    assert _row_of(frame, "ddp")["stale"]
    assert _row_of(frame, "ddp")["epoch_s"] == 3.0
    assert not _row_of(frame, "horovod")["stale"]


@pytest.mark.parametrize("now", ["an earlier one", "another one", None])
def test_a_result_of_another_profile_is_stale(tmp_path, rows, monkeypatch, now):
    cell = _cell(rows, "ddp")
    values = result(cell)
    values["inputs"]["profile_digest"] = "an earlier one"
    write(tmp_path, cell, values)
    digests = {"links_digest": "not used then", "profile_digest": now}
    monkeypatch.setattr(measurements, "measured_digests", lambda *_: digests)
    stale = now == "another one"  # nothing is known of a file that is not there
    assert _row_of(collect("demo", "local", rows, tmp_path), "ddp")["stale"] == stale


def test_memory_is_that_of_the_fullest_device_over_all_ranks(tmp_path, rows):
    cell = _cell(rows, "ddp")
    values = result(cell)
    values["ranks"][0]["memory"][0].update(peak_bytes=700, total_bytes=1000)
    values["ranks"][1]["memory"][0].update(peak_bytes=900, total_bytes=2000)
    write(tmp_path, cell, values)
    row = _row_of(collect("demo", "local", rows, tmp_path), "ddp")
    assert row["peak_memory_bytes"] == 900
    assert row["total_memory_bytes"] == 1600
    assert row["device_memory_bytes"] == 2000


def test_options_and_settings_are_text(tmp_path, monkeypatch):
    monkeypatch.setattr("ddlbench.planning.matrix._missing_package", lambda *_: None)
    chosen = experiment(
        strategies=["sequential", "gpipe"],
        geometry=["1x4"],
    )
    chosen.strategies["gpipe"] = {"chunks": [2, 4]}
    frame = collect("demo", "local", expand(chosen, site()), tmp_path)
    assert set(frame[frame["strategy"] == "gpipe"]["options"]) == {"chunks=2", ""}
    assert set(frame["settings"]) == {"data_scale=0.01"}


def test_equal_results_make_equal_tables(tmp_path, rows):
    write_all(tmp_path, rows)
    first = collect("demo", "local", rows, tmp_path)
    assert first.equals(collect("demo", "local", rows, tmp_path))
