"""Tests of a strategy, also of another package, with real ranks on this machine.

::

    from ddlbench.testing import assert_equals_sequential, assert_resumes

    def test_it_trains_what_sequential_training_trains():
        assert_equals_sequential("mine", devices=2)

    def test_it_goes_on_from_a_checkpoint(tmp_path):
        assert_resumes("mine", tmp_path, devices=2)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.cell import Cell
from ddlbench.testing.training import assert_cell_equals_sequential, assert_cells_resume

__all__ = [
    "assert_cell_equals_sequential",
    "assert_cells_resume",
    "assert_equals_sequential",
    "assert_resumes",
    "run_ranks",
]


def assert_equals_sequential(
    strategy: str, devices: int = 2, parts: int | None = None, **options: Any
) -> None:
    """Check that weights after four steps equal those of sequential training, to 1e-4.

    Args:
        strategy: its name, or ``package.module:Class``.
        devices: on one node.
        parts: the number of parts in which a mini-batch is computed; by default one per device.
        options: of the strategy.
    """
    cell = _cell("residual", strategy, devices, 16, options)
    assert_cell_equals_sequential(cell, devices if parts is None else parts)


def assert_resumes(strategy: str, folder: Path, devices: int = 2, **options: Any) -> None:
    """Check that a strategy resumes from its checkpoint in new processes, bit for bit.

    Args:
        strategy: its name, or ``package.module:Class``.
        folder: an empty folder.
        devices: on one node.
        options: of the strategy.
    """
    assert_cells_resume([_cell("dropout", strategy, devices, 12, options)], folder)


def _cell(
    network: str, strategy: str, devices: int, batch_size: int, options: dict[str, Any]
) -> Cell:
    return Cell(
        dataset="mnist",
        network=network,
        strategy=strategy,
        batch_size=batch_size,
        devices_per_node=devices,
        learning_rate=0.05,
        options=tuple(sorted(options.items())),
    )
