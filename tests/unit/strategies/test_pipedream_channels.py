"""Receives are posted when the clock runs, not before: over NCCL each holds up the device."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from cases.pipedream_replay import cell_of
from torch import nn

from ddlbench.networks.block_forms import TensorForm
from ddlbench.planning.planner import make_plan
from ddlbench.planning.schedules import model_parallel, pipedream
from ddlbench.planning.strategy import strategy_of
from ddlbench.strategies.executor import Context
from ddlbench.strategies.pipedream import executor as executor_module
from ddlbench.strategies.pipedream.executor import PipeDreamExecutor
from ddlbench.strategies.pipedream.runner import (
    Channels,
    ScheduleRunner,
    Stage,
    StageParts,
    WeightVersions,
)
from ddlbench.strategies.timing import SpanRecorder

CPU = torch.device("cpu")
FORM = TensorForm((1, 2), torch.float32)
FORMS = {"activation": FORM, "gradient": FORM}


class Wires:
    """torch.distributed's messages, written down; every wait ends at once."""

    def __init__(self, monkeypatch):
        self.log: list[str] = []
        self.posted = 0  # receives that no message has ended
        monkeypatch.setattr(dist, "irecv", self.irecv)
        monkeypatch.setattr(dist, "isend", self.isend)

    def irecv(self, tensor, peer, group, tag):
        tensor.fill_(1)
        self.posted += 1
        self.log.append(f"post {group}")
        return SimpleNamespace(wait=lambda: self.arrived(group))

    def arrived(self, group):
        self.posted -= 1
        self.log.append(f"wait {group}")

    def isend(self, tensor, peer, group, tag):
        self.log.append(f"send {group}")
        return SimpleNamespace(wait=lambda: None)


class Clock:
    """Starts only on an idle device, as ``torch.cuda.synchronize`` would wait for a receive."""

    def __init__(self, wires):
        self.wires = wires

    def start(self):
        assert self.wires.posted == 0, "the device would never be idle"
        self.wires.log.append("clock starts")

    def mark(self):
        self.wires.log.append("mark")


class NoSpans:
    def span(self, _kind, _number):
        return nullcontext()


def channels_of(schedule, rank, ahead):
    return Channels(
        schedule.actions[rank],
        {"activation": "activation", "gradient": "gradient"},
        FORMS,
        device=CPU,
        most=schedule.receives_ahead,
        ahead=ahead,
        spans=NoSpans(),
    )


def turn_of(wires, schedule, rank, ahead):
    """A rank of two stages; each is a linear layer."""
    torch.manual_seed(0)
    blocks = nn.Sequential(nn.Linear(2, 2))
    sgd = torch.optim.SGD(blocks.parameters(), lr=0.1)
    last = rank == schedule.num_stages - 1
    parts = StageParts(
        number=rank,
        stage=Stage(blocks, rank == 0, nn.CrossEntropyLoss() if last else None),
        versions=WeightVersions(blocks, sgd),
        replica_group=None,
        asynchronous=False,
        context=Context((CPU,)),
    )
    batch = SimpleNamespace(inputs=torch.ones(1, 2), labels=torch.zeros(1, dtype=torch.int64))
    return ScheduleRunner(
        parts=parts,
        schedule=schedule,
        version=lambda number: max(0, number - schedule.warmups[rank]),
        batches=iter([batch] * 9) if rank == 0 or last else None,
        messages=channels_of(schedule, rank, ahead),
        spans=SpanRecorder(CPU),
        clock=Clock(wires),
        set_rate=lambda _number: None,
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_the_clock_starts_before_anything_is_posted(rank, monkeypatch):
    wires = Wires(monkeypatch)
    turn = turn_of(wires, pipedream((1, 1), 3), rank, ahead=1)
    assert wires.log == []  # channels that are made but not open
    turn.run(rank)
    arriving = "gradient" if rank == 0 else "activation"
    assert wires.log[:2] == ["clock starts", f"post {arriving}"]
    assert wires.log.count("clock starts") == 1
    assert wires.log.count(f"post {arriving}") == wires.log.count(f"wait {arriving}") == 3
    assert wires.log.count("mark") == 3
    assert wires.posted == 0


def test_one_receive_is_posted_ahead_while_a_message_is_waited_for(monkeypatch):
    wires = Wires(monkeypatch)
    schedule = pipedream((1, 1), 3)
    channels = channels_of(schedule, 1, ahead=1)
    channels.open()
    for action in schedule.actions[1]:
        if action.kind == "receive_activation":
            channels.receive(action)
    post, wait = "post activation", "wait activation"
    assert wires.log == [post, post, wait, post, wait, wait]


def test_on_demand_nothing_is_posted_while_a_stage_computes(monkeypatch):
    wires = Wires(monkeypatch)
    schedule = model_parallel(2, 3)
    turn = turn_of(wires, schedule, 0, ahead=0)
    turn.run(0)
    step = ["send activation", "post gradient", "wait gradient", "mark"]
    assert wires.log == ["clock starts", *step * 3]


@pytest.mark.parametrize(("strategy", "ahead"), [("pipedream", 1), ("model-parallel-p2p", 0)])
def test_only_a_pipeline_posts_ahead(strategy, ahead, monkeypatch):
    """Where one mini-batch is under way at a time, none can be on its way during a pass."""
    made = []
    monkeypatch.setattr(executor_module, "Channels", lambda *_, **named: made.append(named))
    cell = cell_of("1+1", strategy)
    executor = PipeDreamExecutor()
    executor.plan = make_plan(cell)
    executor.process = executor.plan.processes[0]
    executor.context = Context((CPU,))
    executor.descriptor = strategy_of(strategy)
    executor.stages = executor.plan.details["stages"]
    executor.groups = {}
    executor.forms = [replace(FORM, shape=(size,)) for size in range(1, 10)]
    executor.spans = SpanRecorder(CPU)
    executor._channels(executor._schedule(3))
    assert made[0]["ahead"] == ahead
