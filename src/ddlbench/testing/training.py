"""Trains small networks with the real executors of cells, and checks what they become.

After several steps a parallel strategy must have the weights of sequential training. The reference
computes the same mini-batch part by part, so that batch norm sees the samples of a rank or
micro-batch, and averages gradients. Dropout is off.

A cell must resume from its checkpoint in new processes, bit for bit::

    plain    warm-up | 1 2 3 4 5 6                                no checkpoint
    first    warm-up | 1 2 3 | save | 4 5 6 | save
    second   other weights, dry run | load | 4 5 6 | save         new processes

``second`` ends with the same weights, statistics, momentum, random numbers and losses as ``first``.
With synchronous updates ``plain`` does, too: a checkpoint changes nothing. PipeDream's checkpoints
drain its pipeline, so it is compared only with a run that drained at the same step.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import Store
from torch.nn.functional import cross_entropy

from ddlbench.equivalence.examination import STATISTICS
from ddlbench.equivalence.one_device import Reader, context_of, train_in_parts, whole_batches
from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import build, without_dropout
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime.checkpoint.rank import open_checkpoints, random_state, read_state, write_state
from ddlbench.runtime.checkpoint.store import Order, rank_file, set_folder
from ddlbench.runtime.loop import Extent, measure
from ddlbench.runtime.rendezvous import barrier
from ddlbench.strategies.executor import executor_of


class Residual(nn.Module):
    """A convolution and batch norm beside the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + torch.relu(self.norm(self.conv(inputs)))


def blocks_in_order(**blocks: nn.Module) -> nn.Sequential:
    """A flat network of these blocks."""
    return nn.Sequential(OrderedDict(blocks))


def residual() -> nn.Sequential:
    """Six blocks, the first and the last with weights; in float32."""
    return blocks_in_order(
        stem=nn.Conv2d(1, 6, 3, stride=2, padding=1),
        block0=Residual(6),
        block1=Residual(6),
        pool=nn.AdaptiveAvgPool2d(2),
        flatten=nn.Flatten(),
        head=nn.Linear(24, 10),
    )


def network_with_dropout() -> nn.Sequential:
    """Ten blocks: weights, statistics of a batch, and random numbers in every stage."""
    return blocks_in_order(
        shrink=nn.AvgPool2d(4),
        stem=nn.Conv2d(1, 4, 3, padding=1),
        drop0=nn.Dropout(0.3),
        norm0=nn.BatchNorm2d(4),
        conv=nn.Conv2d(4, 4, 3, padding=1),
        drop1=nn.Dropout(0.3),
        norm1=nn.BatchNorm2d(4),
        pool=nn.AdaptiveAvgPool2d(2),
        flatten=nn.Flatten(),
        head=nn.Linear(16, 10),
    )


def network_of(cell: Cell) -> nn.Sequential:
    """The cell's network from its seed, without dropout, in float64.

    ``residual`` stays in float32, as torchgpipe times layers with inputs of that type.
    """
    if cell.network != "residual":
        return without_dropout(build(cell.network, DATASETS[cell.dataset], cell.seed)).double()
    torch.manual_seed(cell.seed)
    return residual()


# (first, count) of each call of ``run``: warm-up, and the measured region.
Runs = tuple[tuple[int, int], ...]


def loss_of(cell: Cell) -> Any:
    """Cross entropy; for a network ``linear`` a loss whose gradient does not depend on weights."""
    if cell.network.endswith(":linear"):
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
    if cell.network.endswith(":linear"):
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
    strategy = strategy_of(cell.strategy)
    assert (why := strategy.supports(cell)) is None, why
    rounded = strategy.precision(cell)
    assert rounded == cell.precision, (
        f"{cell.strategy} rounds to {rounded}, so its weights are others; compare it by "
        "`ddlbench check`, and test its float32"
    )
    expected, losses = reference(cell, parts, _STEPS)
    (ranks,) = train([cell], ((0, _STEPS),))
    for number, rank in enumerate(ranks):
        place = f"{cell.strategy}, rank {number},"
        assert_same_weights(rank["state"], expected, place, rtol=1e-4, atol=1e-5)
    mean_losses = torch.tensor([rank["loss"] for rank in ranks]).mean(dim=0)
    torch.testing.assert_close(mean_losses, torch.tensor(losses), rtol=1e-3, atol=1e-4)


_WARMUP, _RESUMED_STEPS, _SAVE_EVERY = 2, 6, 3
_RUNS = ("plain", "first", "second")


def assert_cells_resume(cells: Sequence[Cell], folder: Path) -> None:
    """Train every cell without checkpoints, with them, and resumed; compare the final states.

    Args:
        cells: with equally many ranks; their network is "dropout", or ``module:callable``.
        folder: an empty folder, for the checkpoints.
    """
    (world_size,) = {make_plan(cell).world_size for cell in cells}
    plain, first, second = (
        run_ranks(partial(_train_run, out=folder, run=run), cells, world_size) for run in _RUNS
    )
    for number, cell in enumerate(cells):
        for rank in range(world_size):
            _check_runs(cell, rank, folder, [run[number][rank] for run in (plain, first, second)])
        losses = [rank["loss"] for rank in second[number] if rank["loss"]]
        assert losses and all(len(loss) == _WARMUP + _RESUMED_STEPS for loss in losses), cell.id


def _check_runs(cell: Cell, rank: int, folder: Path, results: Sequence[dict[str, Any]]) -> None:
    """Compare one rank's results and final states of its three runs."""
    plain, first, second = results
    place = f"{cell.id}, rank {rank}"
    ends = {run: read_state(folder / cell.id / f"{run}-{rank}") for run in _RUNS}
    assert_same_bits(ends["second"], ends["first"], place)
    # The checkpoint after the last step holds the executor's final state.
    at_end = read_state(rank_file(set_folder(folder / cell.id, _RESUMED_STEPS, "second"), rank))
    assert_same_bits(at_end["executor"], ends["second"]["executor"], place)
    assert second == first, place
    assert second["saves"] == _RESUMED_STEPS // _SAVE_EVERY
    assert second["steps"] == _RESUMED_STEPS, place
    if strategy_of(cell.strategy).is_synchronous(cell):
        assert_same_bits(ends["first"], ends["plain"], f"plain {place}")
        assert first["loss"] == plain["loss"], place


def _train_run(
    cell: Cell, rank: int, store: Store | None, *, out: Path, run: str
) -> dict[str, Any]:
    """Train one rank; ``run`` is "plain" (no checkpoints), "first" (with) or "second" (resumed)."""
    folder, resume = out / cell.id, run == "second"
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    context = context_of(plan, process, store)
    order = None
    if run != "plain":
        before = set_folder(folder, _SAVE_EVERY, "first").name if resume else None
        order = Order(str(folder), {"cell_id": cell.id}, run, before, "test")
    checkpoints = open_checkpoints(
        order, executor, rank, plan.world_size, store=store, devices=context.devices
    )
    context.fixed = {} if checkpoints is None else checkpoints.fixed()
    # With another seed, only the checkpoint can restore the right weights and random numbers.
    seed = 99 if resume else 1
    torch.manual_seed(seed)
    if cell.network == "dropout":
        network = network_with_dropout()
    else:
        network = build(cell.network, DATASETS[cell.dataset], seed)
    torch.manual_seed(cell.seed + rank + (99 if resume else 0))
    random.seed(cell.seed + rank + (99 if resume else 0))
    data = Reader(cell, process, torch.float32) if process.needs else None
    executor.prepare(plan, process, network, data, context)
    extent = Extent(_WARMUP, 1, _RESUMED_STEPS, 0 if checkpoints is None else _SAVE_EVERY)
    measured = measure(executor, extent, context.devices, 1, checkpoints=checkpoints)
    end = {"executor": executor.checkpoint_state(), "random": random_state(context.devices)}
    write_state(folder / f"{run}-{rank}", end)
    barrier(store, "done", plan.world_size)
    executor.close()
    return {
        "loss": measured.warmup.loss + measured.measured.loss,
        "ids": measured.measured.ids,
        "steps": len(measured.measured.step_s),
        "saves": 0 if checkpoints is None else len(checkpoints.report().save_s),
    }
