"""torchgpipe cuts where the plan says, when the plan was made from a profile."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.strategies.executor import Context, Unsupported

pytest.importorskip("torchgpipe")


@pytest.mark.parametrize("strategy", ["gpipe", "model-parallel"])
def test_a_planned_balance_is_kept_to(strategy) -> None:
    from ddlbench.strategies.gpipe import GPipeExecutor

    cell = Cell("mnist", "tiny", strategy, 8, devices_per_node=2, options=(("balance", "profile"),))
    descriptor = strategy_of(strategy)
    details = {**descriptor.option_values(cell), "blocks_per_device": [1, 3]}
    executor = GPipeExecutor()
    executor.plan = Plan(cell, descriptor.placement(cell), details)
    executor.context = Context((torch.device("cpu"),) * 2)
    module = executor.place(nn.Sequential(*(nn.Linear(2, 2) for _ in range(4))))
    assert executor.balance == [1, 3]
    assert [len(partition) for partition in module.partitions] == [1, 3]
    with pytest.raises(Unsupported, match=r"deals 4 blocks .* the network has 5"):
        executor.place(nn.Sequential(*(nn.Linear(2, 2) for _ in range(5))))
