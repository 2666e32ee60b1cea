"""Precision, loss and optimiser of a cell, for every strategy, and the replays of some.

Autocast belongs to a thread, and a library may compute in threads of its own. So each block enters
autocast itself, instead of the loop that calls it.

In a replay one device trains what the ranks of a strategy with older weights train together. Such a
strategy names its replay (``Strategy.replay``), which lies in its folder. The replay is the truth
of tests and of ``ddlbench check``, and a cell's first losses are compared with it.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import unwrap
from pkgutil import resolve_name
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import StrategyPlan
from ddlbench.planning.strategy import Strategy

HALF_TYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""What autocast computes in, by the precision of a cell."""


class MeanCrossEntropy(nn.CrossEntropyLoss):
    """The mean over all samples, or over all positions of sequences; of half precision in float32.

    All sequences have equally many positions. So the mean over equal parts of a mini-batch is the
    mean over the whole.
    """

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(N, ..., classes), (N, ...) -> ()."""
        if outputs.dtype in HALF_TYPES.values():
            outputs = outputs.float()
        if labels.dim() > 1:
            outputs, labels = outputs.flatten(0, -2), labels.flatten()
        return super().forward(outputs, labels)


class _Unwrapped(torch.optim.Optimizer):
    """An optimiser's methods that do not import torch's compiler.

    torch wraps them for programs that compile a whole step. The first call of a wrapper imports
    ``torch._dynamo``, which takes a rank about as long as torch itself. Here steps are not
    compiled, only the network's forward pass, so these are the methods without their wrappers.
    """

    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)


class SGD(_Unwrapped, torch.optim.SGD):
    """torch's SGD."""

    step = torch.no_grad()(unwrap(torch.optim.SGD.step))


class AdamW(_Unwrapped, torch.optim.AdamW):
    """torch's AdamW."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


_CLASSES: Mapping[str, type[Any]] = {"sgd": SGD, "adamw": AdamW}


def make_optimizer(
    cell: Cell, parameters: Iterable[nn.Parameter], learning_rate: float | None = None
) -> torch.optim.Optimizer:
    """The cell's optimiser, at its learning rate unless another is given."""
    kind, settings = optimizer_of(cell)
    if learning_rate is not None:
        settings["lr"] = learning_rate
    # A stage or a server may hold no weights, and torch's optimisers take no empty list.
    trained = list(parameters) or [nn.Parameter(torch.empty(0))]
    optimizer: torch.optim.Optimizer = kind(trained, **settings)
    return optimizer


def state_tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """What an optimiser keeps from step to step."""
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


def optimizer_of(cell: Cell) -> tuple[type[Any], dict[str, Any]]:
    """The class of the cell's optimiser, and the arguments that the cell fixes."""
    settings = {"lr": cell.learning_rate, "weight_decay": cell.weight_decay}
    if cell.optimizer == "sgd":
        settings["momentum"] = cell.momentum
    return _CLASSES[cell.optimizer], settings


def set_learning_rate(optimizer: torch.optim.Optimizer, cell: Cell, mini_batch: int) -> None:
    """Give an optimiser the learning rate of a mini-batch's update.

    It rises linearly over the cell's first ``learning_rate_warmup_steps`` (Goyal et al., "Accurate,
    Large Minibatch SGD", 2017, section 2.2). It depends on the mini-batch's id alone, so a resumed
    cell goes on with the right one::

        rate |       ________ learning_rate
             |    /
             | /
             +---------------> mini-batch
              0   warm-up
    """
    if not cell.learning_rate_warmup_steps:
        return
    for group in optimizer.param_groups:
        full = group.setdefault("initial_lr", group["lr"])  # torch's own name for it
        group["lr"] = full * _warmth(cell, mini_batch)


def rate_of(cell: Cell, mini_batch: int) -> float:
    """The cell's learning rate of a mini-batch's update; see :func:`set_learning_rate`."""
    return cell.learning_rate * _warmth(cell, mini_batch)


def _warmth(cell: Cell, mini_batch: int) -> float:
    return min(1.0, (mini_batch + 1) / max(1, cell.learning_rate_warmup_steps))


class Autocast(nn.Module):
    """Computes a block in half precision where autocast deems it safe; weights stay float32."""

    def __init__(self, block: nn.Module, device_type: str, kind: torch.dtype) -> None:
        super().__init__()
        self.block = block
        self.device_type = device_type
        self.kind = kind

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast(self.device_type, dtype=self.kind):
            outputs: Tensor = self.block(inputs)
        return outputs


def set_precision(precision: str) -> None:
    """Set the precision of torch's products of float32 matrices and of convolutions."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"


def with_precision(network: nn.Sequential, precision: str, device_type: str) -> nn.Sequential:
    """The network in a cell's precision; sets torch's global matrix-product precision."""
    set_precision(precision)
    kind = HALF_TYPES.get(precision)
    if kind is None:
        return network
    # named_children would omit the second place of a block that occurs twice.
    blocks = ((str(place), block) for place, block in network._modules.items())
    return nn.Sequential(
        OrderedDict((name, Autocast(b, device_type, kind)) for name, b in blocks if b is not None)
    )


def compile_in_place(module: nn.Module) -> None:
    """Have torch.compile make kernels of the module's forward pass, when it runs first.

    Names of weights stay, and so do hooks, which are not compiled. torch's compiler skips a forward
    pass that torch itself defines, as that of ``nn.Sequential``, unless other code calls it.
    """
    eager = module.forward

    def forward(*inputs: Tensor) -> Any:
        return eager(*inputs)

    module.forward = torch.compile(forward)


def apply_torch_settings(cell: Cell) -> None:
    """Set torch's threads, precision, cuDNN's search and determinism for this process.

    Call it before a GPU is used: cuBLAS reads its variable then. A layer without a deterministic
    kernel warns and runs.
    """
    torch.set_num_threads(cell.threads_per_device)
    set_precision(cell.precision)
    torch.backends.cudnn.benchmark = cell.cudnn_benchmark and not cell.deterministic
    if cell.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)


Batch = tuple[Tensor, Tensor]
"""Inputs (N, ...) and labels (N,), or tokens (N, T) and (N, T)."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, labels) -> mean over the samples."""

Run = tuple[int, Iterable[Batch]]
"""Mini-batches of a call of ``run``: how many it trains, and these, or the first of them."""


class Replay(Protocol):
    """A replay of a plan, as the module of a strategy defines it."""

    def __call__(
        self,
        plan: StrategyPlan,
        networks: Sequence[nn.Module],
        runs: Iterable[Run],
        loss_function: Loss,
    ) -> Iterator[tuple[float, ...]]:
        """Train the networks in place; yield the loss of each mini-batch on each of them.

        They have equal weights, and are as many as ``Strategy.replayed_networks`` says.
        """
        ...


def replay_of(strategy: Strategy) -> Replay | None:
    """The replay of a strategy; None if it needs none, or has none."""
    return resolve_name(strategy.replay) if strategy.replay else None
