"""What a step is made of, on a host and on a device that works while its host loads."""

from __future__ import annotations

import pytest
import torch

from ddlbench.experiment.cell import Cell
from ddlbench.profiling import steps
from ddlbench.profiling.steps import on_device, on_host

MARKED_S = {"forward": 4.0, "backward": 8.0, "optimizer": 2.0}  # of two steps


def test_a_host_loads_and_then_computes():
    actual = on_host(10.0, 3.0, MARKED_S, 2)
    assert actual == {"load_s": 3.0, "forward_s": 2.0, "backward_s": 4.0, "optimizer_s": 1.0}
    assert sum(on_host(12.5, 1.75, MARKED_S, 2).values()) == pytest.approx(12.5)


def test_a_device_works_while_its_host_loads():
    # The host waited for 6 of 8 seconds; the device had 7 of them filled.
    actual = on_device(8.0, 6.0, MARKED_S, 2)
    assert actual == {"load_s": 1.0, "forward_s": 2.0, "backward_s": 4.0, "optimizer_s": 1.0}
    assert sum(actual.values()) == 8.0


def test_no_device_waits_less_than_not_at_all():
    assert on_device(6.9, 1.0, MARKED_S, 2)["load_s"] == 0.0


class Runner:
    """Steps of 1 s of which the host waits 0.75 s, the first of 9 s; writes down what was run."""

    def __init__(self, done: list[str]) -> None:
        self.done = done

    def run(self, count: int) -> tuple[list[float], list[float]]:
        cold = not self.done
        self.done.append(f"run {count}")
        return [9.0 if cold else 1.0] * count, [0.75] * count

    def close(self) -> None:
        self.done.append("close")


def test_a_gpu_is_measured_behind_its_cold_steps(monkeypatch):
    done: list[str] = []
    marked = {"forward": 0.25, "backward": 0.5, "optimizer": 0.125}
    monkeypatch.setattr(steps, "StepRunner", lambda *_: Runner(done))
    monkeypatch.setattr(steps, "restart_peaks", lambda _devices: done.append("restart"))
    monkeypatch.setattr(steps, "marks_on", lambda *_: None)
    monkeypatch.setattr(
        steps,
        "_marked",
        lambda _runner, count, _marks: ({n: s * count for n, s in marked.items()}, []),
    )
    monkeypatch.setattr(steps, "_cuda_memory", lambda _device: (7, 3))
    cell = Cell("mnist", "vgg11", "sequential", batch_size=8)
    actual = steps.measure_steps(cell, None, torch.device("cuda", 0), 20.0)
    # 3 s of 20 for warm-up and 12 for the measured steps, planned from a step that is not cold.
    assert done == ["run 1", "run 1", "run 3", "restart", "run 12", "close"]
    assert actual.fixed_bytes == 3
    assert actual.entry["peak_bytes"] == 7
    assert actual.entry["step_s"] == 1.0
    assert actual.entry["load_s"] == pytest.approx(0.125)  # not the 0.75 s of the host
    assert actual.entry["backward_s"] == pytest.approx(0.5)
