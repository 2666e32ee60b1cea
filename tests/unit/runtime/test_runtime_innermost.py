"""A failure is named by its innermost cause; what is known to crash is looked for first."""

from __future__ import annotations

import socket

import pytest
import torch

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.runtime.job import why_not_started
from ddlbench.runtime.meters import LiveTensors
from ddlbench.runtime.rank_report import classify
from ddlbench.strategies.horovod.executor import HostUnknown, check_host_name


def wrapped(inner: Exception, outer: Exception) -> Exception:
    try:
        try:
            raise inner
        except Exception as error:
            raise outer from error
    except Exception as error:
        return error


def test_a_librarys_wrapper_is_not_the_cause():
    inner = wrapped(ZeroDivisionError("a bug of the network"), ValueError("in between"))
    error = wrapped(inner, RuntimeError("[Stage 1] failed to run forward: args ..."))
    assert classify(error) == ("failed", "ZeroDivisionError: a bug of the network")


def test_memory_that_ran_out_within_a_wrapper_is_out_of_memory():
    error = wrapped(RuntimeError("CUDA out of memory"), RuntimeError("[Stage 1] failed"))
    assert classify(error)[0] == "out_of_memory"


def test_what_torch_refuses_of_a_compiled_block_is_unsupported():
    error = RuntimeError(
        "The ScheduleInterleavedZeroBubble schedule is not supported with stage modules that have "
        "used torch.compile. Found OptimizedModule"
    )
    assert classify(error)[0] == "unsupported"


def test_our_sentence_is_better_than_what_it_came_from():
    error = wrapped(KeyError("x"), ConfigError("write this instead"))
    assert "write this instead" in classify(error)[1]


@pytest.mark.parametrize(
    ("level", "starts"), [("DETAIL", False), ("detail", False), ("INFO", True)]
)
def test_a_debug_level_that_crashes_is_refused(level, starts):
    cell = Cell("mnist", "mlp", "ddp", 4, devices_per_node=2)
    environment = {"TORCH_DISTRIBUTED_DEBUG": level}
    reason = why_not_started(make_plan(cell), environment)
    assert (reason is None) == starts
    lone = cell.with_(strategy="sequential", devices_per_node=1)
    assert why_not_started(make_plan(lone), environment) is None
    assert why_not_started(make_plan(cell), {}) is None


def test_a_host_name_without_an_address_is_a_sentence(monkeypatch):
    check_host_name()
    monkeypatch.setattr(socket, "gethostname", lambda: "no.such.host.example")

    def refuse(*_: object) -> None:
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(HostUnknown, match="'no.such.host.example' has no address .* /etc/hosts"):
        check_host_name()


def test_sparse_tensors_are_counted_by_indices_and_values():
    table = torch.nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 3])).sum().backward()
    tensors = LiveTensors()
    tensors.count([table.weight.grad])
    assert tensors.current_bytes == 2 * 8 + 2 * 4 * 4
