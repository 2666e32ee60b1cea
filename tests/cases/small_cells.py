"""Small cells that are compared with training on one device."""

from __future__ import annotations

import importlib.util

import pytest

from ddlbench.experiment.cell import Cell

STEPS = 4
RUNS = ((0, STEPS),)

needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod is not built here"
)


def cell_of(
    strategy: str, devices: int, network: str = "residual", nodes: int = 1, **options
) -> Cell:
    return Cell(
        dataset="mnist",
        network=network,
        strategy=strategy,
        batch_size=16,
        nodes=nodes,
        devices_per_node=devices,
        learning_rate=0.05,
        options=tuple(sorted(options.items())),
    )
