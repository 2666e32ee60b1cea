"""Networks that misbehave, and a strategy with a role that owns no batch; used by name."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from ddlbench.planning.plan import Process
from ddlbench.planning.strategy import Strategy
from ddlbench.strategies.ddp.descriptor import DistributedDataParallel
from ddlbench.strategies.ddp.executor import DdpExecutor
from ddlbench.strategies.executor import Executor, RunRecord

QUIET_PASSES = 3  # as many as the inspection of a network makes of its copy


class Misbehave(nn.Module):
    """Acts in each forward pass of a training, but in the first few and in no inspection."""

    def __init__(self, act):
        super().__init__()
        self.act = act
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1
        if self.calls > QUIET_PASSES:
            self.act()
        return inputs


def _small(spec, act=lambda: None) -> nn.Sequential:
    return nn.Sequential(
        Misbehave(act), nn.Flatten(), nn.Linear(spec.image_bytes, 8), nn.ReLU(), nn.Linear(8, 10)
    )


def plain(spec):
    return _small(spec)


def images(spec) -> nn.Sequential:
    """Rows, filters and channels that two devices can share."""
    return nn.Sequential(
        nn.Conv2d(spec.channels, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * spec.height * spec.width, spec.num_classes),
    )


def weightless(spec):
    return nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(spec.num_classes))


def out_of_memory(spec):
    def act():
        raise MemoryError("can't allocate memory: you tried to allocate 10 TB")

    return _small(spec, act)


def crash_on_rank_1(spec):
    def act():
        if os.environ.get("DDLBENCH_LOCAL_RANK") == "1":
            raise ZeroDivisionError("a bug on rank 1")

    return _small(spec, act)


def killed(spec):
    def act():
        if os.environ.get("DDLBENCH_LOCAL_RANK") == "1":
            os.kill(os.getpid(), 9)

    return _small(spec, act)


def hang(spec):
    """Each rank says that it hangs in a file of ``$ODD_HANGING``."""

    def act():
        rank = "-".join(os.environ[key] for key in ("DDLBENCH_NODE", "DDLBENCH_LOCAL_RANK"))
        (Path(os.environ["ODD_HANGING"]) / rank).touch()
        time.sleep(3600)

    return _small(spec, act)


class Slow(nn.Module):
    """Steps of a few milliseconds: long enough to be hit by a kill."""

    def forward(self, inputs):
        time.sleep(0.004)
        return inputs


def slow(spec) -> nn.Sequential:
    """Weights, statistics, random numbers: all that a checkpoint has to keep."""
    return nn.Sequential(
        Slow(),
        nn.Flatten(),
        nn.Linear(spec.image_bytes, 8),
        nn.BatchNorm1d(8),
        nn.Dropout(0.2),
        nn.Linear(8, 10),
    )


def slow_pair(spec) -> nn.Sequential:
    """Random numbers, and linear layers that can be split together."""
    return nn.Sequential(
        Slow(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(spec.image_bytes, 8),
        nn.ReLU(),
        nn.Linear(8, 10),
    )


def holds_its_data(spec):
    def act():
        (readers,) = Path(os.environ["ODD_SCRATCH"]).glob("ddlbench-data-*/*.readers")
        with readers.open("rb+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
        raise AssertionError("the data could be removed now")

    return _small(spec, act)


class BrokenRecording(DistributedDataParallel):
    """DDP that cannot be recorded: rank 1 crashes in the step after the measured ones."""

    name = "broken-recording"
    executor = "odd_networks:BrokenRecordingExecutor"


class BrokenRecordingExecutor(DdpExecutor):
    """Rank 0 waits for rank 1 for ever."""

    def record_step(self, mini_batch):
        if self.process.rank == 1:
            raise RuntimeError("no step can be recorded")
        return super().record_step(mini_batch)


class TwoRoles(Strategy):
    """One worker that computes gradients, one server that owns the weights and no batch."""

    name = "two-roles"
    label = "Two roles"
    family = "data parallel"
    executor = "odd_networks:TwoRolesExecutor"

    def supports(self, cell):
        return None if cell.devices == 2 else "two roles need two devices"

    def placement(self, cell):
        worker = Process(rank=0, role="worker", node=0, local_rank=0, devices=(0,))
        server = Process(
            rank=1, role="server", node=0, local_rank=1, devices=(1,), shard=-1, needs=()
        )
        return worker, server


class TwoRolesExecutor(Executor):
    """Gradients go to the server, weights come back, as plain bytes through the store."""

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        turn = self.turn = getattr(self, "turn", -1) + 1
        self.optimizer.zero_grad()
        loss = self.loss_function(self.module(inputs), labels)
        loss.backward()
        gradients = [parameter.grad for parameter in self.module.parameters()]
        self._send(f"gradients/{turn}", gradients)
        self._receive(f"weights/{turn}", list(self.module.parameters()))
        return loss.detach()

    def run(self, first, count):
        if self.process.role == "worker":
            return super().run(first, count)
        record = RunRecord()
        for mini_batch in range(first, first + count):
            began = time.perf_counter()
            turn = self.turn = getattr(self, "turn", -1) + 1
            parameters = list(self.module.parameters())
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            self._receive(f"gradients/{turn}", [parameter.grad for parameter in parameters])
            self.optimizer.step()
            self._send(f"weights/{turn}", parameters)
            record.ids.append(mini_batch)
            record.step_s.append(time.perf_counter() - began)
            record.load_s.append(0.0)
        return record

    def _send(self, key, tensors):
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        self.context.store.set(key, flat.numpy().tobytes().hex())

    def _receive(self, key, tensors):
        data = bytearray(bytes.fromhex(self.context.store.get(key).decode()))
        flat = torch.frombuffer(data, dtype=torch.float32)
        offset = 0
        with torch.no_grad():
            for tensor in tensors:
                tensor.copy_(flat[offset : offset + tensor.numel()].view_as(tensor))
                offset += tensor.numel()


def patient(spec):
    """Trains once there is a file ``$ODD_HURRY``; notes who begins and who has trained.

    ``$ODD_HANGING`` gets ``begun-<rank>-<pid>``, and from rank 0 ``done-<pid>`` after 13 steps.
    """
    calls = []

    def act():
        notes, rank = Path(os.environ["ODD_HANGING"]), os.environ["DDLBENCH_LOCAL_RANK"]
        (notes / f"begun-{rank}-{os.getpid()}").touch()
        while not Path(os.environ["ODD_HURRY"]).exists():
            time.sleep(0.02)
        calls.append(1)
        if rank == "0" and len(calls) == PATIENT_STEPS - QUIET_PASSES:
            (notes / f"done-{os.getpid()}").touch()

    return _small(spec, act)


PATIENT_STEPS = 13  # of 48 images in batches of 8: one to warm up, two epochs of six
