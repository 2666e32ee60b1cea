"""Cells of a parameter server with a small network."""

from __future__ import annotations

from typing import Any

from ddlbench.experiment.cell import Cell

RUNS = ((0, 2), (2, 4))  # (first, count): warm-up, and the measured region
FEW_BYTES = 256  # messages that part every tensor but the smallest


def cell_of(
    servers: int, workers: int, network: str = "small_networks:odd", **options: Any
) -> Cell:
    momentum = options.pop("momentum", 0.9)
    if servers > 1:
        options["servers"] = servers
    return Cell(
        dataset="mnist",
        network=network,
        strategy="parameter-server",
        batch_size=12,
        warmup_steps=RUNS[0][1],
        devices_per_node=servers + workers,
        learning_rate=0.05,
        momentum=momentum,
        options=tuple(options.items()),
    )
