"""A GPU counts when it computes."""

from __future__ import annotations

import pytest
import torch

from ddlbench.cluster import checks
from ddlbench.cluster.checks import failure_of, visible_gpus


def test_a_device_that_computes_rightly_has_no_failure():
    assert failure_of("cpu") is None


def test_a_wrong_result_is_a_failure(monkeypatch):
    right = torch.nn.functional.conv2d
    monkeypatch.setattr(torch.nn.functional, "conv2d", lambda *given: right(*given) * 2)
    assert failure_of("cpu") == "a convolution gives 15552 and 15552 instead of 7776"


def test_the_error_is_told_in_one_line(monkeypatch):
    def broken(*_given):
        raise RuntimeError("CUDA error: no kernel image is available\nfor execution on the device")

    monkeypatch.setattr(torch.nn.functional, "conv2d", broken)
    assert failure_of("cpu") == (
        "CUDA error: no kernel image is available for execution on the device"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_gpus_that_are_only_counted_are_told_as_broken(monkeypatch):
    """NVML may count GPUs that this torch cannot use; here it has none at all."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    actual = visible_gpus()
    assert [gpu["index"] for gpu in actual] == [0, 1]
    assert all(gpu["error"] for gpu in actual)


def test_no_gpu_is_an_empty_list(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert checks.visible_gpus() == []
