"""cuDNN's words for "no plan fits", on a full device and with room; by a made-up torch.cuda."""

from __future__ import annotations

import pytest
import torch

from ddlbench.runtime.rank_report import classify

FIND = "FIND was unable to find an engine to execute this computation after trying 7 plans."
GET = "GET was unable to find an engine to execute this computation"


@pytest.fixture
def gpus(monkeypatch):
    """Two GPUs, of which this process uses the second; ``free`` is what that one says."""

    def say(free):
        def mem_get_info(index):
            assert index == 1, "asking opens a context on a GPU of another process"
            if isinstance(free, Exception):
                raise free
            return free, 80_000_000_000

        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 5 * index)
        monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)

    return say


@pytest.mark.parametrize("text", [FIND, GET])
def test_no_engine_on_a_full_device_is_out_of_memory(text, gpus):
    gpus(7_900_000_000)
    status, reason = classify(RuntimeError(text))
    assert status == "out_of_memory"
    assert text in reason
    assert "7.90 of 80.00 GB free on cuda:1" in reason


@pytest.mark.parametrize("free", [8_000_000_000, RuntimeError("CUDA error: unspecified")])
def test_no_engine_with_room_is_a_failure_with_its_text(free, gpus):
    gpus(free)
    assert classify(RuntimeError(FIND)) == ("failed", f"RuntimeError: {FIND}")


def test_no_engine_without_a_gpu_is_a_failure():
    assert classify(RuntimeError(GET))[0] == "failed"


@pytest.mark.parametrize("name", ["CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED"])
def test_a_library_that_says_so_is_out_of_memory(name):
    assert classify(RuntimeError(f"cuDNN error: {name}"))[0] == "out_of_memory"
