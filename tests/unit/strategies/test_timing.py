"""Steps of a process that drives several GPUs, and spans of one device; planted times."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
import torch

from ddlbench.strategies.timing import SpanRecorder, StepClock


class Devices:
    """GPUs whose events are recorded at planted times in ms, and read as float32, as CUDA does."""

    def __init__(self, monkeypatch, times_ms: list[list[float]]):
        self.log = []
        self._left = [list(times) for times in times_ms]
        monkeypatch.setattr(torch.cuda, "Event", lambda **_: Event(self))
        monkeypatch.setattr(torch.cuda, "synchronize", self.log.append)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda index: index)

    def next_ms(self, device):
        return self._left[device].pop(0)


class Event:
    def __init__(self, devices):
        self.devices = devices

    def record(self, device):
        self.device, self.at_ms = device, self.devices.next_ms(device)

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


CPU = torch.device("cpu")


def kinds(recorder):
    return [(kind, number) for kind, number, _, _ in recorder.spans()]


def test_phases_last_until_something_interrupts_them():
    recorder = SpanRecorder(CPU)
    recorder.begin_run(5)
    recorder.begin_step()
    recorder.phase("forward")
    with recorder.span("halo"):
        pass
    recorder.phase("backward")
    recorder.phase("")
    assert kinds(recorder) == [("forward", 5), ("halo", 5), ("forward", 5), ("backward", 5)]
    spans = recorder.spans()
    assert all(span[3] == following[2] for span, following in pairwise(spans))
    assert recorder.wait_s == pytest.approx(spans[1][3] - spans[1][2])


def test_what_lies_between_spans_has_a_name_and_the_ends_of_a_step_have_none():
    recorder = SpanRecorder(CPU)
    for _ in range(2):
        recorder.begin_step(between="wait")
        for kind in ("forward 0.0", "backward 0.0"):
            with recorder.span(kind):
                pass
    step = ["forward 0.0", "wait", "backward 0.0"]
    assert kinds(recorder) == [*((kind, 0) for kind in step), *((kind, 1) for kind in step)]


def test_loading_the_next_mini_batch_is_no_part_of_the_last_step():
    recorder = SpanRecorder(CPU)
    for number in range(2):
        with recorder.span("load", number):
            pass
        recorder.begin_step(between="wait")
        with recorder.span("update"):
            pass
    assert kinds(recorder) == [("load", 0), ("update", 0), ("load", 1), ("update", 1)]
    assert recorder.wait_s == 0.0


@pytest.mark.parametrize(
    ("keep", "numbers"), [({"keep_first": 2}, [0, 1]), ({"keep_last": 2}, [3, 4]), ({}, range(5))]
)
def test_so_many_mini_batches_are_kept_and_all_waits_count(keep, numbers):
    recorder = SpanRecorder(CPU, **keep)
    for number in range(5):
        with recorder.span("receive_wait", number):
            time.sleep(1e-3)
    assert [number for _, number in kinds(recorder)] == list(numbers)
    assert recorder.wait_s >= 5e-3
    recorder.begin_run(7)
    assert (kinds(recorder), recorder.wait_s) == ([], 0.0)


def test_what_runs_beside_a_phase_does_not_end_it():
    recorder = SpanRecorder(CPU)
    recorder.begin_step()
    recorder.phase("backward")
    begin = recorder.now()
    recorder.beside("all_reduce_bucket 0.0", begin, recorder.now())
    recorder.phase("")
    assert kinds(recorder) == [("backward", 0), ("all_reduce_bucket 0.0", 0)]  # as they began


def test_a_recorder_that_is_off_records_nothing():
    recorder = SpanRecorder(CPU, enabled=False)
    recorder.begin_step()
    recorder.phase("forward")
    with recorder.span("halo"):
        pass
    recorder.phase("")
    assert (recorder.spans(), recorder.wait_s) == ([], None)


class FakeEvent:
    """A CUDA event on a device whose clock starts at the first event and runs as told."""

    clock_ms = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, _stream):
        self.at_ms = FakeEvent.clock_ms

    def synchronize(self):
        pass

    def elapsed_time(self, later):
        return later.at_ms - self.at_ms


def test_on_cuda_events_come_to_the_clock_of_the_host(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    monkeypatch.setattr(time, "perf_counter", lambda: 100.0)
    recorder = SpanRecorder(torch.device("cuda", 0), keep_first=1)
    FakeEvent.clock_ms = 2.0
    with recorder.span("receive_wait", 0):
        FakeEvent.clock_ms = 5.0
    with recorder.span("receive_wait", 1):
        pass
    (span,) = recorder.spans()
    assert span == ("receive_wait", 0, pytest.approx(100.002), pytest.approx(100.005))
    assert recorder.wait_s is None
