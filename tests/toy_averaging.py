"""A strategy of another package, in one module: replicas average gradients one tensor at a time."""

from __future__ import annotations

from typing import ClassVar

import torch.distributed as dist
from torch import Tensor, nn

from ddlbench.planning.data_parallel import DataParallel
from ddlbench.planning.step import GradientMessage
from ddlbench.strategies.executor import Executor
from ddlbench.strategies.process_group import join_all


class ToyAveraging(DataParallel):
    """Every gradient is all-reduced by itself, once the backward pass is over."""

    name: ClassVar[str] = "toy-averaging"
    label: ClassVar[str] = "Toy averaging"
    executor: ClassVar[str] = "toy_averaging:ToyExecutor"
    predictors: ClassVar[tuple[str, ...]] = ("ddp-serial",)
    preferred_predictor: ClassVar[dict[str, str]] = {"cpu": "ddp-serial", "cuda": "ddp-serial"}

    def gradient_messages(self, workload, plan) -> list[GradientMessage]:
        """One a tensor."""
        return [GradientMessage(tensor.bytes) for tensor in workload.tensors]


class ToyExecutor(Executor):
    """One replica a process."""

    def place(self, network: nn.Sequential) -> nn.Module:
        """Join the process group; all ranks begin with the same weights."""
        join_all(self.context, self.process, self.plan.world_size)
        return network.to(self.context.devices[0])

    def backward(self, loss: Tensor) -> None:
        """Gradients, then their mean over all ranks."""
        super().backward(loss)
        with self.spans.span("all_reduce"):
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= self.plan.world_size

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()
