"""Executor of tensor parallelism, over gloo (CPU) or NCCL (CUDA): one process for each device.

The groups (:mod:`ddlbench.strategies.grouped`) are a tensor group of a rank, and the ranks with the
same place in the other groups, which have the same part of the weights.

DTensor's ``parallelize_module`` splits the linear layers of a network::

    rank 0   x -+-> norm -> | query key value: heads 0 1 | -> output -+-> norm -> | fc1 -> fc2 | ->
    rank 1   x -+-> norm -> | query key value: heads 2 3 | -> output -+-> norm -> | fc1 -> fc2 | ->
                           f                              g                      f              g

    f    forward: nothing                backward: all-reduce of the gradient of the input
    g    forward: all-reduce of sums     backward: nothing

Everything else (norms, embeddings, dropout, the head) is computed whole by every device. Only
modules whose calls are known are split: the transformer's block and attention of this project, and
``nn.Sequential``. :func:`table` makes ``planning/tensor_pairs.csv`` for ``make tables``.

Source: Shoeybi et al., "Megatron-LM" (2019), section 3, figure 3.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks.block_forms import sample_form
from ddlbench.networks.linear_pairs import SAMPLES, ModulePair, find_pairs, linear_pairs, used_alone
from ddlbench.planning.network_tables import why_not_in_pairs
from ddlbench.strategies.executor import Context, Unsupported
from ddlbench.strategies.grouped import GroupDetails
from ddlbench.strategies.process_group import (
    ShardedStateExecutor,
    across,
    groups_of,
    join_all,
    side_by_side,
    sum_gradients,
)
from ddlbench.strategies.timing import SpanRecorder
from ddlbench.strategies.training import Autocast

_COLLECTIVES = ("all_reduce", "wait_tensor")


class TensorParallelExecutor(ShardedStateExecutor):
    """Halves of linear layers on the ranks of a group; equal groups add up gradients."""

    def place(self, network: nn.Sequential) -> nn.Module:
        device = self.context.devices[0]
        details = GroupDetails.of(self.plan)
        self.groups = details.replicas
        join_all(self.context, self.process, self.plan.world_size)
        whole = whole_layers(network, self.plan.cell, details.group, self.context)
        # All ranks of a group must draw the same random numbers in the layers that each computes.
        torch.manual_seed(self.plan.cell.seed + self.process.replica)
        network.to(device)
        groups = groups_of(self.plan.world_size, details.group)
        self.over_groups = side_by_side(across(groups), self.context) if self.groups > 1 else None
        if details.group > 1:
            # Of a group of our own, because a group that the mesh makes has torch's time limit.
            within = side_by_side(groups, self.context)
            split_pairs(network, DeviceMesh.from_group(within, device.type), whole)
        return network

    def backward(self, loss: Tensor) -> None:
        (loss / self.groups).backward()
        if self.over_groups is not None:
            with self.spans.span("all_reduce"):
                sum_gradients(list(self.module.parameters()), self.over_groups)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Time the all-reduces of pairs, which on CPUs interrupt the pass.

        On GPUs collectives run on streams of their own, which the recorder does not see.
        """
        on_cpu = self.context.devices[0].type == "cpu"
        with _Recorder(self.spans) if on_cpu else nullcontext():
            yield


class _Recorder(TorchDispatchMode):
    """Sees the collectives that DTensor starts, and where a pass waits for them."""

    def __init__(self, spans: SpanRecorder) -> None:
        super().__init__()
        self._spans = spans

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        # DTensor comes first and calls operations of plain tensors, which come back here.
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        packet = func._overloadpacket
        is_collective = packet._qualified_op_name.startswith("_c10d_functional::")
        is_timed = is_collective and packet.__name__ in _COLLECTIVES
        with self._spans.span("all_reduce") if is_timed else nullcontext():
            return func(*args, **(kwargs or {}))


def whole_layers(network: nn.Sequential, cell: Cell, group: int, context: Context) -> set[str]:
    """Names of linear layers that belong to no pair, as the network uses them otherwise.

    Raises:
        Unsupported: groups of this size cannot split the others, of a network without traits.
    """
    sample = sample_form(DATASETS[cell.dataset], SAMPLES, context.floating)
    whole = used_alone(network, sample, context.devices[0])
    known = linear_pairs(network, pairs_in(network, whole))
    why_not = why_not_in_pairs(known, cell, group)
    if why_not is not None:
        raise Unsupported(why_not)
    return whole


def split_pairs(
    network: nn.Sequential, mesh: DeviceMesh, whole: Container[str] = ()
) -> list[ModulePair]:
    """Split all pairs over the ranks of a mesh of one dimension, in place; returns them.

    The network must lie on the mesh's device. Weights of pairs become DTensors, with this rank's
    part of the values that every rank has.
    """
    pairs = pairs_in(network, whole)
    styles: dict[str, ParallelStyle] = {}
    for module_pair in pairs:
        styles.update((name, ColwiseParallel()) for name in module_pair.columns)
        styles[module_pair.row] = RowwiseParallel()
        if module_pair.pair.is_attention:
            # Three layers read one input. Each would all-reduce its gradient of it by itself;
            # as one DTensor, the three partial gradients are added first and sent once.
            styles[module_pair.parent_name] = PrepareModuleInput(
                input_layouts=Replicate(), desired_input_layouts=Replicate()
            )
    parallelize_module(network, mesh, styles)
    return pairs


def pairs_in(network: nn.Sequential, whole: Container[str] = ()) -> list[ModulePair]:
    """Pairs, also where blocks are wrapped for bfloat16; ``whole`` as in :func:`find_pairs`."""
    return find_pairs(network, whole, dict(_plain_names(network)))


def _plain_names(network: nn.Sequential) -> Iterator[tuple[str, str]]:
    """Names of modules without the wrappers of bfloat16, and with them."""
    wrappers = {name for name, module in network.named_modules() if isinstance(module, Autocast)}
    for name, _ in network.named_modules():
        if name in wrappers:
            continue
        block, _, inner = name.partition(".")
        # The wrapped block is called "block" within its wrapper.
        yield (name if block not in wrappers else f"{block}{inner[len('block') :]}"), name
