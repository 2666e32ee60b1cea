"""The bound of each schedule, against the papers' formulas."""

from __future__ import annotations

import pytest

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import SHIPPED_STRATEGIES
from ddlbench.experiment.site import ComputeKind
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


def most_speedup(cell: Cell, compute_kind: ComputeKind = "cuda") -> float:
    return strategy_of(cell.strategy).most_speedup(cell, compute_kind)


@pytest.mark.parametrize("chunks", [4, 8, 32])
@pytest.mark.parametrize("strategy", ["gpipe", "pipe-gpipe", "pipe-1f1b"])
def test_a_flush_costs_p_minus_one_micro_batches(strategy: str, chunks: int) -> None:
    assert most_speedup(_cell(strategy, chunks=chunks)) == pytest.approx(4 * chunks / (chunks + 3))


def test_interleaving_divides_the_bubble() -> None:
    """Megatron-LM: bubble over work is (p - 1) / (v m)."""
    actual = most_speedup(_cell("pipe-interleaved", chunks=8))
    assert actual == pytest.approx(4 / (1 + 3 / (2 * 8)))


def test_zero_bubble_is_between_1f1b_and_no_bubble() -> None:
    plain = most_speedup(_cell("pipe-1f1b", chunks=8))
    for strategy in ("pipe-zb", "pipe-zbv"):
        actual = most_speedup(_cell(strategy, chunks=8))
        assert plain < actual <= 4


def test_replicas_of_a_pipeline_add_up() -> None:
    actual = most_speedup(_cell("pipe-1f1b", chunks=4, replicas=2))
    assert actual == pytest.approx(2 * (2 * 4 / 5))


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("pipedream", 4.0),
        ("model-parallel", 1.0),
        ("model-parallel-p2p", 1.0),
        ("ddp", 4.0),
        ("sequential", 4.0),
    ],
)
def test_others(strategy: str, expected: float) -> None:
    assert most_speedup(_cell(strategy)) == expected


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_server_does_not_train(servers: int) -> None:
    assert most_speedup(_cell("parameter-server", servers=servers)) == 4 - servers


def test_partitions_of_one_process_take_turns_on_cpus() -> None:
    assert most_speedup(_cell("gpipe", chunks=8), "cpu") == 1
    assert most_speedup(_cell("gpipe", chunks=8), "emulated") == pytest.approx(4 * 8 / 11)
    assert most_speedup(_cell("pipe-gpipe", chunks=8), "cpu") > 2  # a process a stage


@pytest.mark.parametrize("device", ["cpu", "cuda", "emulated"])
@pytest.mark.parametrize("strategy", SHIPPED_STRATEGIES)
def test_nobody_gains_more_than_there_are_devices(strategy: str, device: ComputeKind) -> None:
    assert 1 <= most_speedup(_cell(strategy), device) <= 4
