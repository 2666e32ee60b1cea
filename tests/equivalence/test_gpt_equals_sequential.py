"""A language model has the weights of sequential training under every kind of strategy.

Its inputs are integers without a gradient, its labels are sequences, and its loss is a mean over
positions.
"""

from __future__ import annotations

import pytest
import torch
from cases.small_cells import needs_horovod

from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.testing import assert_cell_equals_sequential
from ddlbench.testing.training import assert_same_weights, reference, train

STEPS = 3
RUNS = ((0, 1), (1, STEPS - 1))


def cell_of(strategy: str, **options: object) -> Cell:
    return Cell(
        dataset="tokens",
        network="gpt-tiny",
        strategy=strategy,
        batch_size=4,
        devices_per_node=2,
        learning_rate=0.05,
        options=tuple(sorted(options.items())),
    )


@pytest.mark.parametrize(
    ("cell", "parts"),
    [
        (cell_of("ddp"), 2),
        (cell_of("fsdp"), 2),
        pytest.param(cell_of("horovod"), 2, marks=needs_horovod),
        (cell_of("local-sgd", average_every_steps=1), 2),
        (cell_of("gpipe", chunks=2, checkpoint="always", balance="3+4"), 2),
        (cell_of("model-parallel", balance="3+4"), 1),
        (cell_of("filter"), 1),
        (cell_of("channel"), 1),
    ],
    ids=lambda value: value.id if isinstance(value, Cell) else None,
)
def test_weights_equal_sequential_training(cell: Cell, parts: int) -> None:
    assert_cell_equals_sequential(cell, parts)


def test_weights_equal_sequential_training_in_pipelines() -> None:
    cells = [
        cell_of("pipe-gpipe", chunks=2),
        cell_of("pipe-1f1b", chunks=2),
        cell_of("pipe-interleaved", chunks=2),
        cell_of("pipe-zb", chunks=2),
        cell_of("pipe-zbv", chunks=4),
        cell_of("model-parallel-p2p"),
    ]
    for cell in cells:
        assert strategy_of(cell.strategy).supports(cell) is None, cell.id
    for cell, ranks in zip(cells, train(cells, RUNS), strict=True):
        expected, losses = reference(cell, make_plan(cell).details.get("chunks", 1), STEPS)
        actual = {name: value for rank in ranks for name, value in rank["state"].items()}
        assert set(actual) == set(expected)
        for name, value in expected.items():
            torch.testing.assert_close(
                actual[name], value, rtol=1e-9, atol=1e-11, msg=f"{cell.id}: {name}"
            )
        (of_last,) = [rank["loss"] for rank in ranks if rank["loss"]]
        assert of_last == pytest.approx(losses, rel=1e-10)


def test_a_parameter_server_trains_it() -> None:
    cell = cell_of("parameter-server").with_(devices_per_node=3)
    expected, _ = reference(cell, 2, STEPS)
    (ranks,) = train([cell], RUNS)
    workers = [rank for rank in ranks if rank["role"] == "worker"]
    assert len(workers) == 2
    for rank in workers:
        assert_same_weights(rank["state"], expected)


@pytest.mark.parametrize("strategy", ["spatial", "data-spatial"])
def test_rows_of_a_sequence_cannot_be_split(strategy: str) -> None:
    for until in ("head", "auto"):
        reason = strategy_of(strategy).supports(cell_of(strategy, until=until))
        assert (
            reason == "a sequence of tokens has no rows to split; take strategy filter or channel"
        )
