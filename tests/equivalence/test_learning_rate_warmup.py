"""The learning rate rises over the first steps, with every strategy as in sequential training.

PipeDream's is in test_pipedream_replay.py.
"""

from __future__ import annotations

import importlib.util

import pytest
from cases.small_cells import needs_horovod

from ddlbench.experiment.cell import Cell
from ddlbench.testing import assert_cells_resume
from ddlbench.testing.training import assert_same_weights, reference, train

WARMUP = 3  # of four steps
RUNS = ((0, 2), (2, 2))  # it rises in both


def cell_of(strategy: str, devices: int, network: str = "residual", **options) -> Cell:
    return Cell(
        dataset="mnist",
        network=network,
        strategy=strategy,
        batch_size=16,
        devices_per_node=devices,
        learning_rate=0.05,
        learning_rate_warmup_steps=WARMUP,
        options=tuple(sorted(options.items())),
    )


needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed here"
)


@pytest.mark.parametrize(
    ("cell", "parts"),
    [
        (cell_of("sequential", 1), 1),
        (cell_of("ddp", 2), 2),
        (cell_of("ddp", 2, shard="optimizer"), 2),
        (cell_of("fsdp", 2), 2),
        (cell_of("local-sgd", 2, average_every_steps=1), 2),
        (cell_of("parameter-server", 3), 2),
        (cell_of("parameter-server", 2, mode="async"), 1),
        (cell_of("tensor-parallel", 2, "small_networks:transformer"), 1),
        (cell_of("gpipe", 2, balance="2+4"), 4),
        (cell_of("model-parallel-p2p", 2, balance="2+4"), 1),
        (cell_of("pipe-1f1b", 2, balance="2+4"), 4),
        pytest.param(cell_of("horovod", 2), 2, marks=needs_horovod),
        pytest.param(cell_of("deepspeed", 2), 2, marks=needs_deepspeed),
    ],
    ids=lambda value: value.id if isinstance(value, Cell) else None,
)
def test_it_rises_as_in_sequential_training(cell, parts):
    """By the steps of the cell, not of a run."""
    steps = sum(count for _first, count in RUNS)
    expected, _losses = reference(cell, parts, steps)
    full, _losses = reference(cell.with_(learning_rate_warmup_steps=0), parts, steps)
    (ranks,) = train([cell], RUNS)
    trained = [rank["state"] for rank in ranks if rank["role"] != "server"]
    actual = {name: value for state in trained for name, value in state.items()}
    assert_same_weights(actual, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(AssertionError):
        assert_same_weights(actual, full, rtol=1e-4, atol=1e-5)


def test_a_resumed_cell_goes_on_with_the_right_rate(tmp_path):
    """It has two warm-up steps, and a checkpoint after three more: the rate still rises then."""
    cells = [cell_of("ddp", 2, "dropout"), cell_of("ddp", 2, "dropout", shard="optimizer")]
    cells.append(cell_of("pipedream", 2, "dropout", balance="5+5"))
    assert_cells_resume(
        [cell.with_(batch_size=12, learning_rate_warmup_steps=7) for cell in cells], tmp_path
    )
