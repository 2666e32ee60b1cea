"""Steps of a process that drives several GPUs, with events that tell planted times."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch

from ddlbench.strategies.timing import StepClock


class Devices:
    """GPUs whose events are recorded at planted times in ms, and read as float32, as CUDA does."""

    def __init__(self, monkeypatch, times_ms: list[list[float]]):
        self.current, self.log = 0, []
        self._left = [list(times) for times in times_ms]
        monkeypatch.setattr(torch.cuda, "Event", lambda **_: Event(self))
        monkeypatch.setattr(torch.cuda, "synchronize", self.log.append)
        monkeypatch.setattr(torch.cuda, "device", self.using)

    @contextmanager
    def using(self, index):
        self.current = index
        yield

    def next_ms(self):
        return self._left[self.current].pop(0)


class Event:
    def __init__(self, devices):
        self.devices = devices

    def record(self):
        self.device, self.at_ms = self.devices.current, self.devices.next_ms()

    def elapsed_time(self, later):
        assert later.device == self.device, "events of two devices cannot be compared"
        return float(np.float32(later.at_ms - self.at_ms))


def clocked(monkeypatch, times_ms):
    devices = Devices(monkeypatch, times_ms)
    clock = StepClock([torch.device("cuda", index) for index in range(len(times_ms))])
    clock.start()
    assert devices.log == list(range(len(times_ms)))  # idle before the first mark
    for _ in times_ms[0][1:]:
        clock.mark()
    return clock.finish()


def test_steps_are_the_times_between_completions(monkeypatch):
    # Device 0 is late in step 0, device 1 in step 1: neither wait may be counted twice.
    steps = clocked(monkeypatch, [[0, 30, 40, 60], [5, 15, 45, 65]])
    assert steps == pytest.approx([0.030, 0.010, 0.020])  # done at 30, 40, 60 ms
    assert sum(steps) == pytest.approx(0.060)  # not 0.030 + 0.030 + 0.020


def test_a_device_alone_gives_its_own_intervals(monkeypatch):
    assert clocked(monkeypatch, [[3, 5, 9]]) == [0.002, 0.004]


def test_steps_add_up_to_the_slowest_device_and_none_is_negative(monkeypatch):
    random = np.random.default_rng(0)
    ends_ms = np.cumsum(random.exponential(10, size=(4, 200)), axis=1)
    times = [[0.0, *line] for line in ends_ms.tolist()]
    steps = clocked(monkeypatch, times)
    assert min(steps) >= 0
    assert sum(steps) == pytest.approx(ends_ms[:, -1].max() / 1e3, rel=1e-6)


def test_hours_after_the_start_a_step_is_as_exact_as_the_first(monkeypatch):
    count, step_ms = 5000, 1000.125
    line = [number * step_ms for number in range(count)]
    steps = clocked(monkeypatch, [line, line])
    assert steps[-1] == pytest.approx(step_ms / 1e3, abs=1e-6)
