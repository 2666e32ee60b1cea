"""The buckets that predictors count are those that torch's DDP makes."""

from __future__ import annotations

import os
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.distributed import Store

from ddlbench.equivalence.one_device import Reader, context_of
from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import Accelerator, shrunk_bytes
from ddlbench.planning.planner import make_plan
from ddlbench.planning.step import filled_buckets
from ddlbench.planning.workload import Tensor
from ddlbench.strategies.ddp.descriptor import DdpOptions
from ddlbench.strategies.executor import executor_of

SIDE = 512  # a weight of 1 MiB


def network() -> nn.Sequential:
    """Thirty-odd MiB: tensors of one MiB, of two KiB, and a large one in the middle."""
    torch.manual_seed(0)
    blocks: dict[str, nn.Module] = {"flatten": nn.Flatten(), "stem": nn.Linear(784, SIDE)}
    for number in range(4):
        blocks[f"first{number}"] = nn.Linear(SIDE, SIDE)
    blocks["wide"] = nn.Linear(SIDE, 26 * SIDE)
    blocks["narrow"] = nn.Linear(26 * SIDE, 16)
    blocks["open"] = nn.Linear(16, SIDE)
    for number in range(3):
        blocks[f"last{number}"] = nn.Linear(SIDE, SIDE)
    blocks["head"] = nn.Linear(SIDE, 10)
    return nn.Sequential(OrderedDict(blocks))


def train_here(case, rank: int, store: Store | None) -> dict:
    cell, shrink = case
    os.environ.update(Accelerator("/no/profiles", shrink=shrink).variables())
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    context = context_of(plan, process, store)
    executor.prepare(plan, process, network(), Reader(cell, process, torch.float32), context)
    executor.run(0, 3)  # torch settles its buckets after the first step
    bucket_sizes = executor.module._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    details = executor.details()
    executor.close()
    for name in Accelerator("").variables():
        del os.environ[name]
    return {"sizes": [int(size) for size in bucket_sizes.split(",")], "details": details}


@pytest.mark.parametrize("shrink", [1, 5.5], ids=["whole", "shrunk"])
@pytest.mark.parametrize("cap_bytes", [None, 3 * 2**20], ids=["default", "given"])
@pytest.mark.slow
def test_torch_makes_the_buckets_that_are_predicted(cap_bytes, shrink):
    options = () if cap_bytes is None else (("bucket_cap_bytes", cap_bytes),)
    cell = Cell("mnist", "wide", "ddp", batch_size=16, devices_per_node=2, options=options)
    (ranks,) = run_ranks(train_here, [(cell, shrink)], 2)
    gradients = reversed(list(network().named_parameters()))
    tensors = [Tensor(name, p.numel() * 4, 1.0) for name, p in gradients]
    caps = DdpOptions.of(make_plan(cell)).caps(lambda size: shrunk_bytes(size, shrink))
    filled = filled_buckets(tensors, *caps)
    expected = [message.bytes for message in filled]
    for rank in ranks:
        assert rank["sizes"] == expected
        assert rank["details"]["first_bucket_bytes"] == caps[0]
    if cap_bytes is None and shrink == 1:
        assert expected[0] < 3 * 2**20 < 25 * 2**20 <= expected[1]
