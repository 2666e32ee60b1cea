"""What only the built network shows to be impossible: every rank says so before any message."""

from __future__ import annotations

import pytest
from torch import nn
from torch.distributed import Store

from ddlbench.equivalence.one_device import Reader, context_of
from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import build
from ddlbench.planning.planner import make_plan
from ddlbench.strategies.executor import Unsupported, executor_of


def refused(cell: Cell, rank: int, store: Store | None) -> str:
    plan = make_plan(cell)
    process = plan.processes[rank]
    if cell.network == "weightless":
        network = nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(10))
    elif cell.network == "five":
        network = nn.Sequential(
            nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, 10), nn.ReLU()
        )
    else:
        network = build(cell.network, DATASETS["mnist"], seed=1)
    data = Reader(cell, process) if process.needs else None
    with pytest.raises(Unsupported) as caught:
        executor_of(cell).prepare(plan, process, network, data, context_of(plan, process, store))
    return str(caught.value)


@pytest.mark.parametrize(
    ("strategy", "network", "options", "sentence"),
    [
        ("pipedream", "five", {"balance": "1+1"}, "balance 1+1 deals 2 blocks, the network has 5"),
        (
            "pipe-gpipe",
            "five",
            {"balance": "1+1"},
            "deals 2 blocks to 2 stages, but the network has 5",
        ),
        (
            "spatial",
            "alexnet",
            {},
            "layer features_5 (MaxPool2d) has 1 row, too few for 2 devices",
        ),
        ("parameter-server", "weightless", {}, "the network has no trained weights"),
        (
            "tensor-parallel",
            "weightless",
            {},
            "weightless has no two linear layers that tensor-parallel could split",
        ),
    ],
)
def test_it_is_one_sentence_of_every_rank(strategy, network, options, sentence):
    cell = Cell("mnist", network, strategy, 8, devices_per_node=2, options=tuple(options.items()))
    (sentences,) = run_ranks(refused, [cell], make_plan(cell).world_size)
    assert all(sentence in words for words in sentences)
