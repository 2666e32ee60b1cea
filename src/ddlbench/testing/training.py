"""Trains cells with their real executors, and compares them with sequential training.

After several steps a parallel strategy must have the weights of sequential training. The reference
computes the same mini-batch part by part, so that batch norm sees the samples of a rank or
micro-batch, and averages gradients. Dropout is off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.distributed import Store
from torch.nn.functional import cross_entropy

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.planning.plan import Plan, make_plan
from ddlbench.planning.strategy import Process, strategy_of
from ddlbench.runtime.rendezvous import barrier
from ddlbench.strategies.executor import Context, executor_of
from ddlbench.testing.networks import network_of
from ddlbench.testing.rank_pool import run_ranks

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of batch norm

# (first, count) of each call of ``run``: warm-up, and the measured region.
Runs = tuple[tuple[int, int], ...]


def context_of(plan: Plan, process: Process, store: Store | None) -> Context:
    """A context whose devices are all this machine's processor."""
    devices = tuple(torch.device("cpu") for _ in process.devices)
    return Context(devices=devices, store=store, interface="lo")


def global_batch(cell: Cell, number: int) -> dict[str, torch.Tensor]:
    """The ``number``-th mini-batch: inputs (N, C, H, W) in float64, labels (N,); tokens (N, T)."""
    generator = torch.Generator().manual_seed(1000 + number)
    spec = DATASETS[cell.dataset]
    shape = (cell.batch_size, *spec.shape)
    if spec.kind == "tokens":
        drawn = torch.randint(spec.num_classes, (2, *shape), generator=generator)
        return {"inputs": drawn[0], "labels": drawn[1]}
    inputs = torch.randn(shape, generator=generator, dtype=torch.float64)
    return {"inputs": inputs, "labels": torch.randint(0, 10, shape[:1], generator=generator)}


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


def loss_of(cell: Cell) -> Any:
    """Cross entropy; for ``linear`` a loss whose gradient does not depend on the weights."""
    if cell.network == "linear":
        return lambda outputs, labels: (outputs * labels[:, None]).mean()
    return lambda outputs, labels: cross_entropy(outputs.flatten(0, -2), labels.flatten())


def as_read(inputs: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Inputs in the type of the weights; tokens stay as they are."""
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


def dtype_of(network: nn.Module) -> torch.dtype:
    """The type of its weights."""
    return next(network.parameters()).dtype


def train_here(cell: Cell, rank: int, store: Store | None, *, runs: Runs) -> dict[str, Any]:
    """Train as one rank; return its final state and its records."""
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    context = context_of(plan, process, store)
    progress: list[int] = []
    context.progress = progress.append
    network = network_of(cell)
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
    network = network_of(cell).train()
    optimizer = torch.optim.SGD(network.parameters(), cell.learning_rate, cell.momentum)
    loss_function = loss_of(cell)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        batch = global_batch(cell, step)
        total = 0.0
        whole = as_read(batch["inputs"], dtype_of(network))
        shards = zip(whole.chunk(parts), batch["labels"].chunk(parts), strict=True)
        for inputs, labels in shards:
            loss = loss_function(network(inputs), labels) / parts
            loss.backward()
            total += loss.item()
        for group in optimizer.param_groups:
            rising = (step + 1) / max(1, cell.learning_rate_warmup_steps)
            group["lr"] = cell.learning_rate * min(1.0, rising)
        optimizer.step()
        losses.append(total)
    return network.state_dict(), losses


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
