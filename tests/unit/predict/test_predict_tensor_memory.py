"""Memory of tensor parallelism by the model, against live tensors of real steps."""

from __future__ import annotations

from functools import partial
from statistics import median_low
from typing import Any

import predict_factory as make
import pytest
import torch
from torch.distributed import Store

from ddlbench.equivalence.one_device import Reader, context_of
from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import build
from ddlbench.networks.inputs import made_up_inputs
from ddlbench.planning.memory import memory_bytes
from ddlbench.planning.planner import make_plan
from ddlbench.planning.recomputation import RecomputedWorkload
from ddlbench.planning.workload import Workload
from ddlbench.profiling.blocks import blocks_of
from ddlbench.profiling.layers import network_bytes
from ddlbench.runtime.meters import cpu_peak_bytes
from ddlbench.runtime.rendezvous import barrier
from ddlbench.strategies.executor import executor_of

pytestmark = pytest.mark.slow


def workload_of(cell: Cell) -> Workload:
    """Bytes as a profile has them, with made-up times."""
    spec = DATASETS[cell.dataset]
    network = build(cell.network, spec, cell.seed)
    blocks = blocks_of(network, "fp32", torch.device("cpu"), resident=True)
    sizes = network_bytes(blocks, partial(made_up_inputs, spec))
    times = {"forward": make.timings(0.0, 0.001), "backward": make.timings(0.0, 0.002)}
    layers: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for block, leaves, (given, taken, saved) in zip(
        blocks, sizes.leaves, sizes.blocks, strict=True
    ):
        layers += [
            {
                "name": leaf.name,
                "block": block.index,
                "block_name": block.name,
                "kind": type(leaf.module).__name__,
                "parameter_bytes": leaf.parameter_bytes,
                "output_bytes_per_sample": leaf.output_bytes,
                "saved_bytes_per_sample": leaf.saved_bytes,
                "shape": {"input": leaf.input_shape, "output": leaf.output_shape},
                **times,
            }
            for leaf in leaves
        ]
        parameter_bytes = sum(p.nbytes for p in block.plain.parameters())
        rows.append(
            make.block(
                block.index,
                parameter_bytes,
                name=block.name,
                input_bytes_per_sample=given,
                output_bytes_per_sample=taken,
                saved_bytes_per_sample=saved,
            )
        )
    tensors = [
        {"name": name, "block": 0, "bytes": p.nbytes, "ready_fraction": 1.0}
        for name, p in reversed(list(network.named_parameters()))
    ]
    return make.workload(layers=layers, blocks=rows, tensors=tensors)


def measure_here(cell: Cell, rank: int, store: Store | None) -> int:
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    context = context_of(plan, process, store)
    network = build(cell.network, DATASETS[cell.dataset], cell.seed)
    executor.prepare(plan, process, network, Reader(cell, process, torch.float32), context)
    executor.run(0, 2)
    # A thread of gloo may hold a message a moment longer than a step usually does.
    peak = median_low(cpu_peak_bytes(executor, number) for number in range(2, 7))
    barrier(store, "done", plan.world_size)  # nobody leaves while another still receives
    executor.close()
    return peak


def cell_of(strategy: str, devices: int, network: str, batch_size: int, **options: int) -> Cell:
    dataset = "tokens" if network.startswith("gpt") else "mnist"
    made = tuple(options.items())
    return Cell(dataset, network, strategy, batch_size, devices_per_node=devices, options=made)


GPT = partial(cell_of, network="gpt-tiny")
CELLS = {
    1: [GPT("tensor-parallel", 1, batch_size=4), cell_of("tensor-parallel", 1, "mlp", 512)],
    2: [
        GPT("tensor-parallel", 2, batch_size=4),
        GPT("tensor-parallel", 2, batch_size=1),
        GPT("data-tensor", 2, batch_size=2, group=1),
        cell_of("tensor-parallel", 2, "mlp", 512),
    ],
    4: [
        GPT("tensor-parallel", 4, batch_size=4),
        GPT("data-tensor", 4, batch_size=2, group=2),
    ],
}


def measured() -> dict[Cell, tuple[int, int]]:
    """Predicted bytes of a rank, and those of the rank that had most."""
    by_cell = {}
    for ranks, cells in CELLS.items():
        for cell, peaks in zip(cells, run_ranks(measure_here, cells, ranks), strict=True):
            assert len(set(memory_bytes(workload_of(cell), make_plan(cell)))) == 1
            by_cell[cell] = memory_bytes(workload_of(cell), make_plan(cell))[0], max(peaks)
    return by_cell


def test_the_model_counts_what_is_there() -> None:
    """No model has the loss's own tensors and the mini-batch; one device has as many of them."""
    actual = measured()
    for cell, (predicted, peak) in actual.items():
        if cell.network == "gpt-tiny":
            assert predicted == pytest.approx(peak, rel=0.06), cell.id
    alone, split = (
        peak - predicted for (cell, (predicted, peak)) in actual.items() if cell.network == "mlp"
    )
    assert split == pytest.approx(alone, rel=0.01)


def test_recomputed_activations_are_not_counted() -> None:
    """Here as well no model has the loss's tensors: the last stage of a pipeline holds most."""
    recompute = GPT(batch_size=16, strategy="ddp", devices=2, recompute=True)
    cells = [recompute, *(recompute.with_(strategy=name) for name in ("fsdp", "pipe-1f1b"))]
    for cell, peaks in zip(cells, run_ranks(measure_here, cells, 2), strict=True):
        plan, plain = make_plan(cell), workload_of(cell)
        predicted = memory_bytes(RecomputedWorkload(plain), plan)
        assert max(predicted) == pytest.approx(max(peaks), rel=0.1), cell.id
        assert max(peaks) < 0.8 * max(memory_bytes(plain, plan)), cell.id
