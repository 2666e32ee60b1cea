"""Whole cells that record one more step after the measured ones: DDP, Horovod, one device."""

from __future__ import annotations

import csv
from collections import defaultdict
from itertools import pairwise

import pytest
from local_cells import local_site, odd_cell, run_one

from ddlbench.experiment.cell import Cell
from ddlbench.report.timeline.box import BESIDE
from ddlbench.report.timeline.cell import read_cell

WARMUP, STEPS = 1, 3


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    made = {}

    def measure(strategy, devices, **options):
        if strategy not in made:
            tmp_path = tmp_path_factory.mktemp(strategy)
            cell = Cell(
                dataset="mnist",
                network="resnet18" if devices > 1 else "mlp",
                strategy=strategy,
                batch_size=8,
                devices_per_node=devices,
                epochs=1,
                max_steps=STEPS,
                warmup_steps=WARMUP,
                data_scale=0.001,
                learning_rate=0.01,
                options=tuple(options.items()),
            )
            made[strategy] = run_one(cell, local_site(tmp_path, devices=2), tmp_path)
        result, folder = made[strategy]
        assert result["status"] == "ok", result["reason"]
        return result, folder

    return measure


def _rows(folder):
    rows = defaultdict(list)
    for box in read_cell(folder).measured:
        rows[box.row].append(box)
    return rows


@pytest.mark.parametrize("strategy", ["ddp", "horovod"])
def test_buckets_are_under_way_during_backward_and_done_before_the_update(measured, strategy):
    if strategy == "horovod":
        pytest.importorskip("horovod.torch")
    result, folder = measured(strategy, 2)
    rows = _rows(folder)
    assert set(rows) == {0, 1}
    for boxes in rows.values():
        own = [box for box in boxes if box.kind not in BESIDE]
        kinds = ["forward", "backward", "all_reduce", "update"]
        assert [box.kind for box in own] == kinds
        for one, other in pairwise(own):
            assert one.end_s == pytest.approx(other.start_s, abs=1e-8)
        _, backward, wait, update = own
        buckets = [box for box in boxes if box.kind in BESIDE]
        assert len(buckets) > 1
        for bucket in buckets:
            assert bucket.start_s >= backward.start_s
            assert bucket.end_s <= update.start_s + 1e-3
        assert min(bucket.start_s for bucket in buckets) < backward.end_s
        assert max(bucket.end_s for bucket in buckets) == pytest.approx(wait.end_s, abs=0.05)
    assert result["plan_details"]["clock"]["reference_rank"] == 0


def test_shares_interrupt_the_passes(measured):
    _, folder = measured("fsdp", 2)
    for boxes in _rows(folder).values():
        kinds = [box.kind for box in boxes]
        assert kinds[:3] == ["forward", "gather", "forward"]
        assert kinds.count("gather") == 2 * kinds.count("scatter") - 1  # the last block's are kept
        assert kinds[-1] == "update"


def test_the_recorded_step_of_a_round_is_the_one_that_averages(measured):
    _, folder = measured("local-sgd", 2, average_every_steps=3)
    for boxes in _rows(folder).values():
        assert [box.kind for box in boxes] == ["forward", "backward", "update", "all_reduce"]


def test_a_single_device_computes_without_a_pause(measured):
    _, folder = measured("sequential", 1)
    (boxes,) = _rows(folder).values()
    assert [box.kind for box in boxes] == ["forward", "backward", "update"]


@pytest.mark.parametrize("strategy", ["ddp", "sequential"])
def test_the_recorded_step_counts_for_nothing(measured, strategy):
    result, folder = measured(strategy, 2 if strategy == "ddp" else 1)
    with (folder / "steps.csv").open() as file:
        assert len(list(csv.DictReader(file))) == WARMUP + STEPS
    assert result["timing"]["step_s"]["count"] == STEPS
    (epoch,) = result["timing"]["epochs"]
    assert epoch["steps"] == STEPS
    for rank in (result["communication"] or {"ranks": []})["ranks"]:
        gradient_bytes = result["ranks"][0]["parameter_bytes"]
        assert rank["sent_bytes"] == pytest.approx(STEPS * gradient_bytes, rel=0.02)


def test_a_step_that_cannot_be_recorded_does_not_cost_the_result(tmp_path):
    cell = odd_cell("plain", "odd_networks:BrokenRecording")
    result, folder = run_one(cell, local_site(tmp_path), tmp_path)
    assert result["status"] == "ok", result["reason"]
    assert len(result["ranks"]) == 2
    assert not (folder / "trace.json").exists()
    assert "no step can be recorded" in (folder / "log.txt").read_text()
