"""Cuts any module into blocks where a single tensor of the data is alive.

::

    entries       input  conv  bn  relu  conv  add  arange  embed  add  ...  fc
    alive           1     1    1    1     2     1             2     1         1
    cuts            ^     ^    ^    ^           ^                   ^         ^    one tensor passes

    blocks        | conv bn relu | conv add | arange embed add | ... | fc |

The run is recorded four times (:mod:`ddlbench.networks.recording`): with two samples, with three,
with a thousand, and in evaluation mode; once more in autocast, for what stays in float32 there. A
whole number that grows with the samples is computed from a block's own input, a constant that
differs in evaluation follows the block's mode. A module whose constants or functions follow the
samples in another way (``chunk(ceil(N / 8))``) is a layer. What depends on no data (masks,
positions) is not sent but computed again where it is needed. Blocks that share a weight or a buffer
become one, and a block without weights joins the one before.

Each block is an ``fx.GraphModule`` that holds the module's own layers by their own names. The
blocks are then compared with the module on other numbers, another batch size, and two calls.
"""

from __future__ import annotations

import itertools
import keyword
import math
import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import resolve_name
from torch.utils._pytree import tree_leaves, tree_map

from ddlbench.common.errors import first_line
from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.foreign import Whole, seeded
from ddlbench.networks.inputs import made_up_inputs
from ddlbench.networks.inspection import copy_of, copy_without_data, tensors_of
from ddlbench.networks.recorded_comparison import can_be_compared, check
from ddlbench.networks.recording import CannotRecord, Entry, Recording, Ref, alike, record

_SAMPLES = (2, 3)
_MANY_SAMPLES = 1031  # where that costs neither time nor memory
_EVALUATED_SAMPLES = {"meta": 64, "cpu": 8}
_FURTHER_SAMPLES = (4, 8, 16, 32, 128, 256)  # where Python is told sizes, and nobody waits
_LEAST, _MOST = 11, 257  # many samples where numbers are computed
_COMPUTED_VALUES, _COMPUTED_PRODUCTS = 2**18, 2**28  # of the inputs, and of weights with samples


class _CannotRun(CannotRecord):
    """The device cannot run the module."""


@dataclass(frozen=True)
class _Samples:
    """A whole number that is ``each`` times the samples, plus ``more``."""

    each: int
    more: int

    def of(self, samples: int) -> int:
        return samples * self.each + self.more


@dataclass(frozen=True)
class _Mode:
    """A constant that differs in evaluation."""

    training: Any
    evaluation: Any


def cut_by_recording(network: Whole, spec: DatasetSpec, *, compare: bool = True) -> nn.Sequential:
    """The same network as blocks; a small one is compared with it if ``compare`` says so.

    Raises:
        CannotRecord: it cannot be recorded, has no cut, or blocks compute something else.
    """
    if any(_is_compiled(part) for part in network.module.modules()):
        raise CannotRecord("a part of it is compiled")
    try:
        entries, first, double = _recorded(network, spec, compare=compare)
        entries, returned = _with_full_precision(network, spec, entries, first), first.returned
        blocks = _blocks_of(network.module, entries, returned, first.opaque)
        if compare and can_be_compared(network):
            check(network, spec, lambda module: _blocks_of(module, entries, returned))
        elif any(tensor.is_meta for tensor in tensors_of(network)):
            _try(blocks, spec, "meta")
        elif compare:
            device = next(tensors_of(double)).device
            _try(_blocks_of(double.module, entries, returned), spec, device)
    except CannotRecord:
        raise
    except Exception as error:  # whatever it is, the module itself may well train
        raise CannotRecord(f"its blocks fail ({_words_of(error)})") from error
    return blocks


def _is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile or its ``compile`` was called for it, which copies may forget."""
    return module._compiled_call_impl is not None or "_orig_mod" in module._modules


def _recorded(
    network: Whole, spec: DatasetSpec, *, compare: bool
) -> tuple[list[Entry], Recording, Whole]:
    """Entries of all runs, the first run, and the copy that ran, on "meta" if that can run it."""
    try:
        with torch.no_grad():
            double = copy_without_data(network, "meta")
        return *_recorded_of(double, spec, compare=compare), double
    except _CannotRun:
        if any(tensor.is_meta for tensor in tensors_of(network)):
            raise
        double = copy_of(network)
        return *_recorded_of(double, spec, compare=compare), double


def _recorded_of(
    double: Whole, spec: DatasetSpec, *, compare: bool
) -> tuple[list[Entry], Recording]:
    """Merged entries, and the first run; what differs by more than a number is opaque."""
    opaque: dict[str, str] = {}
    for _ in range(_MOST_ROUNDS):
        try:
            runs = _Runs.of(double, spec, opaque)
            entries = runs.merged()
            if compare and any(recording.reads_sizes for recording in runs.recordings):
                _check_further(double, spec, runs)
            return entries, runs.first
        except _Differs as error:
            if not error.path:
                raise CannotRecord(f"it {error.why}") from None
            opaque |= dict.fromkeys(alike(double.module, error.path), f"{error.path} {error.why}")
        except _MoreOpaque as error:
            opaque = error.opaque
    raise CannotRecord("every recording differs from the one before")


_MOST_ROUNDS = 20


def _with_full_precision(
    network: Whole, spec: DatasetSpec, entries: list[Entry], first: Recording
) -> list[Entry]:
    """Entries that also tell what stays in float32 where a cell's precision turns autocast on.

    Some modules turn it off only where it is on, so no other run shows it. Where the module does
    something else in autocast, or cannot run so on a CPU, the entries are as they were.
    """
    if any(tensor.is_meta for tensor in tensors_of(network)):  # nobody trains it
        return entries
    computes = can_be_compared(network)
    fakes = nullcontext() if computes else FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with fakes, torch.autocast("cpu", dtype=torch.bfloat16):
            double = copy_of(network) if computes else copy_without_data(network)
            run = _run(double, spec, _SAMPLES[0], first.opaque, train=True)
    except Exception:  # whatever this CPU lacks
        return entries
    if run.opaque.keys() != first.opaque.keys() or _first_difference(first, run) is not None:
        return entries
    return [
        replace(entry, full_precision=entry.full_precision or other.full_precision)
        for entry, other in zip(entries, run.entries, strict=True)
    ]


def _check_further(double: Whole, spec: DatasetSpec, runs: _Runs) -> None:
    """Compare recordings of the sizes of batches that programs tell apart (``if len(x) == 32``).

    Who finds a difference leaves the network whole: ranks, which trust a comparison, would cut it
    otherwise.

    Raises:
        CannotRecord: for one of them it does something else.
    """
    if not any(tensor.is_meta for tensor in tensors_of(double)):
        return  # computing them would take long
    first, second, _, evaluated = runs.recordings
    few, more, _, in_evaluation = runs.samples
    for number in _FURTHER_SAMPLES:
        recording = _run(double, spec, number, first.opaque, train=True)
        same_layers = recording.opaque.keys() == first.opaque.keys()
        if not same_layers or _first_difference(first, recording) is not None:
            raise CannotRecord(f"it calls other functions for {number} samples than for {few}")
        try:
            _Runs(
                (few, more, number, in_evaluation), (first, second, recording, evaluated)
            ).merged()
        except _Differs as error:
            raise CannotRecord(f"{error.path or 'it'} {error.why}") from None


def _run(
    double: Whole, spec: DatasetSpec, samples: int, opaque: Mapping[str, str], *, train: bool
) -> Recording:
    double.train(train)
    device = next((tensor.device for tensor in tensors_of(double)), torch.device("cpu"))
    inputs = made_up_inputs(spec, samples, device)
    try:
        with seeded(0), torch.enable_grad():
            return record(double.module, inputs, double, opaque)
    except CannotRecord:
        raise
    except Exception as error:
        raise _CannotRun(f"its run cannot be recorded ({_words_of(error)})") from error


def _words_of(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _first_difference(recording: Recording, other: Recording) -> str | None:
    """The innermost module of the first entries that differ; None if all are of the same calls."""
    for mine, theirs in zip(recording.entries, other.entries, strict=False):
        if (mine.kind, str(mine.target), mine.path) != (
            theirs.kind,
            str(theirs.target),
            theirs.path,
        ):
            return max(mine.path, theirs.path, key=len)
    same = len(recording.entries) == len(other.entries) and recording.returned == other.returned
    return None if same else ""


def _many(double: Whole, spec: DatasetSpec) -> int:
    """A number of samples that few modules treat as they treat three; the same in all processes."""
    tensors = list(tensors_of(double))
    if any(tensor.is_meta for tensor in tensors):
        return _MANY_SAMPLES
    values = math.prod(spec.shape)
    weights = sum(tensor.numel() for tensor in tensors) * math.prod(spec.target_shape)
    bounds = (_MOST, _COMPUTED_VALUES // values, _COMPUTED_PRODUCTS // max(1, weights))
    return max(_LEAST, min(bounds))


class _Differs(Exception):  # noqa: N818 - what happened
    """Runs differ in what a module does, so that no recording stands for all; says what it does."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(why)
        self.path, self.why = path, why


class _MoreOpaque(Exception):  # noqa: N818 - what happened
    """A run has taken more modules as layers than those before it."""

    def __init__(self, opaque: Mapping[str, str]) -> None:
        super().__init__()
        self.opaque = dict(opaque)


@dataclass(frozen=True)
class _Runs:
    """Recordings of the same module, and the samples of each; the last ran in evaluation."""

    samples: tuple[int, ...]
    recordings: tuple[Recording, ...]

    @classmethod
    def of(cls, double: Whole, spec: DatasetSpec, opaque: Mapping[str, str]) -> _Runs:
        """Record a module for some numbers of samples.

        Raises:
            _Differs: for some number, or in evaluation, it calls other functions.
            _MoreOpaque: the runs have to begin again.
        """
        device = "meta" if any(tensor.is_meta for tensor in tensors_of(double)) else "cpu"
        few, more = _SAMPLES
        many, evaluated = _many(double, spec), _EVALUATED_SAMPLES[device]
        recordings: dict[int, Recording] = {}
        for number in (few, evaluated, more, many):  # evaluation differs more often than a number
            recording = _run(double, spec, number, opaque, train=number != evaluated)
            if recording.opaque.keys() != opaque.keys():
                raise _MoreOpaque(recording.opaque)
            recordings[number] = recording
            other = _first_difference(recordings[few], recording)
            if other is not None:
                mode = " in evaluation" if number == evaluated else ""
                raise _Differs(
                    other, f"calls other functions for {number} samples{mode} than for {few}"
                )
        samples = (few, more, many, evaluated)
        return cls(samples, tuple(recordings[number] for number in samples))

    @property
    def first(self) -> Recording:
        return self.recordings[0]

    def merged(self) -> list[Entry]:
        """Entries whose constants follow the samples and the mode.

        Raises:
            _Differs: a constant follows neither.
        """
        runs = [recording.entries for recording in self.recordings]
        return [self._merged(entries) for entries in zip(*runs, strict=True)]

    def _merged(self, entries: tuple[Entry, ...]) -> Entry:
        first = entries[0]
        every = [(each.arguments, dict(each.named)) for each in entries]
        try:
            arguments, named = tree_map(self._constant, *every)
            shape = self._shape([entry.shape for entry in entries[:-1]])
        except ValueError:
            raise _Differs(first.path, "has constants that differ from run to run") from None
        return replace(
            first,
            arguments=arguments,
            named=named,
            of_data=any(entry.of_data for entry in entries),
            shape=shape,
        )

    def _constant(self, *values: Any) -> Any:
        """What stands for a constant of all runs.

        Raises:
            ValueError: it follows neither samples nor mode.
        """
        *training, evaluation = values
        if all(type(value) is int for value in values):
            return self._number(values)
        if any(value != training[0] or type(value) is not type(training[0]) for value in training):
            raise ValueError
        same = type(evaluation) is type(training[0]) and evaluation == training[0]
        return training[0] if same else _Mode(training[0], evaluation)

    def _number(self, values: Sequence[int]) -> int | _Samples:
        few, more = values[:2]
        number = _Samples(more - few, few - _SAMPLES[0] * (more - few))
        if any(number.of(n) != value for n, value in zip(self.samples, values, strict=False)):
            raise ValueError
        return number if number.each else few

    def _shape(self, shapes: Sequence[tuple[int, ...] | None]) -> tuple[Any, ...] | None:
        known = [shape for shape in shapes if shape is not None]
        if not known:
            return None
        if len(known) < len(shapes):
            raise ValueError
        return tuple(self._number(sizes) for sizes in zip(*known, strict=True))


# Cuts --------------------------------------------------------------------------------------------


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
    return isinstance(first, _Samples) and first.each > 0


def _refs(entry: Entry) -> Iterator[int]:
    for leaf in tree_leaves((entry.arguments, dict(entry.named))):
        if isinstance(leaf, Ref):
            yield leaf.entry


def _blocks_of(
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
        if isinstance(value, _Samples):
            number = self._graph.call_function(operator.mul, (self._count(), value.each))
            return self._graph.call_function(operator.add, (number, value.more))
        if isinstance(value, _Mode):
            mode = self._graph.get_attr("training")
            return self._graph.call_function(_of_mode, (mode, value.training, value.evaluation))
        if isinstance(value, torch.device):
            return self._graph.call_function(getattr, (self._inputs, "device"))
        return value

    def _count(self) -> fx.Node:
        """The number of samples, from the first dimension of the block's input."""
        if self._samples is None:
            first = (self._entries[self._first].shape or (None,))[0]
            assert isinstance(first, _Samples)
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


# The trial ---------------------------------------------------------------------------------------


def _try(blocks: nn.Sequential, spec: DatasetSpec, device: torch.device | str) -> None:
    """Run blocks, whose code may call what there is not."""
    with seeded(1), torch.enable_grad():
        blocks(made_up_inputs(spec, _SAMPLES[0], device))
