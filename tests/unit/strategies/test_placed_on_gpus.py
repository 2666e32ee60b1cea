"""On GPUs every strategy has its tensors where it computes, also after a checkpoint.

Without options cells train with AdamW and bfloat16, with options with SGD and float32.

The GPUs are fakes, see ``cases.fake_gpus``: this says nothing of speed, memory or values.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from cases.fake_gpus import gpus, on_cpu, waits
from torch import nn

from ddlbench.datasets.loader import BatchLoader, EpochStream
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import STRATEGIES
from ddlbench.networks import build
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime.checkpoint.rank import random_state, read_state, set_random_state, write_state
from ddlbench.runtime.launch import own_devices
from ddlbench.strategies.executor import Context, executor_of
from ddlbench.strategies.training import with_precision

_PLAIN = [name for name in STRATEGIES if name != "horovod"]  # which sends by its own C++
_OPTIONS = [
    ("ddp", {"accumulate": 2, "bucket_view": True}),
    ("ddp", {"hook": "fp16"}),
    ("ddp", {"hook": "powersgd"}),
    ("ddp", {"shard": "optimizer"}),
    ("fsdp", {"accumulate": 2, "param_dtype": "bf16", "recompute": True}),
    ("gpipe", {"balance": "time"}),
    ("local-sgd", {"outer_optimizer": "nesterov", "average_every_steps": 2}),
    ("pipedream", {"replicas": "2+1", "stage_all_reduce": "async"}),
]
_WAITS_IN_EACH_STEP = (("hook", "powersgd"),)  # torch's hook does, once per bucket
_DEVICES = {"sequential": 1, "hsdp": 4, "data-filter": 4, "data-spatial": 4, "data-tensor-pipe": 4}
# Torch remembers what it knows of ranks by their numbers, also in the next world of this process.
_DEVICES["data-tensor"] = 8


class _Images:
    """Random images of a dataset's form, and labels."""

    def __init__(self, spec):
        self.shape, self.num_classes, self.dtype = spec.shape, spec.num_classes, torch.uint8

    def __len__(self):
        return 64

    def gather(self, sample_ids, *, pin_memory=False):
        assert pin_memory, "else a copy to the GPU holds up the host"
        images = torch.empty((len(sample_ids), *self.shape), dtype=torch.uint8, pin_memory=True)
        return images.random_(), self.labels(sample_ids)

    def labels(self, sample_ids):
        return torch.zeros(len(sample_ids), dtype=torch.int64)


def _cell(strategy, options):
    devices = 3 if "replicas" in options else _DEVICES.get(strategy, 2)
    cell = Cell(
        "mnist", "mlp", strategy, 24, devices_per_node=devices,
        options=tuple(sorted(options.items())),
    )  # fmt: skip
    if "spatial" in strategy:
        cell = cell.with_(network=f"{__name__}:rows")
    return cell if options else cell.with_(optimizer="adamw", precision="bf16")


def rows(_spec):
    """Layers that spatial strategies split."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.MaxPool2d(3, 2, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 10),
    )


def _train_rank(cell, rank, folder):
    """Train, save, load and train again; check where tensors are, and how often the host waits."""
    plan = make_plan(cell)
    process, spec = plan.processes[rank], DATASETS[cell.dataset]
    with gpus(cell.devices, futures=cell.strategy == "ddp"):
        devices = own_devices("cuda", process)
        network = with_precision(
            on_cpu(build(cell.network, spec, cell.seed)), cell.precision, "cuda"
        )
        loader = BatchLoader(
            _Images(spec),
            global_batch=cell.batch_size,
            shard=max(process.shard, 0),
            num_shards=process.num_shards,
            device=devices[0],
            labels_only="inputs" not in process.needs,
        )
        stream = EpochStream(
            loader, 2, loader.steps_per_epoch, process.replica % process.turns, process.turns
        )
        executor = executor_of(cell)
        try:
            data = stream if process.needs and process.shard >= 0 else None
            executor.prepare(plan, process, network, data, Context(devices))
            executor.run(0, 3)
            of_three = _waits_of(executor, 3, 3)
            state = {"executor": executor.checkpoint_state(), "random": random_state(devices)}
            write_state(folder / str(rank), state)
            state = read_state(folder / str(rank))
            executor.load_checkpoint_state(state["executor"])
            set_random_state(state["random"], devices)
            of_six = _waits_of(executor, 6, 6)
            if cell.options != _WAITS_IN_EACH_STEP:
                assert of_six == of_three, "the host waits for the GPU in each step"
            there = [tensor for tensor in executor.persistent_tensors() if tensor.dim()]
            assert {tensor.device for tensor in there} <= set(devices)
            executor.state_dict()
            executor.record_step(12)
            executor.partition_spans(12)
        finally:
            executor.close()


def _waits_of(executor, first, count):
    before = waits.copy()
    executor.run(first, count)
    return waits - before


@pytest.mark.parametrize(
    ("strategy", "options"), [*((name, {}) for name in _PLAIN), *_OPTIONS], ids=str
)
def test_tensors_meet_on_their_gpu(strategy, options, tmp_path):
    cell = _cell(strategy, options)
    assert strategy_of(strategy).supports(cell) is None
    last = make_plan(cell).world_size - 1
    for rank in {last} if "tensor" in strategy else {0, last}:
        _train_rank(cell, rank, tmp_path)
        assert not dist.is_initialized()
