"""Records one run of a module: its layers, the functions between them, and what depends on data.

::

    module            recording of a run of N samples                depends on the data
    x -> conv -> +    0 input
         |-> bn  -^   1 layer conv (0)                               yes
                      2 layer bn (1)                                 yes
                      3 function add (1, 2)                          yes
                      4 function arange (2 N)                        no: computed again, never sent

A layer is a module of ``torch.nn`` without children; its inner functions are not recorded. Python
itself runs as always, so keyword arguments, dictionaries and loops cost nothing. Whoever reads a
number of the data in Python (``if x.sum() > 0``) makes its module opaque: it becomes a layer, and
the recording begins again. So does whoever does what a list of functions cannot repeat: keep
something in Python from call to call (:mod:`ddlbench.networks.recorded_state`), draw numbers from
Python's or numpy's generator, hook gradients, compute activations again in the backward pass, or
have a ``train`` of its own. Of contexts those are noted in which no gradient passes
(``torch.no_grad``) and in which autocast is off.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves, tree_map

from ddlbench.common.quantities import few
from ddlbench.networks.inspection import has_hooks
from ddlbench.networks.recorded_state import generators_of_host, sets_modes, state_of

_READS = frozenset(
    {
        "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__", "__len__",
        "item", "tolist", "numpy", "__array__", "is_nonzero", "equal", "allclose", "__iter__",
    }
)  # fmt: skip
_SHAPES = frozenset({"size", "dim", "numel", "stride", "__len__", "element_size", "ndimension"})
_SIZES = frozenset({"size", "numel", "__len__"})
_TENSORS = frozenset({"__iter__", "__contains__"})  # reads that the device "meta" can do
_DRAWS = frozenset(
    {
        "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like",
        "bernoulli", "multinomial", "normal", "poisson", "binomial", "rrelu", "rrelu_",
        "dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
        "feature_dropout", "feature_alpha_dropout", "gumbel_softmax",
        "bernoulli_", "uniform_", "normal_", "random_", "exponential_", "log_normal_", "cauchy_",
        "geometric_",
    }
)  # fmt: skip
_HOOKS = frozenset(
    {"register_hook", "register_post_accumulate_grad_hook", "retain_grad", "backward"}
)
_GRAPH = vars(torch._C.TensorBase)["grad_fn"].__get__  # who reads it can hook it
_LITERALS = (
    bool, int, float, complex, str, type(None), type(...), slice, range, torch.Size, torch.dtype,
    torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


class CannotRecord(Exception):  # noqa: N818 - a state of a module
    """A run cannot be written down; the message is a clause."""


class _Blamed(Exception):  # noqa: N818 - who is to blame
    """A module reads its data, so that its inside cannot be recorded."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(why)
        self.path, self.why = path, why


@dataclass(frozen=True)
class Ref:
    """Stands for the value of an earlier entry, in arguments."""

    entry: int


@dataclass
class Entry:
    """One layer or function of a run.

    Args:
        kind: "input", "layer", "function", "attribute" (a parameter or buffer by its name),
            "part" (of what an entry returned: its place), or "after" (the first argument, after
            the second wrote into its memory).
        target: the layer's or attribute's name, the function (of an ``autograd.Function`` its
            class), or the place.
        arguments, named: with :class:`Ref` for values of earlier entries.
        path: of the module that called it.
        of_data: whether its value depends on the data, or on random numbers.
        writes: whether it changed one of its arguments.
        shape: of the tensor that it returned; None of anything else.
        stops_gradients: it ran without gradients, and would have had one.
        full_precision: it ran where the module turns autocast off.
    """

    kind: str
    target: Any
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""
    of_data: bool = False
    writes: bool = False
    shape: tuple[int, ...] | None = None
    stops_gradients: bool = False
    full_precision: bool = False


@dataclass
class Recording:
    """Everything that a run called, in order; the last entry is what it returned.

    ``reads_sizes``: Python was told the size of a tensor, so that it may decide by it.
    """

    entries: list[Entry]
    returned: int
    opaque: dict[str, str]
    reads_sizes: bool


def record(
    module: nn.Module, inputs: Tensor, call: Callable[[Tensor], Tensor], opaque: Mapping[str, str]
) -> Recording:
    """Record ``call(inputs)``, which runs the module and picks its tensor.

    ``opaque`` modules are taken as layers; it says why.

    Raises:
        CannotRecord: the module as a whole reads its data, or returns another tensor.
    """
    known = dict(opaque)
    while True:
        try:
            return _Recorder(module, known).run(inputs, call)
        except _Blamed as blamed:
            if not blamed.path or blamed.path in known:
                raise CannotRecord(blamed.why) from None
            known |= dict.fromkeys(alike(module, blamed.path), blamed.why)


def alike(module: nn.Module, path: str) -> list[str]:
    """A module's path, and those of all others of its class, which do the same."""
    kind = type(module.get_submodule(path))
    return [name for name, child in module.named_modules() if name and type(child) is kind]


class _Recorder(TorchFunctionMode):
    """Sees every function of torch, and every call of a module, of one run."""

    def __init__(self, module: nn.Module, opaque: Mapping[str, str]) -> None:
        super().__init__()
        self._module, self._opaque = module, dict(opaque)
        self._with_modes = {child for child in module.modules() if sets_modes(child)}
        self._paths = {id(child): name for name, child in module.named_modules()}
        self._named = {
            id(tensor): name
            for group in (module.named_parameters(), module.named_buffers())
            for name, tensor in group
        }
        self.entries: list[Entry] = []
        self._of: dict[int, int] = {}  # entry of each tensor, by its identity
        self._alive: dict[int, Tensor] = {}  # so that no identity is used twice
        self._written: dict[int, int] = {}  # the last entry that wrote into a tensor's memory
        self._stack: list[str] = []
        self._within_layer = 0
        self._autocasts: list[bool] = []  # whether each context that the module entered is on
        self._kernels = _kernels()
        self._reads_sizes = False
        self._generators: tuple[object, ...] = ()  # of the host, when a layer last used them

    def run(self, inputs: Tensor, call: Callable[[Tensor], Tensor]) -> Recording:
        if _has_any_global_hook():
            raise CannotRecord("hooks are set for all modules")
        self._note(inputs, Entry("input", "inputs", of_data=True))
        self._generators = generators_of_host()
        before = self._states()
        trained = [weight.requires_grad for weight in self._module.parameters()]
        with (
            self._calls_seen(),
            self._autocasts_seen(),
            self._hooks_of_memory_seen(),
            self._autograd_functions_seen(),
            self,
        ):
            returned = call(inputs)
        if trained != [weight.requires_grad for weight in self._module.parameters()]:
            raise CannotRecord("its forward pass says which weights are trained")
        self._check_kept(before)
        if not isinstance(returned, Tensor) or id(returned) not in self._of:
            raise CannotRecord("what it returns does not come from its layers")
        return Recording(self.entries, self._of[id(returned)], self._opaque, self._reads_sizes)

    def _states(self) -> dict[str, dict[str, Any]]:
        """States of all modules whose inside may be recorded."""
        return {
            name: state_of(child)
            for name, child in self._module.named_modules()
            if not _is_layer(child)
        }

    def _check_kept(self, before: Mapping[str, dict[str, Any]]) -> None:
        """Check that whatever keeps something, or sets modes, is a layer or within one.

        Those that are not called may be used all the same (``self.part.forward(x)``).

        Raises:
            CannotRecord: no block would have it.
        """
        layers = {entry.target for entry in self.entries if entry.kind == "layer"}
        now = self._states()
        for name, child in self._module.named_modules():
            parts = name.split(".")
            owners = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
            if layers & owners:
                continue
            if child in self._with_modes:
                raise CannotRecord(f"{name or 'it'} has a train() or eval() of its own")
            if name in now and now[name] != before.get(name):
                kept = _kept(before.get(name, {}), now[name])
                raise CannotRecord(f"{name or 'it'} {kept}")

    # Modules -------------------------------------------------------------------------------------

    def _calls_seen(self) -> AbstractContextManager[object]:
        original = nn.Module.__call__

        def called(module: nn.Module, *arguments: Any, **named: Any) -> Any:
            path = self._paths.get(id(module))
            if path is None or self._within_layer:
                return original(module, *arguments, **named)
            if path and (path in self._opaque or _is_layer(module)):
                return self._layer(path, original, module, arguments, named)
            if why := self._what_blocks_lose(module):
                raise _Blamed(path, f"{path or 'it'} {why}")
            before = state_of(module)
            self._blame_draws()
            self._stack.append(path)
            try:
                returned = original(module, *arguments, **named)
                self._blame_draws()
            finally:
                self._stack.pop()
            after = state_of(module)
            if after != before:
                raise _Blamed(path, f"{path or 'it'} {_kept(before, after)}")
            return returned

        return patch.object(nn.Module, "__call__", called)

    def _what_blocks_lose(self, module: nn.Module) -> str:
        """What a module does beside its forward pass, as a verb; empty if blocks lose nothing."""
        if has_hooks(module):
            return "has hooks"
        return "has a train() or eval() of its own" if module in self._with_modes else ""

    def _blame_draws(self) -> None:
        """Blame the module that runs if Python's or numpy's generator has moved."""
        if generators_of_host() != self._generators:
            raise self._blamed("draws random numbers in Python")

    def _blamed(self, why: str) -> _Blamed:
        where = self._stack[-1] if self._stack else ""
        return _Blamed(where, f"{where or 'it'} {why}")

    def _hooks_of_memory_seen(self) -> AbstractContextManager[object]:
        """Blame whoever has activations kept in another way (checkpoints, memory of the host)."""
        enter = torch.autograd.graph.saved_tensors_hooks.__enter__

        def entered(context: torch.autograd.graph.saved_tensors_hooks) -> None:
            if not self._within_layer:
                raise self._blamed("keeps or recomputes activations in a way of its own")
            enter(context)

        return patch.object(torch.autograd.graph.saved_tensors_hooks, "__enter__", entered)

    def _autocasts_seen(self) -> AbstractContextManager[object]:
        enter, leave = torch.autocast.__enter__, torch.autocast.__exit__

        def entered(context: torch.autocast) -> Any:
            self._autocasts.append(context._enabled)
            return enter(context)

        def left(context: torch.autocast, *error: Any) -> Any:
            self._autocasts.pop()
            return leave(context, *error)

        return patch.multiple(torch.autocast, __enter__=entered, __exit__=left)

    def _autograd_functions_seen(self) -> AbstractContextManager[object]:
        """Record a function that has a backward pass of its own as one, not what is within it."""
        original = torch.autograd.Function.__dict__["apply"]

        def applied(kind: type[torch.autograd.Function], *arguments: Any, **named: Any) -> Any:
            if self._within_layer:
                return original.__func__(kind, *arguments, **named)
            entry = self._entry("function", kind, arguments, named)
            self._note_contexts(entry, _tensors_in(arguments, named))
            self._within_layer += 1
            try:
                returned = original.__func__(kind, *arguments, **named)
            finally:
                self._within_layer -= 1
            self._note_returned(returned, entry)
            return returned

        return patch.object(torch.autograd.Function, "apply", classmethod(applied))

    def _layer(
        self,
        path: str,
        call: Callable[..., Any],
        module: nn.Module,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        self._blame_draws()
        if module.training != self._module.training and not self._with_modes & {*module.modules()}:
            raise self._blamed("changes between training and evaluation in its forward pass")
        entry = self._entry("layer", path, arguments, named)
        entry.of_data = True  # its dropout or statistics may be
        self._note_contexts(entry, [*module.parameters(), *_tensors_in(arguments, named)])
        self._within_layer += 1
        try:
            returned = call(module, *arguments, **named)
        finally:
            self._within_layer -= 1
        self._generators = generators_of_host()  # a layer of a block draws as it does here
        self._note_returned(returned, entry)
        return returned

    # Functions -----------------------------------------------------------------------------------

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if self._within_layer:
            return func(*args, **named)
        name = _name_of(func)
        if name in _HOOKS or func == _GRAPH:
            raise self._blamed("hooks or computes gradients in its forward pass")
        tensors = _tensors_in(args, named)
        if name in _READS and name not in _SHAPES and any(map(self._is_data, tensors)):
            raise self._blamed(f"reads a value of its data (Tensor.{name})")
        if name in _READS - _SHAPES - _TENSORS and any(tensor.is_meta for tensor in tensors):
            args, named = tree_map(self._number_on_cpu, (args, dict(named)))
            return func(*args, **named)
        versions = [tensor._version for tensor in tensors]
        returned = func(*args, **named)
        made = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, Tensor)]
        writes = any(t._version != v for t, v in zip(tensors, versions, strict=True))
        if not made and not writes:
            self._reads_sizes |= name in _SIZES or isinstance(returned, torch.Size)
            return returned  # a shape, a type, a device
        entry = self._entry("function", func, args, named)
        entry.writes = writes
        self._note_contexts(entry, tensors)
        entry.of_data = entry.of_data or name in _DRAWS
        self._note_returned(returned, entry)
        if writes:
            for tensor, version in zip(tensors, versions, strict=True):
                if tensor._version != version:
                    self._changed(tensor, returned)
        return returned

    def _note_contexts(self, entry: Entry, read: Iterable[Tensor]) -> None:
        """Note in which contexts an entry runs, as far as they change what it does.

        Raises:
            _Blamed: the module turns autocast on, which a cell does by its precision, or chooses
                other kernels.
        """
        if _kernels() != self._kernels:
            raise self._blamed("chooses kernels of torch in its forward pass")
        if any(self._autocasts[-1:]):
            raise self._blamed("turns autocast on")
        entry.full_precision = bool(self._autocasts)
        entry.stops_gradients = not torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in read
        )

    def _number_on_cpu(self, value: Any) -> Any:
        """A value of no data, computed again on the CPU, as "meta" has no numbers to read."""
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, Tensor):
            value = Ref(self._number_of(value))
        if not isinstance(value, Ref):
            return value
        entry = self.entries[value.entry]
        args, named = tree_map(self._number_on_cpu, (entry.arguments, dict(entry.named)))
        if entry.kind == "part":
            return reduce(operator.getitem, entry.target, args[0])
        if entry.kind != "function" or entry.writes:
            raise RuntimeError("a number of a tensor is read that the device meta does not know")
        with torch.device("cpu"):
            return entry.target(*args, **named)

    def _is_data(self, tensor: Tensor) -> bool:
        numbers = (known.get(id(tensor)) for known in (self._of, self._written))
        return any(number is not None and self.entries[number].of_data for number in numbers)

    def _changed(self, tensor: Tensor, returned: Any) -> None:
        """From now on a tensor that was written, and its views, are what the last entry made."""
        written, memory = len(self.entries) - 1, tensor.untyped_storage()._cdata
        for number, other in self._alive.items():
            if other.untyped_storage()._cdata != memory:
                continue
            if number in self._named:
                raise _Blamed(
                    self._stack[-1] if self._stack else "",
                    f"{self._named[number]} is changed by the forward pass",
                )
            if other is not returned:
                self._written[number] = written

    # Entries -------------------------------------------------------------------------------------

    def _entry(
        self, kind: str, target: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]
    ) -> Entry:
        """An entry whose tensors are replaced by references to the entries that made them."""
        of_data = False

        def reference(value: Any) -> Any:
            nonlocal of_data
            if isinstance(value, np.generic):
                return value.item()
            if not isinstance(value, Tensor):
                if not isinstance(value, _LITERALS):
                    kind = type(value).__name__
                    raise self._blamed(f"gives a {kind} to a layer or function")
                return value
            number = self._number_of(value)
            of_data |= self.entries[number].of_data
            return Ref(number)

        refs = tree_map(reference, (arguments, dict(named)))
        path = self._stack[-1] if self._stack else ""
        return Entry(kind, target, tuple(refs[0]), refs[1], path, of_data)

    def _number_of(self, tensor: Tensor) -> int:
        if id(tensor) not in self._of:
            name = self._named.get(id(tensor))
            if name is None:
                raise self._blamed("uses a tensor that no function of torch made")
            self._note(tensor, Entry("attribute", name))
        written = self._written.pop(id(tensor), None)
        if written is not None:
            refs = (Ref(self._of[id(tensor)]), Ref(written))
            of_data = any(self.entries[ref.entry].of_data for ref in refs)
            self._note(tensor, Entry("after", (), refs, of_data=of_data))
        return self._of[id(tensor)]

    def _note(self, tensor: Tensor, entry: Entry) -> None:
        entry.shape = _shape_of(tensor)
        self.entries.append(entry)
        self._of[id(tensor)] = len(self.entries) - 1
        self._alive[id(tensor)] = tensor

    def _note_returned(self, returned: Any, entry: Entry) -> None:
        """An entry, and one for each tensor of a tuple, list or dictionary that it returned."""
        self.entries.append(entry)
        whole = len(self.entries) - 1
        if isinstance(returned, Tensor):
            entry.shape = _shape_of(returned)
            self._of[id(returned)] = whole
            self._alive[id(returned)] = returned
            return
        for place, tensor in _parts(returned):
            part = Entry("part", place, (Ref(whole),), path=entry.path, of_data=entry.of_data)
            self._note(tensor, part)


def _parts(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Tensors within tuples, lists and dictionaries, and the keys that lead to each."""
    if isinstance(value, Tensor):
        yield place, value
    elif isinstance(value, tuple | list):
        for number, item in enumerate(value):
            yield from _parts(item, (*place, number))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _parts(item, (*place, key))


def _kept(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What a module does whose state a call changed, as a verb, with its attributes."""
    names = [name for name in after if name not in before or before[name] != after[name]]
    changed = few(f"self.{name}" if name.isidentifier() else name for name in names)
    return f"keeps something from call to call ({changed})"


def _tensors_in(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> list[Tensor]:
    return [leaf for leaf in tree_leaves((arguments, dict(named))) if isinstance(leaf, Tensor)]


def _is_layer(module: nn.Module) -> bool:
    """A module of torch without children, or one whose inside is a kernel (attention, LSTM)."""
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return True
    of_torch = type(module).__module__.startswith("torch.nn.modules.")
    return of_torch and not any(True for _ in module.children())


def _shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Read by the recorder, and so not recorded as if the module had read it."""
    with torch._C.DisableTorchFunction():
        return tuple(tensor.shape)


def _kernels() -> tuple[bool, ...]:
    """Torch's settings that contexts change (``sdpa_kernel``, ``cudnn.flags``)."""
    attention = torch.backends.cuda
    return (
        attention.flash_sdp_enabled(),
        attention.mem_efficient_sdp_enabled(),
        attention.math_sdp_enabled(),
        attention.cudnn_sdp_enabled(),
        torch._C._get_cudnn_enabled(),
        torch._C._get_cudnn_benchmark(),
        torch.are_deterministic_algorithms_enabled(),
    )


def _name_of(func: Any) -> str:
    """The name of a function of torch; a property's reader is called ``__get__``."""
    name = getattr(func, "__name__", "") or ""
    return name or (resolve_name(func) or "").rpartition(".")[2]
