"""Peak memory of the measured region; without a GPU, by a made-up allocator."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ddlbench.experiment.result import DeviceMemory
from ddlbench.runtime.loop import Extent, measure
from ddlbench.runtime.meters import device_memory, restart_peaks
from ddlbench.strategies.executor import RunRecord

GPUS = (torch.device("cuda", 0), torch.device("cuda", 1))


class Allocator:
    """CUDA's allocator as far as peaks go, in bytes of each device."""

    def __init__(self, monkeypatch) -> None:
        self.now, self.peak = [100, 200], [100, 200]
        for name in ("max_memory_allocated", "max_memory_reserved", "reset_peak_memory_stats"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        properties = SimpleNamespace(total_memory=4000, uuid="made up")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)

    def for_a_while(self, more: int) -> None:
        """Allocate and give back on both."""
        self.peak = [max(p, n + more) for p, n in zip(self.peak, self.now, strict=True)]

    def max_memory_allocated(self, device):
        return self.peak[device.index]

    def max_memory_reserved(self, device):
        return 2 * self.peak[device.index]

    def reset_peak_memory_stats(self, device):
        self.peak[device.index] = self.now[device.index]


class Searching:
    """An executor whose first steps try what needs much room."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator

    def run(self, first: int, count: int) -> RunRecord:
        self.allocator.for_a_while(900 if first == 0 else 300)
        return RunRecord(list(range(first, first + count)), [0.1] * count, [0.0] * count)


@pytest.fixture
def allocator(monkeypatch):
    return Allocator(monkeypatch)


def test_peaks_are_of_the_measured_region_and_those_with_warm_up_beside(allocator):
    before: list[int] = []
    measure(
        Searching(allocator),
        Extent(warmup_steps=2, epochs=1, steps_per_epoch=3),
        GPUS,
        1,
        lambda: before.extend(restart_peaks(GPUS)),
    )
    actual = device_memory(GPUS, None, before)
    assert [entry["peak_bytes"] for entry in actual] == [400, 500]
    assert [entry["peak_with_warmup_bytes"] for entry in actual] == [1000, 1100]
    assert [DeviceMemory.from_dict(entry).reserved_bytes is None for entry in actual] == [False] * 2


def test_what_needs_most_after_warm_up_is_both_peaks(allocator):
    before = restart_peaks(GPUS)
    allocator.for_a_while(1500)
    assert device_memory(GPUS, None, before)[0]["peak_with_warmup_bytes"] == 1600


def test_without_a_restart_there_is_one_peak(allocator):
    assert "peak_with_warmup_bytes" not in device_memory(GPUS, None)[0]


def test_cpu_devices_have_the_peak_of_live_tensors():
    cpu = (torch.device("cpu"),)
    assert restart_peaks(cpu) == []
    assert device_memory(cpu, 7, []) == [
        {
            "device": "cpu",
            "peak_bytes": 7,
            "reserved_bytes": None,
            "device_used_bytes": None,
            "total_bytes": None,
        }
    ]
