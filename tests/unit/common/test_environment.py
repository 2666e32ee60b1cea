"""Environment variables of a block."""

from __future__ import annotations

import os

import pytest

from ddlbench.common.environment import environment


def test_variables_are_as_before_after_the_block_also_when_it_fails(monkeypatch):
    monkeypatch.setenv("DDLBENCH_A", "before")
    monkeypatch.setenv("DDLBENCH_B", "before")
    monkeypatch.delenv("DDLBENCH_C", raising=False)
    names = ("DDLBENCH_A", "DDLBENCH_B", "DDLBENCH_C")
    with (
        pytest.raises(ZeroDivisionError),
        environment(DDLBENCH_A="inside", DDLBENCH_B=None, DDLBENCH_C="inside"),
    ):
        assert [os.environ.get(name) for name in names] == ["inside", None, "inside"]
        _ = 1 / 0
    assert [os.environ.get(name) for name in names] == ["before", "before", None]
