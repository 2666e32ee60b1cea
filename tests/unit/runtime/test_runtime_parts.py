"""The parts of the runtime, each by itself."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cases.rank_reports import rank_report
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ddlbench.datasets.loader import EpochStream
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.training import Loss
from ddlbench.runtime import watchdog
from ddlbench.runtime.addresses import address_of
from ddlbench.runtime.launch import Launch
from ddlbench.runtime.meters import LiveTensors
from ddlbench.runtime.rank_report import as_written, classify, divergence, loss_summary
from ddlbench.runtime.result import rounds_note, steps_csv, timing_of
from ddlbench.runtime.watchdog import MARK, Display, Reporter, watch
from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.timing import StepClock
from ddlbench.strategies.training import with_precision

CELL = Cell("mnist", "tiny", "ddp", batch_size=8, devices_per_node=2, epochs=2, warmup_steps=1)


@given(
    first=st.integers(0, 40),
    count=st.integers(0, 60),
    warmup=st.integers(0, 20),
    steps=st.integers(1, 9),
    more=st.integers(0, 5),
)
def test_ids_map_to_the_feed_one_by_one(first, count, warmup, steps, more):
    whole = steps + more
    ranges = EpochStream(SimpleNamespace(steps_per_epoch=whole), warmup, steps).ranges(first, count)
    actual = [step for begin, length in ranges for step in range(begin, begin + length)]
    expected = []
    for mini_batch in range(first, first + count):
        if mini_batch < warmup:
            expected.append(mini_batch % steps)
        else:
            epoch, within = divmod(mini_batch - warmup, steps)
            expected.append((epoch + 1) * whole + within)
    assert actual == expected


def test_whole_epochs_are_one_range():
    assert EpochStream(SimpleNamespace(steps_per_epoch=10), 2, 10).ranges(2, 30) == [(10, 30)]


def report(step_s, loss, **changes):
    return rank_report(
        step_s=step_s,
        load_s=[0.001] * len(step_s),
        loss=loss,
        warmup_step_s=[9.0],
        warmup_load_s=[0.5],
        warmup_loss=[3.0] if loss else [],
        **changes,
    )


REPORTS = [
    report([0.1, 0.2, 0.1, 0.1], [2.0, 1.5, 1.0, 0.5]),
    report([0.2, 0.1, 0.1, 0.3], [], prepare_s=2.0),
]


def test_the_slowest_rank_makes_the_step_and_the_epoch():
    timing = timing_of(CELL, REPORTS, "cpu")
    assert [epoch.elapsed_s for epoch in timing.epochs] == pytest.approx([0.3, 0.4])
    assert timing.step_s.median_s == pytest.approx(0.2)
    assert timing.epoch_s == pytest.approx(0.35 * 20 / 16)
    assert timing.samples_per_s == pytest.approx(16 / 0.35)
    assert timing.epoch_scaled
    assert timing.prepare_s == 2.0


ROUNDS = Cell(
    "mnist",
    "tiny",
    "local-sgd",
    batch_size=8,
    devices_per_node=2,
    epochs=1,
    options=(("average_every_steps", 3),),
)


def test_steps_of_rounds_are_summed_up_by_whole_rounds():
    """A median of single steps would be 0.1 s and hide the communication."""
    steps_s = [0.1, 0.1, 0.7] * 3
    slower_s = [0.1, 0.3, 0.5] * 3  # a step is not as long everywhere, but a round is
    reports = [report(s, [], steps_per_epoch=9, dataset_samples=72) for s in (steps_s, slower_s)]
    timing = timing_of(ROUNDS, reports, "cpu")
    assert timing.step_s.median_s == pytest.approx(0.3)
    assert timing.step_s.count == 9
    assert timing.epoch_s == pytest.approx(2.7)
    assert "whole rounds of 3 steps" in timing.combined
    assert rounds_note(3, 9) == []


def test_a_part_of_a_round_is_in_neither_step_nor_rate():
    cell = ROUNDS.with_(epochs=2)
    steps_s = [0.1, 0.7, 0.1, 0.1, 0.7, 0.1, 0.1, 0.7]  # two rounds, and a third communication
    reports = [report(steps_s, [], steps_per_epoch=4, dataset_samples=32)]
    timing = timing_of(cell, reports, "cpu")
    assert timing.step_s.median_s == timing.step_s.mean_s == pytest.approx(0.3)
    assert [epoch.elapsed_s for epoch in timing.epochs] == pytest.approx([1.0, 1.6])  # as they were
    assert timing.epoch_s == pytest.approx(4 * 0.3)
    assert timing.samples_per_s == pytest.approx(8 / 0.3)
    (note,) = rounds_note(3, 8)
    assert note.startswith("measured steps (8) are no whole rounds of 3 steps")


def test_a_loss_that_is_no_number_is_null_and_noted():
    written = as_written([2.0, float("nan"), float("inf")])
    assert written == [2.0, None, None]
    reports = [report([0.1] * 4, [2.0, 1.0, None, None]), report([0.1] * 4, [2.0] * 4)]
    assert loss_summary(reports, 2) == Loss(first=2.0, last=None, mean_last_epoch=None)
    assert divergence(reports) == [
        "training diverged: the loss is no number from step 4 of 5 on (1 of them warm-up)"
    ]
    assert divergence(REPORTS) == []
    rows = list(csv.DictReader(io.StringIO(steps_csv(reports))))
    assert [row["loss"] for row in rows] == ["3", "2", "1.5", "nan", "nan"]


def test_steps_csv_keeps_warm_up_apart_and_averages_only_ranks_with_labels():
    rows = list(csv.DictReader(io.StringIO(steps_csv(REPORTS))))
    assert [(row["epoch"], row["step"], row["warmup"]) for row in rows] == [
        ("0", "0", "1"),
        ("1", "0", "0"),
        ("1", "1", "0"),
        ("2", "0", "0"),
        ("2", "1", "0"),
    ]
    assert [float(row["step_s"]) for row in rows] == [9.0, 0.2, 0.2, 0.1, 0.3]
    assert [float(row["loss"]) for row in rows] == [3.0, 2.0, 1.5, 1.0, 0.5]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), "out_of_memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out_of_memory"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes"),
            "out_of_memory",
        ),
        (RuntimeError("shape mismatch"), "failed"),
        (ValueError("out of memory"), "failed"),
        (Unsupported("too few blocks"), "unsupported"),
        (KeyboardInterrupt(), "failed"),
    ],
)
def test_why_a_rank_ended(error, status):
    assert classify(error)[0] == status
    assert "\n" not in classify(error)[1]


def test_live_tensors_count_storages_once_and_until_they_go():
    tensors = LiveTensors()
    with tensors.watching():
        kept = torch.zeros(1000, dtype=torch.float32)
        view = kept[10:20]
        other = torch.ones(500, dtype=torch.float64) * 2  # the ones are gone at once
        assert tensors.current_bytes == 4000 + 4000
        assert tensors.peak_bytes == 4000 + 4000 + 4000
        del kept
        assert tensors.current_bytes == 8000  # the view keeps the storage
        del view
        assert tensors.current_bytes == 4000
        del other
    assert tensors.current_bytes == 0


def test_live_tensors_see_what_autograd_keeps():
    network = nn.Sequential(nn.Linear(100, 200), nn.Sigmoid(), nn.Linear(200, 10))
    tensors = LiveTensors()
    with tensors.watching():
        loss = network(torch.zeros(50, 100)).sum()
        held = tensors.current_bytes
        # input, sigmoid's output (the first linear's is gone), output, its sum
        assert held >= 4 * (50 * 100 + 50 * 200)
        loss.backward()
    assert tensors.peak_bytes >= held


def test_step_clock_gives_one_interval_a_mark():
    clock = StepClock([torch.device("cpu")])
    clock.start()
    for _ in range(5):
        clock.mark()
    assert len(clock.finish()) == 5
    assert all(step >= 0 for step in clock.finish())


def test_bf16_blocks_carry_their_autocast_into_other_threads():
    network = with_precision(nn.Sequential(nn.Linear(4, 4)), "bf16", "cpu")
    assert network(torch.zeros(2, 4)).dtype == torch.bfloat16
    assert next(network.parameters()).dtype == torch.float32
    plain = nn.Sequential(nn.Linear(4, 4))
    assert with_precision(plain, "fp32", "cpu") is plain


def test_an_unknown_interface_is_named_with_those_there_are():
    assert address_of("lo") == "127.0.0.1"
    with pytest.raises(ValueError, match="no network interface 'ib7'.*lo"):
        address_of("ib7")


def test_text_before_a_mark_is_logged(tmp_path: Path) -> None:
    class Printed(Launch):
        def lines(self, _deadline: float) -> Iterator[str]:
            yield f"[0] a warning{MARK}{{}}"
            yield from (f"{label}{MARK}{{}}" for label in ("[0] ", "[12] ", " 0: ", ""))
            yield "[0] the end"

    log = tmp_path / "log.txt"
    watch(Printed(), log, "cell", timeout_s=60, hang_timeout_s=60)
    assert log.read_text() == "[0] a warning\n[0] the end\n"


def test_a_rank_that_ends_without_a_report_is_not_waited_for(tmp_path, monkeypatch):
    """Its own code called os._exit(0), so that its exit status tells nothing."""
    monkeypatch.setattr(watchdog, "_OTHERS_REPORT_S", 0.0)

    class Left(Launch):
        def lines(self, _deadline: float) -> Iterator[str]:
            for _ in range(5):
                yield "[0] waits for rank 1"
            raise AssertionError("it waits for ever")

        def ended(self) -> dict[int, int]:
            return {1: 0}

    outcome = watch(Left(), tmp_path / "log.txt", "cell", timeout_s=60, hang_timeout_s=60)
    assert outcome.guards_ended == {1: 0} and not outcome.timed_out and outcome.hung_s is None


def test_progress_lines_reach_the_display(capsys):
    reporter = Reporter(total_steps=10, batch_size=4)
    reporter._last_time -= 1  # half a second has passed
    reporter(2)
    reporter.phase_done(2)
    reporter._last_time -= 1
    reporter(3)
    lines = [line for line in capsys.readouterr().out.split("\n") if line.startswith(MARK)]
    assert [json.loads(line.removeprefix(MARK))["step"] for line in lines] == [2, 5]
    stream = io.StringIO()
    display = Display("a cell", stream)
    display._last_line -= 60
    display.update(lines[-1].removeprefix(MARK))
    display.update("not json")
    display.close()
    assert stream.getvalue().startswith("        a cell   step 5/10   ")


def test_progress_is_filed_now_and_then_and_lines_fit_the_screen(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.StringIO()
    display = Display(
        "cifar10 studentnets.models:vit pipe-interleaved 2x4 " + "x" * 40, stream, tmp_path
    )
    for step in (3, 4):
        display._last_line -= 60
        display.update(json.dumps({"step": step, "total": 22, "samples_per_s": 15.123}))
    lines = stream.getvalue().splitlines()
    assert [len(line) for line in lines] == [80, 80]
    assert lines[0].endswith("   step 3/22   15 images/s")
    file = tmp_path / "progress.json"
    assert json.loads(file.read_text()) == {"step": 3, "total": 22}  # 5 s have not passed
    display._last_file -= 60
    display.update(json.dumps({"step": 5, "total": 22, "samples_per_s": 15.0}))
    assert json.loads(file.read_text())["step"] == 5
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]
    display._folder = tmp_path / "gone"
    display._last_file -= 60
    display.update(json.dumps({"step": 6, "total": 22, "samples_per_s": 15.0}))


def test_gradient_buckets_of_ddp_are_counted_once():
    """Weights, gradients, momentum and buckets: four copies, and the activations of a step."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        network = torch.nn.Linear(1000, 1000, bias=False)
        replica = torch.nn.parallel.DistributedDataParallel(network)
        optimizer = torch.optim.SGD(replica.parameters(), 0.1, momentum=0.9)

        def step():
            optimizer.zero_grad()
            replica(torch.ones(1, 1000)).sum().backward()
            optimizer.step()

        step()
        step()
        tensors = LiveTensors()
        (weight,) = network.parameters()
        tensors.count([weight, weight.grad, optimizer.state[weight]["momentum_buffer"]])
        with tensors.watching():
            step()
    finally:
        torch.distributed.destroy_process_group()
    assert round(tensors.peak_bytes / 4e6, 1) == 4.0


def test_a_block_used_twice_is_used_twice_in_bf16():
    twice = nn.Linear(3, 3)
    network = nn.Sequential(twice, nn.ReLU(), twice)
    assert len(with_precision(network, "bf16", "cpu")) == 3
