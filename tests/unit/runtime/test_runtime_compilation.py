"""Compilation ahead of warm-up: what it costs, what it undoes, and what a machine lacks."""

from __future__ import annotations

import pytest
import torch
from cases.rank_reports import rank_report

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.training import Compilation
from ddlbench.runtime import compilation
from ddlbench.runtime.compilation import compile_ahead, ready_to_compile, why_no_compiler
from ddlbench.runtime.rank_report import CompileCost
from ddlbench.runtime.result import compilation as part_of
from ddlbench.runtime.result import compilation_notes
from ddlbench.strategies.executor import Context, RunRecord, Unsupported

CELL = Cell("mnist", "resnet18", "sequential", 16, compile=True)


class Learning:
    """An executor whose steps change a weight and draw random numbers."""

    def __init__(self, context: Context, steps_s=(9.0, 2.0, 1.5), error=None) -> None:
        self.weight, self.context = torch.zeros(1), context
        self.steps_s, self.error = list(steps_s), error

    def run(self, _first: int, count: int) -> RunRecord:
        if self.error is not None:
            raise self.error
        for step in range(count):
            self.weight += torch.rand(1)
            self.context.progress(step)
        return RunRecord(list(range(count)), self.steps_s, [0.0] * count)

    def checkpoint_state(self):
        return {"weight": self.weight}

    def load_checkpoint_state(self, state) -> None:
        self.weight.copy_(state["weight"])


@pytest.fixture
def context():
    heard = []
    made = Context(devices=(torch.device("cpu"),), progress=heard.append)
    made.heard = heard
    return made


def test_its_seconds_are_those_beyond_steps_and_nothing_else_is_left(monkeypatch, context):
    monkeypatch.setattr(compilation, "compiled_graphs", lambda: 4)
    executor, random = Learning(context), torch.get_rng_state()
    cost = compile_ahead(executor, context, CELL)
    assert cost == CompileCost(compile_s=8.0, graphs=4)
    assert executor.weight == 0
    assert torch.equal(torch.get_rng_state(), random)
    assert context.heard == []
    context.progress(1)
    assert context.heard == [1]
    assert cost.until_now(6).graphs_later == 2


def test_a_cell_that_is_not_compiled_does_nothing(context):
    assert compile_ahead(Learning(context), context, CELL.with_(compile=False)) is None


def test_nothing_to_compile_and_what_torch_cannot_compile_are_no_crash(monkeypatch, context):
    monkeypatch.setattr(compilation, "compiled_graphs", lambda: 0)
    with pytest.raises(Unsupported, match="nothing to compile"):
        compile_ahead(Learning(context), context, CELL)
    from torch._dynamo.exc import InternalTorchDynamoError

    strange = Learning(context, error=InternalTorchDynamoError("a strange operator\nand more"))
    with pytest.raises(Unsupported, match=r"\(InternalTorchDynamoError: a strange operator\)"):
        compile_ahead(strange, context, CELL)
    with pytest.raises(ZeroDivisionError):
        compile_ahead(Learning(context, error=ZeroDivisionError()), context, CELL)


def test_without_a_compiler_there_is_a_reason(monkeypatch, tmp_path):
    from torch._inductor import cpp_builder, exc

    def none(*_arguments):
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    reason = why_no_compiler("cpu")
    assert reason.code == "cannot_compile"
    assert "C++ compiler" in reason
    with pytest.raises(Unsupported, match="g\\+\\+"):
        ready_to_compile("cpu", tmp_path)
    monkeypatch.setattr(compilation.importlib.util, "find_spec", lambda _name: None)
    assert "triton" in why_no_compiler("cuda")
    monkeypatch.setattr(compilation.importlib.util, "find_spec", lambda _name: object())
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compilation.shutil, "which", lambda _name: None)
    assert "C compiler" in why_no_compiler("cuda")


def test_a_result_has_the_slowest_ranks_seconds_and_a_note():
    reports = [
        rank_report(compilation=CompileCost(2.0, 3)),
        rank_report(rank=1, compilation=CompileCost(5.0, 3, graphs_later=1)),
    ]
    part = part_of(reports)
    assert Compilation.from_dict(part.to_dict()) == part
    assert (part.compile_s, part.graphs, part.graphs_later) == (5.0, 3, 1)
    assert len(compilation_notes(part, "cpu")) == 2
    assert part_of([rank_report()]) is None
    assert compilation_notes(None, "cpu") == []
