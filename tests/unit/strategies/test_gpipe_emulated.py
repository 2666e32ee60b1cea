"""The real torchgpipe on emulated devices: by a clock of ours it takes what its schedule says."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
import torchgpipe.balance.profile
from torch import nn
from torchgpipe import GPipe

from ddlbench.common.fits import Timing
from ddlbench.experiment.cell import Cell
from ddlbench.networks import emulated
from ddlbench.networks.emulated import QueuedDevices
from ddlbench.planning.plan import Plan
from ddlbench.planning.schedules import StageDurations, replay
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Block
from ddlbench.strategies.executor import Context
from ddlbench.strategies.torchgpipe.descriptor import torchgpipe_step
from ddlbench.strategies.torchgpipe.executor import GPipeExecutor, recording

CLASSES = 3
CHECKPOINTS = ["never", "except_last", "always"]


class Clock:
    """Time passes only while the host sleeps."""

    def __init__(self) -> None:
        self.now_s, self.slept = 1e5, 0  # an hour of the day, as of a real clock

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept += 1


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(
        emulated, "QueuedDevices", lambda count: QueuedDevices(count, clock.now, clock.sleep)
    )
    return clock


def network(
    forward_s: list[float], backward_s: list[float], only_first: bool = False
) -> nn.Sequential:
    """Blocks of so many seconds a sample; all have weights, or only the first."""
    last = len(forward_s) - 1
    return nn.Sequential(
        *(
            emulated.EmulatedBlock(
                Block("block", 16, 0, 16.0, 16.0, 64.0, of(forward), of(backward)),
                {} if index and only_first else {"weight": 4},
                (CLASSES,) if index == last else (4,),
                1.0,
                finite=index == last,
            )
            for index, (forward, backward) in enumerate(zip(forward_s, backward_s, strict=True))
        )
    )


def of(a_sample_s: float) -> Timing:
    return Timing.through([(1, a_sample_s), (2, 2 * a_sample_s)], "a block")


def step_s(
    clock: Clock,
    blocks: nn.Sequential,
    balance: list[int],
    chunks: int,
    checkpoint: str = "never",
) -> float:
    """Seconds of the second of two steps of 16 samples."""
    devices = [torch.device("cpu")] * len(balance)
    pipe = GPipe(blocks, balance, devices=devices, chunks=chunks, checkpoint=checkpoint)
    queued = emulated.queued_devices(list(pipe.partitions))
    assert queued is not None
    begin_s = 0.0
    for _ in range(2):
        clock.slept = 0
        begin_s = clock.now_s
        outputs = pipe(torch.rand(16, 4))
        loss = nn.functional.cross_entropy(outputs, torch.zeros(16, dtype=torch.long))
        loss.backward()
        assert clock.slept == 0
        queued.wait()
        assert torch.isfinite(loss)
        assert all(parameter.grad is not None for parameter in pipe.parameters())
        for parameter in pipe.parameters():
            parameter.grad = None
    return clock.now_s - begin_s


def scheduled_s(forward_s: list[float], backward_s: list[float], chunks: int, again: int) -> float:
    schedule = torchgpipe_step(len(forward_s), chunks, again).schedule
    return replay(schedule, StageDurations(forward_s, backward_s)).end_s


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
@pytest.mark.parametrize("parts", [2, 4])
def test_equal_partitions_reach_the_published_bound(clock, parts, chunks):
    """(m + p - 1) / (p m): Huang et al. 2019, section 2."""
    took_s = step_s(clock, network([0.01] * 8, [0.02] * 8), [8 // parts] * parts, chunks)
    one_device_s = 16 * 8 * 0.03
    assert took_s == pytest.approx(one_device_s * (chunks + parts - 1) / (chunks * parts), rel=1e-9)


@pytest.mark.parametrize("only_first", [False, True])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("balance", [[3, 1, 2], [1, 4, 1], [2, 2, 2], [1, 5]])
def test_any_step_is_the_schedules(clock, balance, checkpoint, only_first):
    """Unequal partitions, and some micro-batches computed twice."""
    forward_s = [0.003, 0.02, 0.011, 0.001, 0.04, 0.007]
    backward_s = [0.005, 0.03, 0.040, 0.001, 0.06, 0.013]
    chunks = 4
    again = {"never": 0, "except_last": chunks - 1, "always": chunks}[checkpoint]
    blocks = network(forward_s, backward_s, only_first)
    sums = [
        [16 / chunks * sum(islice(times, count)) for count in balance]
        for times in (iter(forward_s), iter(backward_s))
    ]
    took_s = step_s(clock, blocks, balance, chunks, checkpoint)
    assert took_s == pytest.approx(scheduled_s(*sums, chunks, again), rel=1e-9)


def test_recomputation_costs_a_forward_pass_of_all_micro_batches_but_the_last(clock):
    """On one bottleneck partition, where nothing hides it."""
    forward_s, backward_s = [0.05, 1e-9], [0.1, 1e-9]
    took_s = [step_s(clock, network(forward_s, backward_s), [1, 1], 4, c) for c in CHECKPOINTS]
    assert took_s[1] - took_s[0] == pytest.approx(3 * 4 * 0.05, rel=1e-6)
    assert took_s[2] - took_s[1] == pytest.approx(4 * 0.05, rel=1e-6)


def test_spans_are_in_the_time_of_the_devices(clock):
    """Forward passes of both partitions overlap, as in Fig. 2 of Huang et al. 2019."""
    chunks, parts = 4, 2
    pipe = GPipe(network([0.01] * 4, [0.02] * 4), [2, 2], devices=["cpu"] * 2, chunks=chunks)
    queued = emulated.queued_devices(list(pipe.partitions))
    begin_s = clock.now_s
    with recording(list(pipe.partitions), [torch.device("cpu")] * parts, queued) as recorder:
        recorder._start_s = begin_s
        pipe(torch.rand(16, 4)).sum().backward()
    planned = torchgpipe_step(parts, chunks, chunks - 1)
    timeline = replay(planned.schedule, StageDurations([0.08] * 2, [0.16] * 2))
    expected = {
        (rank, planned.kind_of(timed.action), timed.action.micro_batch % chunks): (
            timed.start_s,
            timed.end_s,
        )
        for rank, line in enumerate(timeline.ranks)
        for timed in line
        if timed.action.computes
    }
    spans = {(s.partition, s.kind, s.micro_batch): (s.start_s, s.end_s) for s in recorder.spans()}
    assert spans.keys() == expected.keys()
    for piece, times in expected.items():
        assert spans[piece] == pytest.approx(times, abs=1e-9), piece


def test_a_balance_by_time_waits_for_blocks(clock, monkeypatch):
    """torchgpipe times them before they are on a device, so each takes what it takes alone."""
    monkeypatch.setattr(emulated.time, "perf_counter", clock.now)
    monkeypatch.setattr(emulated.time, "sleep", clock.sleep)
    monkeypatch.setattr(torchgpipe.balance.profile.time, "time", clock.now)
    timed: list[list[int]] = []
    monkeypatch.setattr(
        torchgpipe.balance, "balance_cost", lambda times, _parts: timed.append(times) or [3, 1]
    )
    executor = executor_of("time", network([0.1, 0.1, 0.2, 0.4], [0.2, 0.2, 0.2, 0.5]))
    assert timed == [pytest.approx([4e6 * s for s in (0.3, 0.3, 0.4, 0.9)], rel=1e-5)]
    assert executor.balance == [3, 1]
    assert executor.emulated is not None


def test_one_partition_and_real_blocks_are_waited_for():
    assert emulated.queued_devices([network([0.1] * 2, [0.1] * 2)]) is None
    assert emulated.queued_devices([nn.Linear(2, 2), nn.Linear(2, 2)]) is None


def test_the_optimiser_waits_for_the_devices(clock):
    """It computes on the host, as do the clock of a step and whoever reads the weights."""
    executor = executor_of("2+2", network([0.01] * 4, [0.02] * 4))
    begin_s = clock.now_s
    began_s: list[float] = []
    executor.optimizer.register_step_pre_hook(lambda *_: began_s.append(clock.now_s))
    executor.step(torch.rand(16, 4), torch.zeros(16, dtype=torch.long))
    executor.close()
    assert began_s == pytest.approx([begin_s + 16 * 4 * 0.03 * (4 + 1) / (4 * 2)])


def executor_of(balance: str, blocks: nn.Sequential) -> GPipeExecutor:
    options = (("balance", balance), ("checkpoint", "never"), ("chunks", 4))
    cell = Cell("mnist", "tiny", "gpipe", 16, devices_per_node=2, options=options)
    descriptor = strategy_of("gpipe")
    plan = Plan(cell, descriptor.placement(cell), descriptor.option_values(cell))
    executor = GPipeExecutor()
    (process,) = plan.processes
    executor.prepare(plan, process, blocks, None, Context((torch.device("cpu"),) * 2))
    return executor
