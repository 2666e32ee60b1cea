"""Pairs of linear layers that a network calls one after the other, so that devices can split them.

A pair of linear layers can be split because nothing but element-wise layers lies between them. Of
an ``nn.Sequential`` that is known only while the sequence itself runs::

    self.mlp(x)                           fc1 -> GELU -> fc2
    self.mlp[2](norm(self.mlp[0](x)))     fc1 -> norm -> fc2      the norm would see half of it
    self.mlp[0].weight.norm()                                     half of the weight

So the network runs once on fake tensors, and whoever reads a weight is noted. A block that was
recorded (:mod:`ddlbench.networks.recorded`) has no sequences any more, but a graph of its calls.

:mod:`ddlbench.planning.network_tables` says what a pair is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ddlbench.common.document import csv_text
from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.experiment.registry import load
from ddlbench.experiment.registry import pairs as built_in_pairs
from ddlbench.networks.block_forms import TensorForm, run_blocks, sample_form
from ddlbench.networks.inspection import has_hooks
from ddlbench.networks.transformers import Attention, TransformerBlock
from ddlbench.planning.network_tables import PAIR_COLUMNS, LinearPairs, Pair, pairs_of

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
SAMPLES = 2
"""Batch norm refuses a single value per channel."""


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


def known_pairs(network: nn.Sequential, spec: DatasetSpec) -> LinearPairs | None:
    """What a plan must know of a network's pairs; None if it cannot run on made-up samples."""
    pairs = find_pairs(network)
    if not pairs:
        return linear_pairs(network, pairs)
    with suppress(Exception):
        whole = used_alone(network, sample_form(spec, SAMPLES))
        return linear_pairs(network, find_pairs(network, whole))
    return None


def find_pairs(
    network: nn.Sequential,
    whole: Container[str] = (),
    places: Mapping[str, str] | None = None,
) -> list[ModulePair]:
    """The pairs of a network that can be split, in the order of calls.

    Args:
        network: built, or on the meta device.
        whole: names of layers that belong to no pair, see :func:`used_alone`.
        places: names of its modules by those of the plain network, where blocks are wrapped.
    """
    places = places or {name: name for name, _ in network.named_modules()}
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


def linear_pairs(network: nn.Sequential, pairs: Sequence[ModulePair]) -> LinearPairs:
    """What a plan must know of a network with these pairs."""
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
            if isinstance(layer, CONVOLUTIONS)
            for p in layer.parameters()
        ),
        weights=sum(p.numel() for p in network.parameters()),
    )


def table() -> str:
    """``planning/tensor_pairs.csv``: every built-in network with each dataset it reads."""
    rows: list[Sequence[str | int]] = [PAIR_COLUMNS]
    for name, spec in built_in_pairs():
        with torch.device("meta"):
            network = load("ddlbench.networks", name)(spec)
        known = linear_pairs(network, find_pairs(network))
        rows.append((name, spec.name, *(getattr(known, column) for column in PAIR_COLUMNS[2:])))
    return csv_text(rows)


def used_alone(
    network: nn.Sequential, sample: TensorForm, device: torch.device | str = "cpu"
) -> set[str]:
    """Names of linear layers whose weights are read while they or their parents do not run.

    Those that share a weight count, too. ``sample`` is the form of the network's input, ``device``
    where a copy runs: some networks run on GPUs only.
    """
    alone: set[str] = set()

    def run(double: nn.Sequential, name: str, inputs: Tensor) -> tuple[Tensor, None]:
        with _Uses(double, double.get_submodule(name)) as uses:
            outputs = double.get_submodule(name)(inputs)
        alone.update(uses.alone)
        return outputs, None

    run_blocks(network, sample, device, run)
    return alone


class _Uses(TorchFunctionMode):
    """Notes linear layers whose weights are used outside of calls, while a block runs."""

    def __init__(self, network: nn.Sequential, block: nn.Module) -> None:
        super().__init__()
        self._running: Counter[nn.Module] = Counter({network: 1})  # who calls its blocks in order
        for module in block.modules():
            module.register_forward_pre_hook(self._begins)
            module.register_forward_hook(self._ends)
        self._owners: dict[Tensor, list[tuple[str, nn.Module]]] = defaultdict(list)
        for name, layer in network.named_modules():
            for weight in layer._parameters.values():
                if weight is not None:
                    self._owners[weight].append((name, layer))
        self._network = network
        self.alone = {
            name for owners in self._owners.values() if len(owners) > 1 for name, _ in owners
        }

    def _begins(self, module: nn.Module, _inputs: Any) -> None:
        self._running[module] += 1

    def _ends(self, module: nn.Module, _inputs: Any, _outputs: Any) -> None:
        self._running[module] -= 1

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        returned = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(returned)):  # not a shape or type
            self.alone.update(self._used_alone(tree_leaves((args, kwargs))))
        return returned

    def _used_alone(self, read: list[Any]) -> Iterator[str]:
        weights = (leaf for leaf in read if isinstance(leaf, Tensor) and leaf in self._owners)
        for name, layer in (owner for weight in weights for owner in self._owners[weight]):
            parent = self._network.get_submodule(name.rpartition(".")[0])
            # Within a recorded block a parent is only a name, and never runs.
            if not (self._running[layer] and (self._running[parent] or type(parent) is nn.Module)):
                yield name


def in_a_row(network: nn.Sequential, layers: Sequence[str]) -> bool:
    """Whether a recorded block calls these layers one after the other, and reads nothing between.

    ``layers`` are their names in the network.
    """
    block, prefix = _recorded_block(network, layers[0])
    if block is None:
        return False
    first, *others = (name.removeprefix(prefix) for name in layers)
    calls = [node for node in block.graph.nodes if node.target in (first, *others)]
    rows = [list(_row(node, others)) for node in calls if node.target == first]
    whole = all(len(row) == len(layers) for row in rows)
    return bool(rows) and whole and calls == [node for row in rows for node in row]


def _row(node: fx.Node, targets: Sequence[str]) -> Iterator[fx.Node]:
    """A call of a layer, and those of the targets that follow it, until something else does."""
    yield node
    for target in targets:
        followers = list(node.users)
        if len(followers) != 1 or followers[0].op != "call_module":
            return
        (node,) = followers
        if node.target != target or len(node.all_input_nodes) != 1:
            return
        yield node


def _recorded_block(network: nn.Sequential, layer: str) -> tuple[fx.GraphModule | None, str]:
    """The recorded block that a layer is in, and its name with a dot; None without one."""
    parts = layer.split(".")
    for length in range(1, len(parts)):
        name = ".".join(parts[:length])
        module = network.get_submodule(name)
        if isinstance(module, fx.GraphModule):
            return module, f"{name}."
    return None, ""


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
