"""Whole cells that record one more step after the measured ones: DDP, Horovod, one device."""

from __future__ import annotations

import csv
from collections import defaultdict
from itertools import pairwise

import pytest
from local_cells import (
    DDP,
    FSDP,
    HOROVOD,
    LOCAL_SGD,
    SEQUENTIAL,
    local_site,
    odd_cell,
    run_one,
)

from ddlbench.report.timeline.box import BESIDE
from ddlbench.report.timeline.cell import read_cell


def _rows(folder):
    rows = defaultdict(list)
    for box in read_cell(folder).measured:
        rows[box.row].append(box)
    return rows


@pytest.mark.parametrize("cell", [DDP, HOROVOD], ids=lambda cell: cell.strategy)
def test_buckets_are_under_way_during_backward_and_done_before_the_update(shared_cells, cell):
    if cell is HOROVOD:
        pytest.importorskip("horovod.torch")
    run = shared_cells.run(cell)
    rows = _rows(run.folder)
    assert set(rows) == {0, 1}
    for boxes in rows.values():
        main_boxes = [box for box in boxes if box.kind not in BESIDE]
        kinds = ["load", "forward", "backward", "all_reduce", "update"]
        assert [box.kind for box in main_boxes] == kinds
        assert main_boxes[0].end_s <= main_boxes[1].start_s
        for first, second in pairwise(main_boxes[1:]):
            assert first.end_s == pytest.approx(second.start_s, abs=1e-8)
        _, _, backward, _, update = main_boxes
        buckets = [box for box in boxes if box.kind in BESIDE]
        # Horovod fuses by time: on a slow machine all gradients are one message.
        assert len(buckets) > (0 if cell is HOROVOD else 1)
        for bucket in buckets:
            assert bucket.start_s >= backward.start_s
            assert bucket.end_s <= update.start_s + 1e-3
        assert min(bucket.start_s for bucket in buckets) < backward.end_s
    assert run.result["plan_details"]["clock"]["reference_rank"] == 0


def test_shares_interrupt_the_passes(shared_cells):
    for boxes in _rows(shared_cells.run(FSDP).folder).values():
        kinds = [box.kind for box in boxes]
        assert kinds[:4] == ["load", "forward", "gather", "forward"]
        assert kinds.count("gather") == 2 * kinds.count("scatter") - 1  # the last block's are kept
        assert kinds[-1] == "update"


def test_the_recorded_step_of_a_round_is_the_one_that_averages(shared_cells):
    for boxes in _rows(shared_cells.run(LOCAL_SGD).folder).values():
        kinds = [box.kind for box in boxes]
        assert kinds == ["load", "forward", "backward", "update", "all_reduce"]


def test_a_single_device_computes_without_a_pause(shared_cells):
    (boxes,) = _rows(shared_cells.run(SEQUENTIAL).folder).values()
    assert [box.kind for box in boxes] == ["load", "forward", "backward", "update"]


@pytest.mark.parametrize(
    ("cell", "steps"), [(DDP, 3), (SEQUENTIAL, 2 * 6)], ids=["ddp", "sequential"]
)
def test_the_recorded_step_counts_for_nothing(shared_cells, cell, steps):
    run = shared_cells.run(cell)
    result = run.result
    with (run.folder / "steps.csv").open() as file:
        assert len(list(csv.DictReader(file))) == cell.warmup_steps + steps
    assert result["timing"]["step_s"]["count"] == steps
    assert sum(epoch["steps"] for epoch in result["timing"]["epochs"]) == steps
    for rank in (result["communication"] or {"ranks": []})["ranks"]:
        gradient_bytes = result["ranks"][0]["parameter_bytes"]
        assert rank["sent_bytes"] == pytest.approx(steps * gradient_bytes, rel=0.02)


def test_a_step_that_cannot_be_recorded_does_not_cost_the_result(tmp_path):
    cell = odd_cell("plain", "odd_networks:BrokenRecording")
    result, folder = run_one(cell, local_site(tmp_path), tmp_path)
    assert result["status"] == "ok", result["reason"]
    assert len(result["ranks"]) == 2
    assert not (folder / "trace.json").exists()
    assert "no step can be recorded" in (folder / "log.txt").read_text()
