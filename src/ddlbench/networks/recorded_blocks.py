"""Blocks of a recorded network, between places where a single tensor of the data is alive.

::

    entries       input  conv  bn  relu  conv  add  arange  embed  add  ...  fc
    alive           1     1    1    1     2     1             2     1         1
    cuts            ^     ^    ^    ^           ^                   ^         ^    one tensor passes

    blocks        | conv bn relu | conv add | arange embed add | ... | fc |

What depends on no data (masks, positions) is not sent but computed again where it is needed. Blocks
that share a weight or a buffer become one, and a block without weights joins the one before. Each
block is an ``fx.GraphModule`` that holds the module's own layers by their own names.
"""

from __future__ import annotations

import itertools
import keyword
import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import resolve_name
from torch.utils._pytree import tree_leaves, tree_map

from ddlbench.networks.inspection import tensors_of
from ddlbench.networks.recording import CannotRecord, Entry, Ref


@dataclass(frozen=True)
class Samples:
    """A whole number that is ``each`` times the samples, plus ``more``."""

    each: int
    more: int

    def of(self, samples: int) -> int:
        return samples * self.each + self.more


@dataclass(frozen=True)
class Mode:
    """A constant that differs in evaluation."""

    training: Any
    evaluation: Any


def _cuts(entries: Sequence[Entry], returned: int, *, samples_first: bool = True) -> list[int]:
    """Numbers of the entries between which blocks lie: the input, all cuts, the result.

    After a cut no older value of the data is used, and its samples are in the first dimension. What
    the result does not need, as the last state of an LSTM, uses nothing.
    """
    needed = _needed(entries, 0, returned)
    last_use = {ref: number for number in needed for ref in _refs(entries[number])}
    cuts, alive_until = [0], last_use.get(0, 0)
    for number in needed[:-1]:
        entry = entries[number]
        if not entry.of_data:
            continue
        if alive_until <= number and (_has_samples(entry) or not samples_first):
            cuts.append(number)
        alive_until = max(alive_until, last_use.get(number, number))
    return [*cuts, returned]


def _has_samples(entry: Entry) -> bool:
    first = (entry.shape or (None,))[0]
    return isinstance(first, Samples) and first.each > 0


def _refs(entry: Entry) -> Iterator[int]:
    for leaf in tree_leaves((entry.arguments, dict(entry.named))):
        if isinstance(leaf, Ref):
            yield leaf.entry


def blocks_of(
    module: nn.Module, entries: list[Entry], returned: int, opaque: Mapping[str, str] | None = None
) -> nn.Sequential:
    """The blocks between the cuts that are left when ties are merged.

    ``opaque`` tells why modules are layers, for the reason why there are no two blocks.
    """
    cuts = _cuts(entries, returned)
    spans = list(itertools.pairwise(cuts))
    owned = [_tensors_between(module, entries, *span) for span in spans]
    spans = _merge_ties(spans, owned)
    if len(spans) < 2:
        raise CannotRecord(_why_no_cut(module, entries, returned, owned, opaque or {}))
    blocks: OrderedDict[str, nn.Module] = OrderedDict()
    for first, last in spans:
        block = _Builder(module, entries, first).block(last)
        blocks[_name_of(entries, first, last, blocks)] = block
    return nn.Sequential(blocks)


def _why_no_cut(
    module: nn.Module,
    entries: Sequence[Entry],
    returned: int,
    owned: Sequence[set[int]],
    opaque: Mapping[str, str],
) -> str:
    """Why a network has no two blocks, from the tensors that each span between its cuts owns."""
    within = [entries[number] for number in _needed(entries, 0, returned)]
    layers = [entry.target for entry in within if entry.kind == "layer"]
    with_weights = [name for name in layers if [*tensors_of(module.get_submodule(name))]]
    if len(with_weights) == 1 and not any(entry.kind == "attribute" for entry in within):
        (layer,) = with_weights
        return opaque.get(layer) or f"{layer} is its only layer with weights"
    if sum(map(bool, owned)) > 1:
        return "layers from its first to its last share weights, as tied embeddings do, or buffers"
    if len(_cuts(entries, returned, samples_first=False)) > len(owned) + 1:
        return "the first dimension of its tensors is not that of the samples (batch_first=True)"
    return "several of its tensors are alive wherever it could be cut"


def _merge_ties(spans: list[tuple[int, int]], owned: list[set[int]]) -> list[tuple[int, int]]:
    """Spans joined so that none share a tensor, and each of several has some."""
    last_of = {tensor: number for number, tensors in enumerate(owned) for tensor in tensors}
    groups: list[tuple[int, int, bool]] = []  # first span, last span, whether they have weights
    number = 0
    while number < len(spans):
        end = until = number
        while until <= end:
            end = max([end, *(last_of[tensor] for tensor in owned[until])])
            until += 1
        weights = any(owned[number : end + 1])
        if groups and not (weights and groups[-1][2]):  # one of the two has none: they are one
            groups[-1] = (groups[-1][0], end, weights or groups[-1][2])
        else:
            groups.append((number, end, weights))
        number = end + 1
    return [(spans[first][0], spans[last][1]) for first, last, _ in groups]


def _needed(entries: Sequence[Entry], first: int, last: int) -> list[int]:
    """Entries that lead from one cut to the next, with what they need that is not of the data."""
    wanted, reached = [last], set()
    while wanted:
        number = wanted.pop()
        if number in reached or number == first:
            continue
        reached.add(number)
        wanted += [ref for ref in _refs(entries[number]) if ref != first]
    # What writes into a value that is needed has to run, too.
    for number in range(first + 1, last):
        entry = entries[number]
        if entry.writes and number not in reached and reached & set(_refs(entry)):
            reached |= set(_needed(entries, first, number))
    return sorted(reached)


def _tensors_between(
    module: nn.Module, entries: Sequence[Entry], first: int, last: int
) -> set[int]:
    """Identities of the weights and buffers that a block has."""
    tensors: set[int] = set()
    weights = dict(module.named_parameters(remove_duplicate=False))
    for number in _needed(entries, first, last):
        entry = entries[number]
        if entry.kind == "layer":
            layer = module.get_submodule(entry.target)
            tensors |= {id(tensor) for tensor in tensors_of(layer)}
        elif entry.kind == "attribute" and entry.target in weights:
            tensors.add(id(weights[entry.target]))
    return tensors  # a buffer outside of layers is never written, so that each block has a copy


def _name_of(entries: Sequence[Entry], first: int, last: int, taken: Container[str]) -> str:
    """A block's name: the module that is just this block, or else its last layer."""
    within = [entries[number] for number in _needed(entries, first, last)]
    layers = [entry.target for entry in within if entry.kind == "layer"]
    owners = [
        attribute.target.rpartition(".")[0] for attribute in within if attribute.kind == "attribute"
    ]
    everywhere = [entry.target for entry in entries if entry.kind == "layer"]
    names = [*layers[-1:], *filter(None, owners), "block"][:1]
    prefix: list[str] = []
    for parts in zip(*(layer.split(".") for layer in layers), strict=False):
        if len(set(parts)) > 1:
            break
        prefix.append(parts[0])
        module = ".".join(prefix)
        if sum(f"{owner}.".startswith(f"{module}.") for owner in everywhere) == len(layers):
            names.insert(0, module)
            break
    readable = [name.replace(".", "_") for name in names]
    numbered = (f"{readable[-1]}_{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain(readable, numbered) if name not in taken)


class _Builder:
    """Makes the graph of the block that is given the value of entry ``first``."""

    def __init__(self, module: nn.Module, entries: Sequence[Entry], first: int) -> None:
        self._module, self._entries, self._first = module, entries, first
        self._graph = fx.Graph()
        self._inputs = self._graph.placeholder("inputs")
        self._nodes: dict[int, fx.Node] = {first: self._inputs}
        self._samples: fx.Node | None = None

    def block(self, last: int) -> fx.GraphModule:
        for number in _needed(self._entries, self._first, last):
            self._nodes[number] = self._node(self._entries[number])
        self._graph.output(self._nodes[last])
        self._graph.on_generate_code(lambda _: _without_keywords)
        block = fx.GraphModule(self._module, self._graph, class_name="Block")
        for name in {str(node.target) for node in self._graph.find_nodes(op="get_attr")}:
            self._copy_buffer(block, name)
        return block

    def _copy_buffer(self, block: nn.Module, name: str) -> None:
        """Have a buffer of the block's own, saved or not as the module's is."""
        parent, _, attribute = name.rpartition(".")
        source, target = (owner.get_submodule(parent) for owner in (self._module, block))
        buffer = source._buffers.get(attribute)
        if buffer is not None:
            persistent = attribute not in source._non_persistent_buffers_set
            target.register_buffer(attribute, buffer.clone(), persistent=persistent)

    def _node(self, entry: Entry) -> fx.Node:
        graph = self._graph
        arguments = tree_map(self._value, entry.arguments)
        named = {name: tree_map(self._value, value) for name, value in entry.named.items()}
        if entry.stops_gradients or entry.full_precision or isinstance(entry.target, type):
            return self._node_within(entry, arguments, named)
        if entry.kind == "layer":
            return graph.call_module(entry.target, arguments, named)
        if entry.kind == "attribute":
            return graph.get_attr(entry.target)
        if entry.kind in ("part", "after"):
            node = arguments[0]
            for key in entry.target:
                node = graph.call_function(operator.getitem, (node, key))
            return node
        return self._node_of_function(entry, arguments, named)

    def _node_of_function(
        self, entry: Entry, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> fx.Node:
        name = getattr(entry.target, "__name__", "")
        known_as = (resolve_name(entry.target) or name).split(".")
        if name == "__get__":
            return self._graph.call_function(getattr, (arguments[0], known_as[-2]))
        for method in (name, known_as[-1]):  # that of __pow__ calls itself pow
            if getattr(torch.Tensor, method, None) is entry.target:
                return self._graph.call_method(method, arguments, named)
        function = entry.target if _has_its_name(entry.target) else _within(entry.target)
        return self._graph.call_function(function, arguments, named)

    def _node_within(
        self, entry: Entry, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> fx.Node:
        """A layer or function in the contexts in which the module calls it."""
        if entry.kind == "layer":
            arguments = (self._graph.get_attr(entry.target), *arguments)
        function = nn.Module.__call__ if entry.kind == "layer" else entry.target
        if isinstance(function, type):
            function = function.apply  # type: ignore[attr-defined] # an autograd.Function
        called = _within(function, entry.stops_gradients, entry.full_precision)
        return self._graph.call_function(called, arguments, named)

    def _value(self, value: Any) -> Any:
        """What stands for a recorded argument within the block."""
        if isinstance(value, Ref):
            return self._nodes[value.entry]
        if isinstance(value, Samples):
            number = self._graph.call_function(operator.mul, (self._count(), value.each))
            return self._graph.call_function(operator.add, (number, value.more))
        if isinstance(value, Mode):
            mode = self._graph.get_attr("training")
            return self._graph.call_function(_of_mode, (mode, value.training, value.evaluation))
        if isinstance(value, torch.device):
            return self._graph.call_function(getattr, (self._inputs, "device"))
        return value

    def _count(self) -> fx.Node:
        """The number of samples, from the first dimension of the block's input."""
        if self._samples is None:
            first = (self._entries[self._first].shape or (None,))[0]
            assert isinstance(first, Samples)
            size = self._graph.call_method("size", (self._inputs, 0))
            size = self._graph.call_function(operator.sub, (size, first.more))
            self._samples = self._graph.call_function(operator.floordiv, (size, first.each))
        return self._samples


_LAYER = re.compile(r"(?<![\w.])self(?:\.\w+)+")


def _without_keywords(lines: list[str]) -> list[str]:
    """Code of a block that Python can read where a layer has the name of a keyword."""
    return [_LAYER.sub(_by_getattr, line) for line in lines]


def _by_getattr(layer: re.Match[str]) -> str:
    """``getattr(self.layers, "in").conv`` of ``self.layers.in.conv``."""
    first, *names = layer[0].split(".")
    for name in names:
        first = f'getattr({first}, "{name}")' if keyword.iskeyword(name) else f"{first}.{name}"
    return first


def _of_mode(training: bool, value: Any, in_evaluation: Any) -> Any:
    return value if training else in_evaluation


fx.wrap("_of_mode")


def _has_its_name(function: Callable[..., Any]) -> bool:
    """Whether a function of torch is where its name says, by which the code of a block calls it."""
    try:
        first, *names = fx.node._get_qualified_name(function).split(".")
        return first != "torch" or reduce(getattr, names, torch) is function
    except (AttributeError, RuntimeError, TypeError):
        return False


def _within(
    function: Callable[..., Any], stops_gradients: bool = False, full_precision: bool = False
) -> Callable[..., Any]:
    """A function that runs another, without gradients, without autocast, or both."""

    def called(*arguments: Any, **named: Any) -> Any:
        if stops_gradients:
            with torch.no_grad():
                return within_autocast(*arguments, **named)
        return within_autocast(*arguments, **named)

    def within_autocast(*arguments: Any, **named: Any) -> Any:
        kind = _device_type((arguments, named))
        if full_precision and kind != "meta":  # which has no autocast
            with torch.autocast(kind, enabled=False):
                return function(*arguments, **named)
        return function(*arguments, **named)

    return called


def _device_type(values: Any) -> str:
    """The type of the device of the first tensor; the CPU's without one."""
    devices = (leaf.device for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
    device = next(devices, None)
    return "cpu" if device is None else device.type
