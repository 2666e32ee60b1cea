"""Why a cell of DeepSpeed cannot run here: each reason is one sentence that says what to do."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ddlbench.experiment.cell import Cell
from ddlbench.planning import matrix
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.strategies.executor import Context, Unsupported
from ddlbench_deepspeed.compiled import compile_operation
from ddlbench_deepspeed.descriptor import RELEASE
from ddlbench_deepspeed.executor import DeepSpeedExecutor

DEEPSPEED = strategy_of("deepspeed")


def test_a_missing_package_is_told_with_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setenv("DS_ACCELERATOR", "")
    cell = Cell("mnist", "mlp", "deepspeed", batch_size=8, devices_per_node=2)
    plan = make_plan(cell)
    context = Context((torch.device("cpu"),))
    with pytest.raises(Unsupported) as caught:
        DeepSpeedExecutor().prepare(plan, plan.processes[0], nn.Sequential(), None, context)
    (reason,) = caught.value.args
    assert reason.code == "package_missing"
    assert str(reason).startswith("DeepSpeed is not installed here")
    assert f"pip install --no-build-isolation deepspeed=={RELEASE}" in str(reason)


def test_the_matrix_says_so_before_a_job_is_submitted(monkeypatch):
    actual = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "deepspeed" else actual(name)
    )
    matrix._missing_package.cache_clear()
    reason = matrix._missing_package(DEEPSPEED.requires, DEEPSPEED.install)
    matrix._missing_package.cache_clear()
    assert reason == f"the package deepspeed is not installed here; {DEEPSPEED.install}"
    assert reason.code == "package_missing"


def test_the_release_is_that_of_the_extra():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["optional-dependencies"]["engine"] == [f"deepspeed=={RELEASE}"]


def test_a_node_without_a_compiler_is_a_reason(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(
        Unsupported, match=r"has no C\+\+ compiler \(c\+\+\); install g\+\+"
    ) as refused:
        monkeypatch.delenv("CXX", raising=False)
        compile_operation(SimpleNamespace())
    assert refused.value.args[0].code == "no_compiler"


def test_a_compiler_that_fails_is_a_reason_too(monkeypatch, tmp_path):
    def load(verbose):
        raise RuntimeError("Error building extension\nmany lines")

    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        Unsupported, match=r"could not be compiled in .*: Error building extension$"
    ):
        compile_operation(SimpleNamespace(load=load))


def test_a_lock_that_a_killed_rank_left_is_removed(monkeypatch, tmp_path):
    left = tmp_path / "deepspeed_shm_comm" / "lock"
    left.parent.mkdir()
    left.touch()
    seen = []
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    compile_operation(SimpleNamespace(load=lambda verbose: seen.append(left.exists())))
    assert seen == [False]
