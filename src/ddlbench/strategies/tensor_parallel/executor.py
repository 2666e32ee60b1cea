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
from dataclasses import dataclass
from math import gcd
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

from ddlbench.common.document import csv_text
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import load
from ddlbench.experiment.registry import pairs as built_in_pairs
from ddlbench.networks.block_forms import sample_form
from ddlbench.networks.inspection import has_hooks
from ddlbench.networks.transformers import Attention, TransformerBlock
from ddlbench.planning.network_tables import PAIR_COLUMNS, LinearPairs, why_not_in_pairs
from ddlbench.planning.planner import StrategyPlan
from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.grouped import GroupDetails
from ddlbench.strategies.process_group import (
    ShardedStateExecutor,
    across,
    groups_of,
    join_all,
    side_by_side,
    sum_gradients,
)
from ddlbench.strategies.tensor_parallel.descriptor import Pair, pairs_of
from ddlbench.strategies.tensor_parallel.layer_uses import in_a_row, used_alone
from ddlbench.strategies.timing import SpanRecorder
from ddlbench.strategies.training import Autocast

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

_COLLECTIVES = ("all_reduce", "wait_tensor")
_SAMPLES = 2  # batch norm refuses a single value per channel


class TensorParallelExecutor(ShardedStateExecutor):
    """Halves of linear layers on the ranks of a group; equal groups add up gradients."""

    def place(self, network: nn.Sequential) -> nn.Module:
        device = self.context.devices[0]
        details = GroupDetails.of(self.plan)
        self.groups = details.replicas
        join_all(self.context, self.process, self.plan.world_size)
        whole = whole_layers(network, self.plan, details.group, self.context.floating)
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


@dataclass(frozen=True)
class ModulePair:
    """A pair, with its modules.

    Args:
        pair: by the names of the plain network.
        parent: the module that calls its layers.
        columns, row: their names in the network that is split.
        units: heads, or hidden features, which are shared out.
    """

    pair: Pair
    parent: nn.Module
    parent_name: str
    columns: tuple[str, ...]
    row: str
    units: int


def whole_layers(
    network: nn.Sequential, plan: StrategyPlan, group: int, floating: torch.dtype
) -> set[str]:
    """Names of linear layers that belong to no pair, as the network uses them otherwise.

    Raises:
        Unsupported: groups of this size cannot split the others.
    """
    cell = plan.cell
    whole = used_alone(network, sample_form(DATASETS[cell.dataset], _SAMPLES, floating))
    why_not = why_not_in_pairs(linear_pairs(network, whole), cell.network, cell.strategy, group)
    if why_not is not None:
        raise Unsupported(why_not)
    return whole


def find_pairs(network: nn.Sequential, whole: Container[str] = ()) -> list[ModulePair]:
    """The pairs of a network that can be split, in the order of calls; none of ``whole`` layers."""
    places = dict(_plain_names(network))
    leaves = [
        (name, _kind(network.get_submodule(place)))
        for name, place in places.items()
        if name and not any(True for _ in network.get_submodule(place).children())
    ]
    return [
        ModulePair(
            pair,
            parent,
            places[pair.parent],
            tuple(places[name] for name in pair.columns),
            places[pair.row],
            _units(parent, network.get_submodule(places[pair.row])),
        )
        for pair in pairs_of(leaves)
        for parent in [network.get_submodule(places[pair.parent])]
        if (_calls_in_order(parent, pair) or in_a_row(network, [places[n] for n in pair.layers]))
        and not any(places[name] in whole for name in (*pair.columns, pair.row))
    ]


def linear_pairs(network: nn.Sequential, whole: Container[str] = ()) -> LinearPairs:
    """What a plan must know of a network's pairs."""
    pairs = find_pairs(network, whole)
    layers = dict(network.named_modules())
    heads = [module_pair.units for module_pair in pairs if module_pair.pair.is_attention]
    hidden = [module_pair.units for module_pair in pairs if not module_pair.pair.is_attention]
    return LinearPairs(
        pairs=len(pairs),
        heads=gcd(*heads),
        hidden=gcd(*hidden),
        convolutions=sum(
            p.numel()
            for layer in layers.values()
            if isinstance(layer, _CONVOLUTIONS)
            for p in layer.parameters()
        ),
        weights=sum(p.numel() for p in network.parameters()),
    )


def split_pairs(
    network: nn.Sequential, mesh: DeviceMesh, whole: Container[str] = ()
) -> list[ModulePair]:
    """Split all pairs over the ranks of a mesh of one dimension, in place; returns them.

    The network must lie on the mesh's device. Weights of pairs become DTensors, with this rank's
    part of the values that every rank has.
    """
    pairs = find_pairs(network, whole)
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


def table() -> str:
    """``planning/tensor_pairs.csv``: every built-in network with each dataset it reads."""
    rows: list[Sequence[str | int]] = [PAIR_COLUMNS]
    for name, spec in built_in_pairs():
        with torch.device("meta"):
            network = load("ddlbench.networks", name)(spec)
        known = linear_pairs(network)
        rows.append((name, spec.name, *(getattr(known, column) for column in PAIR_COLUMNS[2:])))
    return csv_text(rows)


def _plain_names(network: nn.Sequential) -> Iterator[tuple[str, str]]:
    """Names of modules without the wrappers of bfloat16, and with them."""
    wrappers = {name for name, module in network.named_modules() if isinstance(module, Autocast)}
    for name, _ in network.named_modules():
        if name in wrappers:
            continue
        block, _, inner = name.partition(".")
        # The wrapped block is called "block" within its wrapper.
        yield (name if block not in wrappers else f"{block}{inner[len('block') :]}"), name


def _kind(layer: nn.Module) -> str:
    """Name of a layer's class; another one if it has hooks, so that it belongs to no pair."""
    name = type(layer).__name__
    return f"{name} with hooks" if has_hooks(layer) else name


def _calls_in_order(parent: nn.Module, pair: Pair) -> bool:
    """Whether the module calls the pair's layers one after the other, and nothing else between."""
    if pair.is_attention:
        return type(parent) is Attention
    # A class that inherits from nn.Sequential may do anything between its layers.
    return type(parent) is TransformerBlock or type(parent).forward is nn.Sequential.forward


def _units(parent: nn.Module, row: nn.Module) -> int:
    if isinstance(parent, Attention):
        return parent.heads
    assert isinstance(row, nn.Linear)
    return row.in_features
