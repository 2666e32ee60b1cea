"""The process whose forks are the ranks of a node: what its supervisor learns of it and of them."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from ddlbench.planning.plan import Process
from ddlbench.runtime import node_starter
from ddlbench.runtime.launch import LocalLaunch, Step, fork_line

RANKS = [
    Process(rank=rank, role="worker", node=0, local_rank=rank, devices=(0,)) for rank in (0, 1)
]


def run(code: str) -> tuple[list[str], dict[int, int]]:
    """Lines of a starter that runs ``code``, and how its guards ended."""
    step = Step(("false",), RANKS, 1, 2, 1, None, starter=(sys.executable, "-S", "-c", code))
    launch = LocalLaunch(step)
    lines = [line for line in launch.lines(time.monotonic() + 60) if line is not None]
    ended = launch.ended()
    launch.stop()
    return lines, ended


def test_a_starter_that_fails_speaks_for_its_first_rank() -> None:
    lines, ended = run("raise ImportError('no torch here')")
    assert lines[-1] == "[0] ImportError: no torch here"
    assert ended == {0: 1, 1: 1}


def test_a_signal_that_ends_a_starter_counts_for_its_ranks() -> None:
    _, ended = run("import os; os.kill(os.getpid(), 11)")
    assert ended == {0: -11, 1: -11}


def test_what_a_starter_prints_without_a_newline_hides_no_guard() -> None:
    marks = fork_line(0, 12345, 0), fork_line(1, 12346, -6)
    lines, ended = run(f"print('a warning', end=''); print({marks[0]!r}); print({marks[1]!r})")
    assert (lines, ended) == (["[0] a warning"], {0: 0, 1: -6})


def test_a_guard_of_a_fork_that_has_ended_signals_nobody() -> None:
    """Its number may be another process's; an error would keep the guard from its report."""
    code = (
        "import os; from ddlbench.runtime.node_starter import Fork; "
        "fork = Fork(lambda: os._exit(3)); assert fork.wait() == 3; fork.send_signal(15)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_starter_imports_no_part_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may read its rank's variables, start threads, or end the process."""
    imported: list[str] = []

    def described(name: str) -> Any:
        return SimpleNamespace(executor=f"executor of {name}")

    nothing = SimpleNamespace(import_module=lambda _name: None)
    monkeypatch.setattr(node_starter, "importlib", nothing)
    monkeypatch.setattr(node_starter, "strategy_of", described)
    monkeypatch.setattr(node_starter, "resolve_name", imported.append)
    monkeypatch.setattr(node_starter, "load", lambda _group, name: imported.append(name))
    for strategy, network in (("ddp", "mlp"), ("mine:Mine", "mine:network")):
        cell: Any = SimpleNamespace(strategy=strategy, network=network)
        node_starter._import_parts(cell)
    assert imported == ["executor of ddp", "mlp"]
