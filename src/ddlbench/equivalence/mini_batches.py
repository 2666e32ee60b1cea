"""Made-up mini-batches, the same in every process, and each process's share of them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.planning.plan import Process


def global_batch(cell: Cell, number: int) -> dict[str, Tensor]:
    """The ``number``-th mini-batch: inputs (N, C, ...) in float64, labels (N,); tokens (N, T)."""
    generator = torch.Generator().manual_seed(1000 + number)
    spec = DATASETS[cell.dataset]
    shape = (cell.batch_size, *spec.shape)
    if spec.kind == "tokens":
        drawn = torch.randint(spec.num_classes, (2, *shape), generator=generator)
        return {"inputs": drawn[0], "labels": drawn[1]}
    inputs = torch.randn(shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(spec.num_classes, shape[:1], generator=generator)
    return {"inputs": inputs, "labels": labels}


def as_read(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Inputs in a type of floats; tokens stay as they are."""
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


def whole_batches(cell: Cell, steps: int, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs, floats of them in ``dtype``, and labels of the first mini-batches."""
    for number in range(steps):
        batch = global_batch(cell, number)
        yield as_read(batch["inputs"], dtype), batch["labels"]


class Reader:
    """The data stream of one process: its shard of its mini-batches, and only what it needs."""

    def __init__(self, cell: Cell, process: Process, dtype: torch.dtype = torch.float64) -> None:
        self.cell, self.process, self.dtype = cell, process, dtype

    def batches(self, first: int, count: int) -> Iterator[Any]:
        """Those of mini-batches ``first`` to ``first + count - 1`` that the process consumes."""
        process = self.process
        for number in range(first + process.replica % process.turns, first + count, process.turns):
            whole = global_batch(self.cell, number)
            whole["inputs"] = as_read(whole["inputs"], self.dtype)
            yield SimpleNamespace(
                **{
                    name: tensor.chunk(process.num_shards)[process.shard]
                    if name in process.needs
                    else None
                    for name, tensor in whole.items()
                }
            )
