"""Trains cells with their real executors, and compares them with sequential training.

After several steps a parallel strategy must have the weights of sequential training. The reference
computes the same mini-batch part by part, so that batch norm sees the samples of a rank or
micro-batch, and averages gradients. Dropout is off.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.distributed import Store
from torch.nn.functional import cross_entropy

from ddlbench.equivalence.mini_batches import Reader, global_batch, whole_batches
from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.equivalence.reference import train_in_parts
from ddlbench.equivalence.trial import context_of
from ddlbench.equivalence.verdict import STATISTICS
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime.rendezvous import barrier
from ddlbench.strategies.executor import executor_of
from ddlbench.testing.networks import network_of

__all__ = [
    "STATISTICS",
    "Reader",
    "assert_cell_equals_sequential",
    "assert_same_bits",
    "assert_same_weights",
    "context_of",
    "executor_of",
    "global_batch",
    "network_of",
    "reference",
    "sequential",
    "train",
]

# (first, count) of each call of ``run``: warm-up, and the measured region.
Runs = tuple[tuple[int, int], ...]


def loss_of(cell: Cell) -> Any:
    """Cross entropy; for ``linear`` a loss whose gradient does not depend on the weights."""
    if cell.network == "linear":
        return lambda outputs, labels: (outputs * labels[:, None]).mean()
    return lambda outputs, labels: cross_entropy(outputs.flatten(0, -2), labels.flatten())


def dtype_of(network: nn.Module) -> torch.dtype:
    """The type of its weights."""
    return next(network.parameters()).dtype


def train_here(cell: Cell, rank: int, store: Store | None, *, runs: Runs) -> dict[str, Any]:
    """Train as one rank; return its final state and its records."""
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    network = network_of(cell)
    context = context_of(plan, process, store, dtype_of(network))
    progress: list[int] = []
    context.progress = progress.append
    data = Reader(cell, process, dtype_of(network)) if process.needs else None
    executor.prepare(plan, process, network, data, context)
    if cell.network == "linear":
        executor.loss_function = loss_of(cell)
    records = [executor.run(first, count) for first, count in runs]
    empty = executor.run(sum(count for _, count in runs), 0)
    kept_bytes = sum(tensor.nbytes for tensor in executor.persistent_tensors())
    parts = getattr(executor, "parts", None)
    result = {
        "role": process.role,
        "state": {k: v.clone() for k, v in executor.state_dict()["network"].items()},
        "loss": [loss for record in records for loss in record.loss],
        "ids": [number for record in records for number in record.ids],
        "steps": [len(record.step_s) for record in [*records, empty]],
        "loads": [len(record.load_s) for record in [*records, empty]],
        "spans": records[-1].spans,
        "wait_s": records[-1].communication_wait_s,
        "progress": progress,
        "details": executor.details(),
        "kept_bytes": kept_bytes,
        "versions": parts.versions.most if parts is not None else None,
    }
    barrier(store, "done", plan.world_size)
    executor.close()
    return result


def train(cells: Sequence[Cell], runs: Runs, limit_s: float = 120) -> list[list[dict[str, Any]]]:
    """For each cell the results of all ranks, in one world; cells have equally many ranks."""
    (world_size,) = {make_plan(cell).world_size for cell in cells}
    return run_ranks(partial(train_here, runs=runs), cells, world_size, limit_s)


def reference(cell: Cell, parts: int, steps: int) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Weights and losses of :func:`sequential`; computed once for cells with the same training."""
    plain = cell.with_(strategy="sequential", nodes=1, devices_per_node=1, options=())
    state, losses = _reference(plain, parts, steps)
    return dict(state), list(losses)


def sequential(cell: Cell, parts: int, steps: int) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Weights and losses of sequential training, with each mini-batch in equal parts.

    It uses torch's current random state.
    """
    network = network_of(cell)
    batches = whole_batches(cell, steps, dtype_of(network))
    trained = train_in_parts(cell, network, batches, loss_of(cell), micro_batches=parts)
    return trained.states[0], trained.losses[0]


_reference = cache(sequential)


def assert_same_weights(
    actual: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    place: str = "",
    *,
    rtol: float = 1e-10,
    atol: float = 1e-12,
) -> None:
    """Compare all but batch norm's statistics, which each rank has for its own samples."""
    for name, value in expected.items():
        if not name.endswith(STATISTICS):
            torch.testing.assert_close(
                actual[name], value, rtol=rtol, atol=atol, msg=partial(_at, f"{place} {name}")
            )


def _at(place: str, message: str) -> str:
    return f"{place}: {message}"


def assert_same_bits(actual: Any, expected: Any, place: str = "state") -> None:
    """Compare bit for bit, also within dictionaries and lists."""
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype, place
        assert torch.equal(actual, expected), place
    elif isinstance(expected, dict):
        assert list(actual) == list(expected), place
        for key, value in expected.items():
            assert_same_bits(actual[key], value, f"{place}/{key}")
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), place
        for index, value in enumerate(expected):
            assert_same_bits(actual[index], value, f"{place}/{index}")
    else:
        assert actual == expected, place


_STEPS = 4


def assert_cell_equals_sequential(cell: Cell, parts: int) -> None:
    """Train a cell and its sequential reference in float32; compare weights and mean losses.

    Args:
        cell: of a data-parallel strategy or a synchronous pipeline.
        parts: the number of ranks or micro-batches that compute a mini-batch.
    """
    assert strategy_of(cell.strategy).supports(cell) is None
    expected, losses = reference(cell, parts, _STEPS)
    (ranks,) = train([cell], ((0, _STEPS),))
    for rank in ranks:
        assert_same_weights(rank["state"], expected, rtol=1e-4, atol=1e-5)
    mean_losses = torch.tensor([rank["loss"] for rank in ranks]).mean(dim=0)
    torch.testing.assert_close(mean_losses, torch.tensor(losses), rtol=1e-3, atol=1e-4)
