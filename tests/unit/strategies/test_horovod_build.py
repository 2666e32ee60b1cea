"""On GPUs a Horovod without NCCL is not measured: it would be another strategy by the same name."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from ddlbench.interconnect import sweep
from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.horovod.executor import HorovodExecutor, why_not_on

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def horovod(nccl: int) -> SimpleNamespace:
    """As much of Horovod as is asked before it is initialised."""

    def init():
        raise AssertionError("it must not be initialised")

    return SimpleNamespace(nccl_built=lambda: nccl, init=init)


@pytest.fixture
def installed(monkeypatch):
    """Horovod of one build, as import finds it."""

    def install(nccl: int) -> None:
        package = ModuleType("horovod")
        package.__spec__ = SimpleNamespace(name="horovod")
        monkeypatch.setitem(sys.modules, "horovod", package)
        monkeypatch.setitem(sys.modules, "horovod.torch", horovod(nccl))

    return install


@pytest.mark.parametrize(
    ("device", "nccl", "runs"),
    [(CPU, 0, True), (CPU, 22707, True), (GPU, 22707, True), (GPU, 0, False)],
)
def test_which_build_is_measured_where(device, nccl, runs):
    assert (why_not_on(device, horovod(nccl)) is None) == runs


def test_the_cell_is_unsupported_with_the_remedy(installed):
    installed(nccl=0)
    executor = HorovodExecutor()
    executor.context = SimpleNamespace(devices=(GPU,))
    with pytest.raises(Unsupported, match=r"without NCCL.*make setup again.*forget"):
        executor.place(torch.nn.Sequential(torch.nn.Linear(1, 1)))


def test_links_have_a_note_instead_of_the_sweep(installed):
    installed(nccl=0)
    assert "built without NCCL" in sweep._why_no_horovod(GPU)
    assert sweep._why_no_horovod(CPU) is None
    installed(nccl=22707)
    assert sweep._why_no_horovod(GPU) is None
