"""A plan whose stage cannot fit ends before any process starts, as a result that says why."""

from __future__ import annotations

import json

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import read_result
from ddlbench.experiment.site import load_site
from ddlbench.runtime import supervise


def test_it_is_a_result_without_a_run(tmp_path, monkeypatch) -> None:
    plans = []

    def too_large(plan, site):
        plans.append((plan.details["stages"], site.name))
        return "stage 1 needs too much"

    def launched(*_: object) -> None:
        raise AssertionError("nothing may start")

    monkeypatch.setattr(supervise, "why_too_large", too_large)
    monkeypatch.setattr(supervise, "_launch_and_watch", launched)
    cell = Cell("mnist", "vgg11", "pipedream", 8, devices_per_node=2)
    result = supervise.run_cell(cell, load_site("local"), tmp_path)
    assert read_result(tmp_path / "result.json") == result
    assert (result.status, result.reason) == ("unsupported", "stage 1 needs too much")
    assert result.timing is None
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plans == [(plan["details"]["stages"], "local")]
