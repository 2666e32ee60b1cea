"""Which linear layers a forward pass uses otherwise than its ``nn.Sequential`` does.

A pair of linear layers can be split because nothing but element-wise layers lies between them. Of
an ``nn.Sequential`` that is known only while the sequence itself runs::

    self.mlp(x)                           fc1 -> GELU -> fc2
    self.mlp[2](norm(self.mlp[0](x)))     fc1 -> norm -> fc2      the norm would see half of it
    self.mlp[0].weight.norm()                                     half of the weight

So the network runs once on fake tensors, and whoever reads a weight is noted. A block that was
recorded (:mod:`ddlbench.networks.recorded`) has no sequences any more, but a graph of its calls.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ddlbench.networks.block_forms import TensorForm, run_blocks


def used_alone(network: nn.Sequential, sample: TensorForm) -> set[str]:
    """Names of linear layers whose weights are read while they or their parents do not run.

    Those that share a weight count, too. ``sample`` is the form of the network's input.
    """
    alone: set[str] = set()

    def run(double: nn.Sequential, name: str, inputs: Tensor) -> tuple[Tensor, None]:
        with _Uses(double, double.get_submodule(name)) as uses:
            outputs = double.get_submodule(name)(inputs)
        alone.update(uses.alone)
        return outputs, None

    run_blocks(network, sample, torch.device("cpu"), run)
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
