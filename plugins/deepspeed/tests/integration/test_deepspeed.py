"""DeepSpeed's stages train what sequential training trains, and keep and send what models say."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections import OrderedDict
from typing import Any

import pytest
import torch
from local_cells import local_site, run_one
from torch import nn
from torch.distributed import Store

from ddlbench.equivalence.examination import Examination
from ddlbench.equivalence.one_device import Reader, context_of
from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.runtime.meters import cpu_peak_bytes
from ddlbench.strategies.executor import executor_of
from ddlbench.testing import (
    assert_cell_equals_sequential,
    assert_cells_resume,
    assert_resumes,
)
from ddlbench.testing.training import train
from ddlbench_deepspeed.compiled import compile_operation
from ddlbench_deepspeed.descriptor import DeepSpeedOptions, kept_bytes, moment_bytes

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed here"
)
STAGES = (0, 1, 2, 3)
SMALL_BUCKET = 2048  # a few tensors
SIDE, LAYERS, FLOAT_BYTES = 784, 6, 4
LAYER_BYTES = SIDE * SIDE * FLOAT_BYTES


def cell_of(stage: int, network: str = "residual", devices: int = 2, **options: Any) -> Cell:
    return Cell(
        dataset="mnist",
        network=network,
        strategy="deepspeed",
        batch_size=16,
        devices_per_node=devices,
        learning_rate=0.05,
        options=tuple(sorted({"stage": stage, **options}.items())),
    )


@pytest.mark.parametrize(
    "cell",
    [
        *(cell_of(stage) for stage in STAGES),
        *(cell_of(stage, bucket_bytes=SMALL_BUCKET) for stage in (1, 2, 3)),
        cell_of(3, devices=1),
    ],
    ids=lambda cell: cell.id,
)
def test_weights_equal_sequential_training(cell):
    assert_cell_equals_sequential(cell, cell.devices)


@pytest.fixture(scope="module")
def operation():
    """Compile DeepSpeed's operation before ranks wait for each other."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    builders = importlib.import_module("deepspeed.ops.op_builder.cpu")
    compile_operation(builders.ShareMemCommBuilder())


@pytest.mark.usefixtures("operation")
@pytest.mark.parametrize("stage", STAGES)
def test_adamw_trains_alike(stage):
    cell = cell_of(stage, "mlp").with_(optimizer="adamw", weight_decay=0.1, learning_rate=0.001)
    verdict = Examination(limit_s=300.0).verdict_of(cell)  # its import takes seconds
    assert (verdict.kind, verdict.reason) == ("equal", None)


def test_all_stages_have_one_loss():
    first, *others = [train([cell_of(stage)], ((0, 4),))[0] for stage in STAGES]
    for other in others:
        assert [rank["loss"] for rank in other] == [rank["loss"] for rank in first]


@pytest.mark.parametrize("stage", STAGES)
def test_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one(stage, tmp_path):
    assert_resumes("deepspeed", tmp_path, devices=2, stage=stage)


@pytest.mark.parametrize("stage", STAGES)
def test_adamw_resumes_too(stage, tmp_path):
    assert_cells_resume([cell_of(stage, "dropout").with_(optimizer="adamw")], tmp_path)


def layers() -> nn.Sequential:
    """Equal layers, whose weights are large beside their activations."""
    torch.manual_seed(0)
    made = {f"layer{n}": nn.Linear(SIDE, SIDE, bias=False) for n in range(LAYERS)}
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), **made))


def peak_here(cell: Cell, rank: int, store: Store | None) -> int:
    plan = make_plan(cell)
    process = plan.processes[rank]
    executor = executor_of(cell)
    data = Reader(cell, process, torch.float32)
    executor.prepare(plan, process, layers(), data, context_of(plan, process, store))
    executor.run(0, 3)
    return cpu_peak_bytes(executor, 3)


def modelled(cell: Cell) -> float:
    """Of layers without activations."""

    @dataclasses.dataclass(frozen=True)
    class Layer:
        parameter_bytes: int = LAYER_BYTES
        saved_bytes: float = 0.0
        input_bytes: float = 0.0
        output_bytes: float = 0.0

    @dataclasses.dataclass(frozen=True)
    class Layers:
        parameter_bytes: int = LAYERS * LAYER_BYTES
        blocks: tuple[Layer, ...] = (Layer(),) * LAYERS

        def shrunk(self, bytes_: int) -> int:
            return bytes_

    details = DeepSpeedOptions.of(make_plan(cell))
    whole: Any = Layers()
    kept = kept_bytes(whole.parameter_bytes, cell.devices, details.stage, cell.optimizer_states)
    return kept + moment_bytes(whole, cell.devices, details, cell.batch_size / cell.devices)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("bucket_bytes", [2 * LAYER_BYTES, 25 * 2**20])
def test_the_fullest_rank_keeps_what_the_model_says(stage, bucket_bytes):
    """Within a tenth of a layer, of 18 to 28 layers.

    If one bucket holds all in stage 2, the part of gradients may be freed before: three layers.
    """
    cell = cell_of(stage, "layers", bucket_bytes=bucket_bytes)
    (peaks,) = run_ranks(peak_here, [cell], 2)
    freed = LAYERS // 2 if stage == 2 and bucket_bytes > LAYERS * LAYER_BYTES else 0
    spare = modelled(cell) - max(peaks)
    assert -LAYER_BYTES / 10 < spare < (freed + 0.1) * LAYER_BYTES


@pytest.mark.parametrize("stage", STAGES)
def test_a_whole_cell_sends_what_its_stage_sends(stage, tmp_path):
    """In units of (W - 1) / W of all weights; gloo sums by all-reduces, which are 2 of them."""
    ranks = 2
    cell = cell_of(stage, "mlp").with_(
        batch_size=256, max_steps=4, warmup_steps=1, data_scale=0.02, learning_rate=0.01
    )
    result, _ = run_one(cell, local_site(tmp_path), tmp_path)
    assert result["status"] == "ok", result["reason"]
    units = {0: 2, 1: 2 + 1, 2: 2 + 1, 3: 2 + 2}[stage]
    sent = units * (ranks - 1) / ranks * result["ranks"][0]["parameter_bytes"]
    for rank in result["communication"]["ranks"]:
        assert rank["sent_bytes_per_step"] == pytest.approx(sent, rel=0.02)
