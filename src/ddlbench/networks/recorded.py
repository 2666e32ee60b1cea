"""Cuts any module into blocks, by recordings of what it runs.

The run is recorded four times (:mod:`ddlbench.networks.recording`): with two samples, with three,
with a thousand, and in evaluation mode; once more in autocast, for what stays in float32 there. A
whole number that grows with the samples is computed from a block's own input, a constant that
differs in evaluation follows the block's mode. A module whose constants or functions follow the
samples in another way (``chunk(ceil(N / 8))``) is a layer.

The blocks (:mod:`ddlbench.networks.recorded_blocks`) are then compared with the module on other
numbers, another batch size, and two calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from ddlbench.common.errors import first_line
from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.foreign import Whole, seeded
from ddlbench.networks.inputs import made_up_inputs
from ddlbench.networks.inspection import copy_of, copy_without_data, tensors_of
from ddlbench.networks.recorded_blocks import Mode, Samples, blocks_of
from ddlbench.networks.recorded_comparison import can_be_compared, check
from ddlbench.networks.recording import CannotRecord, Entry, Recording, alike, record

_SAMPLES = (2, 3)
_MANY_SAMPLES = 1031  # where that costs neither time nor memory
_EVALUATED_SAMPLES = {"meta": 64, "cpu": 8}
_FURTHER_SAMPLES = (4, 8, 16, 32, 128, 256)  # where Python is told sizes, and nobody waits
_LEAST, _MOST = 11, 257  # many samples where numbers are computed
_COMPUTED_VALUES, _COMPUTED_PRODUCTS = 2**18, 2**28  # of the inputs, and of weights with samples


class _CannotRun(CannotRecord):
    """The device cannot run the module."""


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
        blocks = blocks_of(network.module, entries, returned, first.opaque)
        if compare and can_be_compared(network):
            check(network, spec, lambda module: blocks_of(module, entries, returned))
        elif any(tensor.is_meta for tensor in tensors_of(network)):
            _try(blocks, spec, "meta")
        elif compare:
            device = next(tensors_of(double)).device
            _try(blocks_of(double.module, entries, returned), spec, device)
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
        return training[0] if same else Mode(training[0], evaluation)

    def _number(self, values: Sequence[int]) -> int | Samples:
        few, more = values[:2]
        number = Samples(more - few, few - _SAMPLES[0] * (more - few))
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


def _try(blocks: nn.Sequential, spec: DatasetSpec, device: torch.device | str) -> None:
    """Run blocks, whose code may call what there is not."""
    with seeded(1), torch.enable_grad():
        blocks(made_up_inputs(spec, _SAMPLES[0], device))
