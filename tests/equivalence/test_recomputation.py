"""Blocks that compute their activations again train bit for bit as those that keep them."""

from __future__ import annotations

import importlib.util

import pytest
from cases.small_cells import needs_horovod

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import STRATEGIES
from ddlbench.planning.recomputation import RecomputingOptions
from ddlbench.planning.strategy import strategy_of
from ddlbench.testing.training import assert_same_bits, train

RUNS = ((0, 3),)


def cell_of(strategy: str, devices: int = 2, network: str = "residual", **options) -> Cell:
    return Cell(
        dataset="tokens" if network == "gpt-tiny" else "mnist",
        network=network,
        strategy=strategy,
        batch_size=8,
        devices_per_node=devices,
        options=tuple(sorted({**options, "recompute": True}.items())),
    )


needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed here"
)
CASES = [
    cell_of("ddp"),
    cell_of("ddp", accumulate=2),
    cell_of("ddp", network="cases.strangers_networks:noisy"),
    cell_of("ddp", network="gpt-tiny", shard="optimizer"),
    cell_of("fsdp"),
    cell_of("fsdp", accumulate=2),
    cell_of("hsdp", network="gpt-tiny"),
    cell_of("local-sgd"),
    cell_of("parameter-server", 3),
    cell_of("pipedream", balance="2+4"),
    cell_of("pipedream", network="gpt-tiny"),
    cell_of("pipe-gpipe", balance="2+4", chunks=2),
    cell_of("pipe-1f1b", balance="2+4", chunks=2),
    cell_of("pipe-interleaved", network="gpt-tiny", chunks=2),
    pytest.param(cell_of("horovod"), marks=needs_horovod),
    *(pytest.param(cell_of("deepspeed", stage=stage), marks=needs_deepspeed) for stage in (2, 3)),
]


@pytest.mark.parametrize("cell", CASES, ids=lambda cell: cell.id)
def test_it_changes_no_bit(cell):
    plain = cell.with_(options=tuple(pair for pair in cell.options if pair[0] != "recompute"))
    assert strategy_of(cell.strategy).supports(cell) is None
    # Separate worlds, as Horovod joins once in a process.
    (again,), (kept,) = (train([each], RUNS) for each in (cell, plain))
    for rank, expected in zip(again, kept, strict=True):
        for part in ("state", "loss"):
            assert_same_bits(rank[part], expected[part], part)


def test_every_strategy_with_the_option_is_tried():
    tried = {str(getattr(case, "values", [case])[0].strategy) for case in CASES}
    can = {name for name in STRATEGIES if issubclass(strategy_of(name).options, RecomputingOptions)}
    assert can <= tried
