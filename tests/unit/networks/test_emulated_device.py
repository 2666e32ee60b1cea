"""Emulated devices in time: one is waited for, several queue; tensors tell when they are there."""

from __future__ import annotations

import pytest
import torch

from ddlbench.networks import emulated
from ddlbench.networks.emulated import QueuedDevices, WaitedDevice, occupy


class Clock:
    """A host that wakes late by a millisecond, and notes its sleeps."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s, self.late_s = 10.0, late_s
        self.slept: list[float] = []

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds + self.late_s


@pytest.fixture
def host(monkeypatch) -> Clock:
    """The clock of a process with one device."""
    clock = Clock(late_s=0.001)
    monkeypatch.setattr(emulated.time, "perf_counter", clock.now)
    monkeypatch.setattr(emulated.time, "sleep", clock.sleep)
    monkeypatch.setattr(emulated, "_waited", emulated._Waited())
    return clock


def test_what_a_sleep_was_too_long_the_next_one_is_shorter(host):
    occupy(0.1)
    occupy(0.1)
    host.now_s += 1.0  # the host did something else: the device was idle
    occupy(0.1)
    assert host.slept == pytest.approx([0.1, 0.099, 0.1])


def test_a_process_with_one_device_waits_for_each_work(host):
    """gloo and Horovod read a tensor as soon as it is handed to them."""
    device, made = WaitedDevice(), torch.zeros(2)
    device.work(0.1, torch.zeros(2), made)
    assert host.slept == pytest.approx([0.1])
    assert made.tolist() == [0.0, 0.0]


def devices(count: int = 2) -> tuple[QueuedDevices, Clock]:
    clock = Clock()
    return QueuedDevices(count, clock.now, clock.sleep), clock


def test_queued_works_end_without_the_host(host):
    queued, clock = devices()
    first, second = queued.each
    passed = torch.empty(3)
    first.work(1.0, makes=passed)
    second.work(2.0, reads=passed)  # waits for what it reads
    first.work(3.0)  # waits for its device
    first.work(0.5, reads=torch.rand(3))  # real data are there
    assert (first.idle_s, second.idle_s) == (14.5, 13.0)
    assert not clock.slept
    queued.wait()
    assert clock.slept == pytest.approx([4.5])
    queued.wait()
    assert clock.slept == pytest.approx([4.5])


def test_a_device_cannot_begin_before_its_host_asks_it_to():
    queued, clock = devices()
    queued.each[0].work(1.0)
    clock.now_s += 5.0
    queued.each[0].work(1.0)
    assert queued.each[0].idle_s == 16.0


COPIES = {
    "the same": lambda t: t,
    "detached": lambda t: t.detach(),
    "cloned": lambda t: t.clone(),
    "copied": lambda t: torch.zeros_like(t).copy_(t),
    "another shape": lambda t: t.flatten(1),
    "its first samples": lambda t: t[:1],
    "joined": lambda t: torch.cat([t, torch.zeros_like(t)]),
    "expanded": lambda t: t[None].expand(3, *t.shape),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_there_when_the_original_is(how):
    queued, _ = devices()
    made = torch.rand(2, 3, 4)
    queued.each[0].work(1.0, makes=made)
    assert queued.ready_s(COPIES[how](made)) == 11.0


def test_a_gradient_that_autograd_keeps_is_there_when_it_was_made():
    """torchgpipe reads a recomputed part's gradient from the leaf that autograd added it to."""
    queued, _ = devices()

    class Block(torch.autograd.Function):
        @staticmethod
        def forward(ctx, inputs):
            return inputs.clone()

        @staticmethod
        def backward(ctx, gradient):
            queued.each[0].work(1.0, gradient, made := torch.empty_like(gradient))
            return kept.append(made) or made

    kept: list[torch.Tensor] = []  # so autograd must copy it
    leaf = torch.rand(2, 3, requires_grad=True)
    Block.apply(leaf).sum().backward()
    assert queued.ready_s(leaf.grad) == 11.0


@pytest.mark.parametrize(
    "values",
    [
        torch.zeros(2),
        torch.rand(2, 3),
        torch.full((2,), float("nan")),
        torch.full((2,), float("inf")),
        torch.tensor(1.0),
        torch.arange(4),
        torch.rand(2, dtype=torch.float64),
    ],
)
def test_what_the_host_made_is_there(values):
    queued, _ = devices()
    queued.each[0].work(1.0, makes=torch.empty(3))
    assert queued.ready_s(values) == 0.0


def test_memory_that_is_used_again_has_the_time_of_its_new_tensor():
    queued, _ = devices()
    memory = torch.empty(4)
    queued.each[0].work(5.0, makes=memory)
    queued.each[1].work(1.0, makes=memory)
    assert queued.ready_s(memory) == 11.0
    assert queued.ready_s(memory.copy_(torch.rand(4))) == 0.0
    queued.each[0].work(5.0, makes=memory)
    queued.wait()  # a number from before a wait says nothing any more
    assert queued.ready_s(memory) == 0.0


def test_a_tensor_without_values_is_never_there_too_early():
    queued, _ = devices()
    empty = torch.empty(2, 0)
    queued.each[1].work(3.0, makes=empty)
    assert queued.ready_s(empty) == 13.0


def test_numbers_of_works_begin_again(monkeypatch):
    monkeypatch.setattr(emulated, "_MOST_WORKS", 3)
    queued, _ = devices()
    tensors = [torch.empty(1) for _ in range(5)]
    for tensor in tensors:
        queued.each[0].work(1.0, makes=tensor)
        assert queued.ready_s(tensor) == queued.each[0].idle_s
