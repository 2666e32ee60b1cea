"""Executor of torchgpipe: one process, one thread for each device, micro-batches in a pipeline.

One thing differs from torchgpipe: its threads are kept from step to step (:mod:`.workers`).

Emulated devices work off their queues as GPUs do. The optimiser runs on the host, so it waits for
them; the loss is of zeros, which are there at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchgpipe import GPipe
from torchgpipe.balance import balance_by_size, balance_by_time

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks.emulated import queued_devices
from ddlbench.networks.emulated_device import QueuedDevices
from ddlbench.networks.inputs import made_up_inputs
from ddlbench.strategies.executor import Executor, Unsupported
from ddlbench.strategies.timing import Span
from ddlbench.strategies.torchgpipe.descriptor import TorchGPipeDetails
from ddlbench.strategies.torchgpipe.recomputation import check_recomputation, count_once
from ddlbench.strategies.torchgpipe.spans import PartitionSpan, recording
from ddlbench.strategies.torchgpipe.workers import KeptWorkers


class GPipeExecutor(Executor):
    """Runs torchgpipe's ``GPipe`` on the node's devices."""

    chunks: int
    checkpoint: str
    balance: list[int]
    emulated: QueuedDevices | None

    def __init__(self) -> None:
        self.workers = KeptWorkers()

    def place(self, network: nn.Sequential) -> nn.Module:
        details = TorchGPipeDetails.of(self.plan)
        self.chunks, self.checkpoint = details.chunks, details.checkpoint
        devices = list(self.context.devices)
        cell = self.plan.cell
        sample = made_up_inputs(DATASETS[cell.dataset], cell.batch_size // self.chunks)
        rule = str(details.balance)
        if rule == "profile":  # the plan applied it, as only the plan sees the site's profile
            rule = "+".join(map(str, details.blocks_per_device))
        self.balance = (
            # A resumed run keeps its balance, as new times might give another one.
            self.context.fixed.get("blocks_per_device")
            or choose_balance(rule, network, sample, devices, self.chunks)
        )
        if self.checkpoint != "never":
            if self.context.traits.blocks:  # tests train the built-in networks
                spec = DATASETS[cell.dataset]
                check_recomputation(network, spec, self.context.floating)
            count_once(network)
        module = GPipe(
            network,
            balance=self.balance,
            devices=devices,
            chunks=self.chunks,
            checkpoint=self.checkpoint,
        )
        # Only now, as torchgpipe times blocks for a balance by running them one at a time.
        self.emulated = queued_devices(list(module.partitions))
        return module

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        with self.workers.in_use():  # the output is on the last partition's device
            return super().step(inputs, labels.to(self.context.devices[-1]))

    def update(self) -> None:
        if self.emulated is not None:
            self.emulated.wait()
        super().update()

    def state_dict(self) -> dict[str, Any]:
        assert isinstance(self.module, GPipe)
        # torchgpipe prefixes names with the index of a partition.
        network = {name.split(".", 2)[2]: value for name, value in self.module.state_dict().items()}
        return {"network": network, "optimizer": self.optimizer.state_dict()}

    def threaded_modules(self) -> list[nn.Module]:
        assert isinstance(self.module, GPipe)
        return list(self.module.partitions)

    def record_step(self, _mini_batch: int) -> list[Span]:
        return []  # spans belong to partitions, not processes: see partition_spans

    def partition_spans(self, mini_batch: int) -> list[PartitionSpan]:
        """Train one more step, untimed; the spans of each partition and micro-batch."""
        assert isinstance(self.module, GPipe)
        partitions = list(self.module.partitions)
        with recording(partitions, self.context.devices, self.emulated) as recorder:
            self.run(mini_batch, 1)
        return recorder.spans()

    def details(self) -> dict[str, Any]:
        return {
            **super().details(),
            "chunks": self.chunks,
            "checkpoint": self.checkpoint,
            "blocks_per_device": self.balance,
            "workers": "kept",
        }

    def close(self) -> None:
        self.workers.close()


class ModelParallelExecutor(GPipeExecutor):
    """The plan carries neither micro-batches nor recomputation, so GPipe uses one and none."""


def choose_balance(
    rule: str, network: nn.Sequential, sample: Tensor, devices: list[torch.device], chunks: int
) -> list[int]:
    """Blocks of each device.

    Args:
        rule: "time", "size" or "blocks", else the numbers themselves, as "5+9".
        network: the whole network, on CPU.
        sample: one micro-batch of inputs, (N, C, H, W), (N, C, D, H, W) of volumes, or (N, T).
        devices: where the partitions go.
        chunks: micro-batches of a mini-batch.

    Raises:
        Unsupported: there are fewer blocks than devices, the numbers do not add up, or "size" is
            used without a GPU or with a network that refuses a single sample.
    """
    blocks, parts = len(network), len(devices)
    if blocks < parts:
        raise Unsupported(
            f"the network has {blocks} blocks, too few for {parts} devices", code="too_few_blocks"
        )
    if rule == "time":
        return list(balance_by_time(parts, network, sample, device=devices[0]))
    if rule == "size":
        if devices[0].type != "cuda":
            raise Unsupported(
                "balance 'size' reads CUDA's memory counters; use time or blocks",
                code="device_unsupported",
            )
        return _by_size(network, sample, devices, chunks)
    if rule == "blocks":
        return [blocks // parts + (part < blocks % parts) for part in range(parts)]
    balance = [int(part) for part in rule.split("+")]
    if sum(balance) != blocks or len(balance) != parts:
        raise Unsupported(
            f"balance {rule} deals {sum(balance)} blocks to {len(balance)} devices, "
            f"the network has {blocks} for {parts}",
            code="wrong_balance",
        )
    return balance


def _by_size(
    network: nn.Sequential, sample: Tensor, devices: list[torch.device], chunks: int
) -> list[int]:
    """Balance torchgpipe's count of CUDA memory, of one sample and scaled to the mini-batch."""
    # A view is enough: torchgpipe reads the number of samples, and the first one.
    mini_batch = sample[:1].expand(chunks * len(sample), *sample.shape[1:])
    try:
        counts = balance_by_size(
            len(devices), network, mini_batch, chunks=chunks, device=devices[0]
        )
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise Unsupported(
            "balance 'size' runs the network on a single sample, and batch norm refuses one value "
            "a channel; use time, profile or blocks",
            code="cannot_be_split",
        ) from None
    return list(counts)
