"""What strategies and options save by the model, against live tensors of a real step."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import predict_factory as make
import pytest
import torch
from cases.small_cells import needs_horovod
from torch import nn
from torch.distributed import Store

from ddlbench.equivalence.one_device import Reader, context_of
from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.cell import Cell
from ddlbench.planning.memory import memory_bytes
from ddlbench.planning.planner import make_plan
from ddlbench.runtime.meters import cpu_peak_bytes
from ddlbench.strategies.executor import executor_of

pytestmark = pytest.mark.slow

SIDE = 784
LAYERS = 6
FLOAT_BYTES = 4
ROW_BYTES = SIDE * FLOAT_BYTES
LAYER_BYTES = SIDE * ROW_BYTES  # of one layer, which has no bias
BATCH = 8


def network() -> nn.Sequential:
    """Equal layers, whose weights are large beside their activations."""
    torch.manual_seed(0)
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for number in range(LAYERS):
        layers[f"layer{number}"] = nn.Linear(SIDE, SIDE, bias=False)
    return nn.Sequential(OrderedDict(layers))


def predicted(cell: Cell) -> tuple[int, ...]:
    sizes = {"input_bytes_per_sample": ROW_BYTES, "output_bytes_per_sample": ROW_BYTES}
    blocks = [
        make.block(number, LAYER_BYTES, saved_bytes_per_sample=ROW_BYTES, **sizes)
        for number in range(LAYERS)
    ]
    tensors = [
        {"name": f"w{n}", "block": n, "bytes": LAYER_BYTES, "ready_fraction": 1.0}
        for n in reversed(range(LAYERS))
    ]
    return memory_bytes(make.workload(blocks=blocks, tensors=tensors), make_plan(cell))


def measure_here(cell: Cell, rank: int, store: Store | None) -> int:
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    context = context_of(plan, process, store)
    executor.prepare(plan, process, network(), Reader(cell, process, torch.float32), context)
    executor.run(0, 3)
    peak = cpu_peak_bytes(executor, 3)
    executor.close()
    return peak


def cell_of(options: dict[str, Any], strategy: str = "ddp") -> Cell:
    made = tuple(sorted(options.items()))
    return Cell("mnist", "layers", strategy, BATCH, devices_per_node=2, options=made)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"shard": "optimizer"},
    {"accumulate": 2},
    {"bucket_view": True},
    {"accumulate": 2, "bucket_view": True, "shard": "optimizer"},
]


def test_the_model_counts_the_copies_that_are_there():
    """Within a tenth of a layer: all else is activations, of which the model counts some twice."""
    cells = [cell_of(options) for options in OPTIONS]
    for cell, peaks in zip(cells, run_ranks(measure_here, cells, 2), strict=True):
        assert peaks == pytest.approx(predicted(cell), abs=LAYER_BYTES / 10), cell.id


def test_fp16_gradients_need_no_more_than_the_model_says():
    """A bucket that has arrived is not there any more; which ones have is a matter of time."""
    cells = [cell_of({"hook": "fp16"})]
    (peaks,) = run_ranks(measure_here, cells, 2)
    (most, _), (plain, _) = predicted(cells[0]), predicted(cell_of({}))
    for peak in peaks:
        assert plain - LAYER_BYTES / 10 < peak < most + LAYER_BYTES / 10


SHARED: list[dict[str, Any]] = [
    {},
    {"reshard_after_forward": False},
    {"accumulate": 2},
    {"accumulate": 2, "reshard_after_forward": False},
]


def test_shared_weights_are_there_as_often_as_the_model_says():
    """With what FSDP gathers ahead; a thread of gloo may hold a copy for longer, on a few ranks."""
    cells = [cell_of(options, "fsdp") for options in SHARED]
    for cell, peaks in zip(cells, run_ranks(measure_here, cells, 2), strict=True):
        assert min(peaks) == pytest.approx(min(predicted(cell)), abs=LAYER_BYTES / 10), cell.id


@needs_horovod
@pytest.mark.parametrize("options", [{}, {"accumulate": 2}], ids=str)
def test_horovods_gradients_are_there_as_often_as_the_model_says(options):
    cell = cell_of(options, "horovod")  # which joins once in a process
    (peaks,) = run_ranks(measure_here, [cell], 2)
    assert peaks == pytest.approx(predicted(cell), abs=LAYER_BYTES / 10)
