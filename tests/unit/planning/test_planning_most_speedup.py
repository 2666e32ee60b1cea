"""The bound of each schedule, against the papers' formulas."""

from __future__ import annotations

import pytest

from ddlbench.experiment.cell import Cell
from ddlbench.planning.strategy import strategy_of


def _cell(strategy: str, geometry: tuple[int, int] = (1, 4), **options: int | str) -> Cell:
    nodes, devices = geometry
    return Cell(
        dataset="cifar10",
        network="stack",
        strategy=strategy,
        nodes=nodes,
        devices_per_node=devices,
        batch_size=32,
        options=tuple(sorted(options.items())),
    )


def ideal_speedup(cell: Cell) -> float | None:
    return strategy_of(cell.strategy).ideal_speedup(cell)


@pytest.mark.parametrize("chunks", [4, 8, 32])
@pytest.mark.parametrize("strategy", ["gpipe", "pipe-gpipe", "pipe-1f1b"])
def test_a_flush_costs_p_minus_one_micro_batches(strategy: str, chunks: int) -> None:
    assert ideal_speedup(_cell(strategy, chunks=chunks)) == pytest.approx(4 * chunks / (chunks + 3))


def test_interleaving_divides_the_bubble() -> None:
    """Megatron-LM: bubble over work is (p - 1) / (v m)."""
    found = ideal_speedup(_cell("pipe-interleaved", chunks=8))
    assert found == pytest.approx(4 / (1 + 3 / (2 * 8)))


def test_zero_bubble_is_between_1f1b_and_no_bubble() -> None:
    plain = ideal_speedup(_cell("pipe-1f1b", chunks=8))
    for strategy in ("pipe-zb", "pipe-zbv"):
        found = ideal_speedup(_cell(strategy, chunks=8))
        assert plain < found <= 4


def test_replicas_of_a_pipeline_add_up() -> None:
    found = ideal_speedup(_cell("pipe-1f1b", chunks=4, replicas=2))
    assert found == pytest.approx(2 * (2 * 4 / 5))


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("pipedream", 4.0),
        ("model-parallel", 1.0),
        ("model-parallel-p2p", 1.0),
        ("ddp", None),
        ("sequential", None),
    ],
)
def test_others(strategy: str, expected: float | None) -> None:
    assert ideal_speedup(_cell(strategy)) == expected
