"""A rank's part in checkpoints: it writes its file, waits for the others, and resumes from it.

::

    rank 0   ... step 20 | write | wait for all | manifest, delete older sets | step 21 ...
    rank 1   ... step 20 | write ------ wait -------------------------------- | step 21 ...

No rank continues before the set is complete. So a later kill loses at most the steps since then.

A rank's file holds everything that the next step depends on: weights, buffers and the optimizer's
state (``checkpoint_state`` of the executor), random generators, and the number of steps done, which
is the position in the data. It also holds the measurements so far, to which a later run adds.

It is a safetensors file, which holds only numbers and text, and never pickle::

    {"module": {"0.weight": tensor}, "lr": 0.1}
         |
    header   {"map": [["module", {"map": [["0.weight", {"tensor": "/module/0.weight"}]]}],
                      ["lr", 0.1]]}
    data     /module/0.weight

The structure around the tensors is JSON in the file's header. Reading parses and copies, but
executes nothing. Numbers keep every bit, keys of a mapping their type (int or str), and tuples stay
tuples.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ddlbench.common.document import whole_file
from ddlbench.experiment.status import Status
from ddlbench.runtime.checkpoint.store import (
    Order,
    ProgressJournal,
    complete,
    journal_file,
    prune,
    rank_file,
    read_set,
    set_folder,
)
from ddlbench.runtime.loop import Extent, Measurement
from ddlbench.runtime.meters import Usage
from ddlbench.runtime.rank_report import CheckpointCost, Score, classify
from ddlbench.runtime.watchdog import Reporter
from ddlbench.strategies.executor import Executor, RunRecord, Unsupported

_HEADER = "state"


class RefusedCheckpoint(RuntimeError):  # noqa: N818 - what happened to it
    """A set that looked complete does not fit this cell, which then trains from the start."""


class Checkpointer:
    """Writes and reads one rank's checkpoints.

    Attributes:
        steps: measured steps that were done when this run began.
        when_saved: called with the measured steps that the newest set holds.
    """

    def __init__(
        self,
        order: Order,
        rank: int,
        world_size: int,
        store: torch.distributed.Store | None,
        devices: Sequence[torch.device],
    ) -> None:
        self.when_saved: Callable[[int], None] = lambda _steps: None
        self._order, self._rank, self._world_size = order, rank, world_size
        self._store, self._devices = store, devices
        self._folder = Path(order.folder)
        self._save_s: list[float] = []
        self._bytes = 0
        self._restore_s = self._rehearsal_s = self._last_save_s = 0.0
        self._before: Path | None = None
        self.steps = 0
        if order.resume is not None:
            in_set = self._folder / order.resume
            last = read_set(in_set)
            if last is None:
                raise RefusedCheckpoint(f"{in_set} is no complete checkpoint any more")
            self.steps, self._last_save_s = last.steps, last.save_s
            self._before = rank_file(in_set, rank)

    @property
    def resumes(self) -> bool:
        return self._before is not None

    def fixed(self) -> dict[str, Any]:
        """Details that the earlier run fixed when it started; empty for the first run.

        Raises:
            RefusedCheckpoint: its file cannot be read.
        """
        return dict(self._read("details")) if self.resumes else {}

    def restore(self, executor: Executor, rehearse: Callable[[], object]) -> Measurement:
        """Bring the executor to the set's last step; returns the measurements until then.

        Args:
            executor: prepared.
            rehearse: trains some steps to warm up; the checkpoint then overwrites their effect.

        Raises:
            RefusedCheckpoint: the file does not fit the network or the optimizer.
        """
        began = time.perf_counter()
        rehearse()
        rehearsed = time.perf_counter()
        state = self._read()
        try:
            executor.load_checkpoint_state(state["executor"])
            so_far = _measurement(state["so_far"])
            self._save_s = [*state["save_s"], self._last_save_s]
            set_random_state(state["random"], self._devices)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            if classify(error)[0] == Status.OUT_OF_MEMORY:
                raise
            text = " ".join(str(error).split())[:200]
            raise RefusedCheckpoint(f"{self._before} does not fit this cell: {text}") from error
        if so_far.steps != self.steps:
            raise RefusedCheckpoint(f"{self._before} is of another step than its manifest says")
        self._bytes = self._before.stat().st_size if self._before is not None else 0
        self._rehearsal_s = rehearsed - began
        self._restore_s = time.perf_counter() - rehearsed
        return so_far

    def save(self, executor: Executor, so_far: Measurement) -> None:
        """Write this rank's file and wait until the set of all ranks is complete.

        Raises:
            Unsupported: the executor's state cannot be written without pickle.
        """
        began = time.perf_counter()
        in_set = set_folder(self._folder, so_far.steps, self._order.run)
        state = {
            "executor": executor.checkpoint_state(),
            "random": random_state(self._devices),
            "so_far": _packed(so_far),
            "save_s": self._save_s,
            "details": executor.details(),
        }
        try:
            self._bytes = write_state(rank_file(in_set, self._rank), state)
        except TypeError as error:
            raise Unsupported(
                f"no checkpoint can be written: {error}", code="no_checkpoint"
            ) from error
        self._complete_set(in_set, so_far.steps, began)
        self._save_s.append(time.perf_counter() - began)
        self.when_saved(so_far.steps)

    def follow(self, reporter: Reporter, extent: Extent) -> None:
        """Have rank 0 keep a progress journal from the first measured step on."""
        reporter.phase_done(self.steps)
        journal = ProgressJournal(journal_file(self._folder), self.steps)
        reporter.on_step = lambda step: journal.reach(step - extent.warmup_steps)
        self.when_saved = journal.kept

    def report(self) -> CheckpointCost:
        return CheckpointCost(tuple(self._save_s), self._bytes, self._restore_s, self._rehearsal_s)

    def _read(self, only: str | None = None) -> Any:
        assert self._before is not None
        try:
            return read_state(self._before, only)
        except ValueError as error:
            raise RefusedCheckpoint(str(error)) from error

    def _complete_set(self, in_set: Path, steps: int, began: float) -> None:
        """Wait for the files of all ranks, then for rank 0's manifest."""
        key, store = f"checkpoint/{steps}", self._store
        if store is None or self._world_size == 1:
            self._write_manifest(in_set, steps, [self._bytes], began)
            return
        store.set(f"{key}/{self._rank}", str(self._bytes))
        if self._rank == 0:
            sizes = [int(store.get(f"{key}/{rank}")) for rank in range(self._world_size)]
            self._write_manifest(in_set, steps, sizes, began)
            store.set(f"{key}/complete", "1")
        store.wait([f"{key}/complete"])

    def _write_manifest(self, in_set: Path, steps: int, sizes: list[int], began: float) -> None:
        save_s = time.perf_counter() - began
        complete(in_set, steps, self._order, sizes=sizes, save_s=save_s)
        prune(self._folder)  # now, as no rank writes


def open_checkpoints(
    order: Order | None,
    executor: Executor,
    rank: int,
    world_size: int,
    *,
    store: torch.distributed.Store | None,
    devices: Sequence[torch.device],
) -> Checkpointer | None:
    """The checkpoints of a rank; None if the supervisor orders none.

    Raises:
        Unsupported: the executor does not give its state.
        RefusedCheckpoint: the set to resume from is gone.
    """
    if order is None:
        return None
    for name in ("checkpoint_state", "load_checkpoint_state"):
        if not hasattr(executor, name):
            raise Unsupported(
                f"{type(executor).__name__} has no {name}, so it cannot be checkpointed; "
                "set checkpoint_every_steps to 0",
                code="no_checkpoint",
            )
    return Checkpointer(order, rank, world_size, store, devices)


class DamagedState(ValueError):  # noqa: N818 - what a file is
    """The file was not written by :func:`write_state`, or is damaged."""


def write_state(path: Path, state: Mapping[str, Any]) -> int:
    """Write ``state`` atomically; returns the file's size in bytes.

    Args:
        path: of the file; its folder is made.
        state: mappings (with keys of int or str), lists and tuples of tensors on any device,
            numbers, text, bool and None.

    Raises:
        TypeError: the state holds something else; the message says what, and where.
    """
    packer = _Packer()
    tree = packer.pack(state, "")
    header = {_HEADER: json.dumps(tree, separators=(",", ":"))}
    with whole_file(path) as beside:
        save_file(packer.tensors, str(beside), metadata=header)
        size = beside.stat().st_size
    return size


def read_state(path: Path, only: str | None = None) -> Any:
    """The state that was written, with tensors on the CPU; or only its entry ``only``.

    Raises:
        DamagedState: the file has another format, or its header and its tensors disagree.
        OSError: the file cannot be read.
    """
    path.stat()  # raises FileNotFoundError, whatever the library would raise
    try:
        with safe_open(str(path), framework="pt") as file:
            tree = json.loads((file.metadata() or {})[_HEADER])
            if only is not None:
                tree = next(part for key, part in tree["map"] if key == only)
            # The library's tensors are views of the file, which will be deleted.
            return _unpack(tree, lambda name: file.get_tensor(name).clone())
    except (SafetensorError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise DamagedState(f"{path} is no checkpoint that can be read: {error}") from error


class _Packer:
    """Splits a state into its structure and its tensors."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._storages: set[int] = set()

    def pack(self, value: Any, place: str) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor):
            while place in self.tensors:  # keys with a slash can give two tensors the same place
                place += "~"
            self.tensors[place] = self._unshared(value)
            return {"tensor": place}
        if isinstance(value, Mapping):
            for key in value:
                if isinstance(key, bool) or not isinstance(key, int | str):
                    raise TypeError(f"the state has a key {key!r} in {place or 'its top'}")
            return {"map": [[key, self.pack(v, f"{place}/{key}")] for key, v in value.items()]}
        if isinstance(value, list | tuple):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [self.pack(v, f"{place}/{i}") for i, v in enumerate(value)]}
        raise TypeError(
            f"the state holds a {type(value).__name__} in {place or 'its top'}, which cannot be "
            "written without pickle; make it of tensors, numbers and texts"
        )

    def _unshared(self, tensor: Tensor) -> Tensor:
        """The tensor on the CPU, contiguous, in memory that it shares with no other tensor."""
        kept = tensor.detach().to("cpu").contiguous()
        address = kept.untyped_storage().data_ptr()
        if address in self._storages:
            kept = kept.clone()
        self._storages.add(address)
        return kept


def _unpack(tree: Any, tensor: Callable[[str], Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return tensor(value)
    if kind == "map":
        return {key: _unpack(part, tensor) for key, part in value}
    if kind not in ("list", "tuple"):
        raise KeyError(kind)
    parts = [_unpack(part, tensor) for part in value]
    return tuple(parts) if kind == "tuple" else parts


def _packed(so_far: Measurement) -> dict[str, Any]:
    """A record as numbers and texts, without spans, whose clock ends with this process."""
    warmup, measured = (replace(r, spans=[]) for r in (so_far.warmup, so_far.measured))
    return asdict(replace(so_far, warmup=warmup, measured=measured))


def _measurement(state: dict[str, Any]) -> Measurement:
    return Measurement(
        warmup=RunRecord(**state["warmup"]),
        measured=RunRecord(**state["measured"]),
        utilisation=Usage(**state["utilisation"]),
        steps=int(state["steps"]),
        scores=tuple(Score(**score) for score in state["scores"]),
    )


def random_state(devices: Sequence[torch.device]) -> dict[str, Any]:
    """State of the random generators of Python, torch and the GPUs, as tensors and numbers."""
    # Nothing uses NumPy's global generator: data has its own generators, keyed by seed and epoch.
    version, words, gauss_next = random.getstate()
    return {
        "python": {
            "version": version,
            "words": torch.tensor(words, dtype=torch.int64),
            "gauss_next": gauss_next,
        },
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(device) for device in _gpus(devices)],
    }


def set_random_state(state: dict[str, Any], devices: Sequence[torch.device]) -> None:
    """Restore the random generators; ``devices`` are the same, in the same order."""
    python = state["python"]
    words = tuple(python["words"].tolist())
    random.setstate((python["version"], words, python["gauss_next"]))
    torch.set_rng_state(state["torch"])
    for device, state_of_gpu in zip(_gpus(devices), state["cuda"], strict=True):
        torch.cuda.set_rng_state(state_of_gpu, device)


def _gpus(devices: Sequence[torch.device]) -> list[torch.device]:
    return list(dict.fromkeys(device for device in devices if device.type == "cuda"))
