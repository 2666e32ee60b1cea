"""What a module keeps in Python between calls, which blocks of a recording would not.

::

    vars(module)          self.n, self.state["n"], self.rng, self.last = y
    its class             Counter.calls
    names of forward      a global list, or a variable of the function that made the class

A copy of it before a call is compared with one after. Containers and plain objects are looked into,
as far as some depth; a tensor counts as another if it was written. Its own children, weights and
generators of torch are not looked for here: whoever records sees their calls.
"""

from __future__ import annotations

import inspect
import io
import itertools
import logging
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

_DEPTH = 4  # self.tracker.history["loss"][0]
_MOST_ITEMS = 1000  # of a container; of a longer one only the ends
_COMPARED_BYTES = 2**20  # bytes of an array; of a larger one only the shape
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_CODE = (type, BuiltinFunctionType, ModuleType, property)
# What a message is written with changes by itself, and no output by it.
_LOGS = (logging.Logger, logging.LoggerAdapter, logging.Handler, io.IOBase)
_MOST_VALUES = 20_000  # of a module; of containers beyond only the length


def state_of(module: nn.Module) -> dict[str, Any]:
    """All that a call of the module itself may change, to be compared."""
    values = {**vars(module), **dict(_of_class(type(module))), **dict(_of_forward(module))}
    left = _Left()
    return {name: _state(value, _DEPTH, left) for name, value in values.items()}


@dataclass
class _Left:
    """How many more values are looked at."""

    values: int = _MOST_VALUES


def sets_modes(module: nn.Module) -> bool:
    """Whether a module's ``train`` or ``eval`` does something else than that of ``nn.Module``.

    Both are called, and end in the mode of before: give a copy.
    """
    kind = type(module)
    if {"train", "eval"} & vars(module).keys():
        return True
    if kind.train is nn.Module.train and kind.eval is nn.Module.eval:
        return False
    if module not in _SETS_MODES:  # a module is recorded many times
        before = module.training
        try:
            sets = _sets_mode(module, not before) | _sets_mode(module, before)
        except Exception:  # whatever it wants, blocks would not give it
            sets = True
        _SETS_MODES[module] = sets
    return _SETS_MODES[module]


_SETS_MODES: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def _sets_mode(module: nn.Module, mode: bool) -> bool:
    nn.Module.train(module, mode)
    expected = _modes_of(module)
    module.train(mode)
    differs = _modes_of(module) != expected
    if not mode:
        module.eval()
        differs |= _modes_of(module) != expected
    return differs


def _modes_of(module: nn.Module) -> list[Any]:
    """What methods that set modes may change, to be compared."""
    trained = [weight.requires_grad for weight in module.parameters()]
    return [trained, *(_state(vars(part), _DEPTH, _Left()) for part in module.modules())]


def generators_of_host() -> tuple[object, ...]:
    """States of Python's and numpy's generators, to be compared."""
    kind, keys, place, *_ = np.random.get_state()
    return random.getstate(), kind, np.asarray(keys).tobytes(), place


def generator_states() -> tuple[object, ...]:
    """States of Python's, numpy's and torch's generators on the CPU, to be compared."""
    return torch.get_rng_state().numpy().tobytes(), *generators_of_host()


def _of_class(kind: type) -> Iterator[tuple[str, Any]]:
    for owner in kind.__mro__:
        if owner.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        for name, value in vars(owner).items():
            if not name.startswith("__"):
                yield f"{owner.__qualname__}.{name}", value


def _of_forward(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Values of the global and enclosing names that a module's forward uses."""
    function = inspect.unwrap(getattr(module.forward, "__func__", module.forward))
    if not isinstance(function, FunctionType):
        return
    if (function.__module__ or "").partition(".")[0] == "torch":
        return
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f"global {name}", function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            yield f"outer {name}", cell.cell_contents


def _state(value: Any, depth: int, left: _Left) -> Any:
    """Something that equals the state of the same value later only if nothing changed."""
    left.values -= 1
    plain = _plain(value)
    if plain is not None:
        return plain
    if isinstance(value, Iterator):
        return _place_of(value)
    if not depth or left.values <= 0:
        return id(value), len(value) if isinstance(value, Sized) else 0
    if isinstance(value, FunctionType | MethodType):
        kept = [_state(item, depth - 1, left) for item in _kept_by(value)]
        return id(getattr(value, "__func__", value)), kept
    return type(value).__qualname__, _contents(value, depth - 1, left)


def _place_of(values: Iterator[Any]) -> Any:
    """Where an iterator is; of most nobody can tell without taking a value: never the same."""
    if isinstance(values, itertools.count):
        return repr(values)
    if isinstance(values, GeneratorType):  # a decorator made by contextlib never begins its own
        state = inspect.getgeneratorstate(values)
        if state in (inspect.GEN_CREATED, inspect.GEN_CLOSED):
            return id(values), state
    return object()


def _plain(value: Any) -> tuple[Any] | None:
    """What a value is that holds no others; None of one that does."""
    if isinstance(value, _SCALARS):
        return (value,)
    if isinstance(value, Tensor):
        return ((id(value), value._version),)
    if isinstance(value, (nn.Module, *_CODE, *_LOGS)):
        return (id(value),)
    generator = _generator(value)
    return None if generator is None else (generator,)


def _kept_by(function: FunctionType | MethodType) -> list[Any]:
    """The object of a method, and what a function keeps from where it was made."""
    if isinstance(function, MethodType):
        return [function.__self__]
    kept = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # an empty cell
            kept.append(cell.cell_contents)
    return kept


def _generator(value: Any) -> Any:
    """The state of what draws random numbers; None of anything else."""
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.RandomState):
        return str(value.get_state(legacy=False))
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    return None


def _contents(value: Any, depth: int, left: _Left) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.shape, value.tobytes() if value.nbytes < _COMPARED_BYTES else ()
    if isinstance(value, Mapping):
        items = _ends(list(value.items()))
        return len(value), [
            (_state(key, depth, left), _state(item, depth, left)) for key, item in items
        ]
    if isinstance(value, list | tuple | deque):
        return len(value), [_state(item, depth, left) for item in _ends(list(value))]
    if isinstance(value, set | frozenset):
        return len(value), hash(frozenset(value))
    slots = [name for kind in type(value).__mro__ for name in _slots_of(kind)]
    attributes = {name: getattr(value, name, None) for name in slots}
    attributes |= getattr(value, "__dict__", {})
    return {name: _state(attribute, depth, left) for name, attribute in attributes.items()}


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if not name.startswith("__"))


def _ends(items: list[Any]) -> list[Any]:
    half = _MOST_ITEMS // 2
    return items if len(items) <= _MOST_ITEMS else [*items[:half], *items[-half:]]
