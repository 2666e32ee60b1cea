"""Meters beside the clock: utilisation, memory of each device, a probe of the speed."""

from __future__ import annotations

import contextlib
import resource
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from inspect import unwrap
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddlbench.runtime.energy import EnergyMeter, Joules, added, products_s, taken
from ddlbench.runtime.gpus import Gpu, gpus_of
from ddlbench.strategies.executor import Executor

_SAMPLE_S = 0.2
_PROBE_SIDE = {"cpu": 384, "cuda": 2048}
_PROBE_PRODUCTS = 100  # some tenths of a second on one core


def probe_s(device: torch.device) -> float:
    """Seconds of one float32 matrix product of a fixed size, alone on its node.

    The work is always the same, so two probes tell whether the machine had the same speed. It is
    the mean of many products, which holds what other processes took of the core meanwhile.
    """
    side = _PROBE_SIDE[device.type]
    factor = torch.full((side, side), 1 / side, device=device)
    product = torch.empty_like(factor)
    products_s(factor, product, 2)  # the first one is slower
    seconds = products_s(factor, product, _PROBE_PRODUCTS) / _PROBE_PRODUCTS
    if device.type == "cuda":
        del factor, product
        torch.cuda.empty_cache()  # else the cell's memory would hold the probe's
    return seconds


@dataclass(frozen=True)
class Usage:
    """Utilisation over ``wall_s`` seconds.

    Args:
        cpu: processor seconds over wall seconds and threads, 0 to 1 (more if other threads ran).
        gpu: mean of the driver's samples over the devices, 0 to 1; None without a GPU.
        cpu_s: processor seconds of all threads of the process; None if a part of them is unknown.
        energy_j: by domain, of those that were counted all the time.
    """

    wall_s: float
    cpu: float | None
    gpu: float | None
    cpu_s: float | None = None
    energy_j: Joules = field(default_factory=dict)


def mean_usage(parts: Sequence[Usage]) -> Usage:
    """Several stretches of time as one: means weighted by their lengths, sums of the rest."""

    def mean(values: Sequence[tuple[float, float | None]]) -> float | None:
        known = [(wall_s, value) for wall_s, value in values if value is not None]
        total_s = sum(wall_s for wall_s, _ in known)
        return sum(wall_s * value for wall_s, value in known) / total_s if total_s > 0 else None

    lasting = [part for part in parts if part.wall_s > 0]
    cpu_s = [part.cpu_s for part in lasting if part.cpu_s is not None]
    return Usage(
        wall_s=sum(part.wall_s for part in parts),
        cpu=mean([(part.wall_s, part.cpu) for part in parts]),
        gpu=mean([(part.wall_s, part.gpu) for part in parts]),
        cpu_s=sum(cpu_s) if cpu_s and len(cpu_s) == len(lasting) else None,
        energy_j=added([part.energy_j for part in lasting]),
    )


class Utilisation:
    """Measures the utilisation within a ``with``; ``usage`` holds it afterwards."""

    def __init__(
        self, devices: Sequence[torch.device], threads: int, energy: EnergyMeter | None = None
    ) -> None:
        self.usage = Usage(0.0, None, None)
        self._threads, self._energy = threads, energy
        self._gpus = [gpu for gpu in gpus_of(devices) if gpu is not None]
        self._samples: list[float] = []
        self._stop = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Utilisation:
        self._joules = self._energy.read() if self._energy is not None else {}
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        if self._gpus:
            self._sampler.start()
        return self

    def __exit__(self, *_error: object) -> None:
        wall_s = time.perf_counter() - self._wall
        cpu_s = time.process_time() - self._cpu
        joules = self._energy.read() if self._energy is not None else {}
        if self._gpus:
            self._stop.set()
            self._sampler.join()
        self.usage = Usage(
            wall_s,
            cpu=cpu_s / wall_s / self._threads if wall_s > 0 else None,
            gpu=sum(self._samples) / len(self._samples) if self._samples else None,
            cpu_s=cpu_s,
            energy_j=taken(self._joules, joules),
        )

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            with contextlib.suppress(Exception):  # each library has errors of its own
                rates = [gpu.utilisation() for gpu in self._gpus]
                self._samples.append(sum(rates) / len(rates))


def restart_peaks(devices: Sequence[torch.device]) -> list[int]:
    """Reset the CUDA allocator's peaks and return them in bytes; empty for CPU devices.

    While cuDNN searches for the fastest plan, warm-up allocates the largest workspace of all plans.
    """
    gpus = [device for device in devices if device.type == "cuda"]
    peaks = [torch.cuda.max_memory_allocated(device) for device in gpus]
    for device in gpus:
        torch.cuda.reset_peak_memory_stats(device)
    return peaks


def device_memory(
    devices: Sequence[torch.device],
    cpu_peak: int | None,
    before: Sequence[int] = (),
    measured: Sequence[int] = (),
) -> list[dict[str, Any]]:
    """Peak bytes of each device of this process; its CPU partitions count together.

    Args:
        devices: of this process.
        cpu_peak: value of :func:`cpu_peak_bytes`; None on CUDA.
        before: value of :func:`restart_peaks`, if it was called: entries then have both peaks.
        measured: peaks of measured steps before the allocator's peaks were reset once more.
    """
    if devices[0].type == "cpu":
        name = "cpu" if len(devices) == 1 else f"cpu ({len(devices)} partitions together)"
        return [_memory(name, peak_bytes=cpu_peak)]
    entries = [_cuda_memory(*pair) for pair in zip(devices, gpus_of(devices), strict=False)]
    for entry, earlier in zip(entries, measured, strict=False):
        entry["peak_bytes"] = max(earlier, entry["peak_bytes"])
    for entry, earlier in zip(entries, before, strict=False):
        entry["peak_with_warmup_bytes"] = max(earlier, entry["peak_bytes"])
    return entries


def cpu_peak_bytes(executor: Executor, mini_batch: int) -> int:
    """Peak of live tensor bytes in one (untimed) step, communication buffers included."""
    tensors = LiveTensors()
    tensors.count(executor.persistent_tensors())
    with tensors.watching(executor.threaded_modules()):
        executor.run(mini_batch, executor.filling())
    return tensors.peak_bytes + executor.buffer_bytes()


def peak_rss_bytes() -> int:
    """Largest resident set of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts KiB


def _memory(device: str, **values: int | None) -> dict[str, Any]:
    keys = ("peak_bytes", "reserved_bytes", "device_used_bytes", "total_bytes")
    return {"device": device, **{key: values.get(key) for key in keys}}


def _cuda_memory(device: torch.device, gpu: Gpu | None) -> dict[str, Any]:
    used: int | None = None
    if gpu is not None:
        with contextlib.suppress(Exception):  # each library has errors of its own
            used = gpu.used_bytes()
    return _memory(
        str(device),
        peak_bytes=torch.cuda.max_memory_allocated(device),
        reserved_bytes=torch.cuda.max_memory_reserved(device),
        device_used_bytes=used,
        total_bytes=torch.cuda.get_device_properties(device).total_memory,
    )


class LiveTensors:
    """Counts the bytes of distinct live storages on the CPU, whose allocator has no counter.

    A dispatch mode sees the result of every operation. A storage counts from its creation until its
    last reference is gone. This costs time, so only one untimed step runs this way. torchgpipe
    computes in threads of its own, so its partitions enter the mode themselves.
    """

    def __init__(self) -> None:
        self.current_bytes = 0
        self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._lock = threading.RLock()

    def count(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                for part in _parts_with_storage(value):
                    self._count(part.untyped_storage())

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        with self._lock:
            if key in self._sizes:
                return
            self._hold(key, storage.nbytes())
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        with self._lock:
            self.current_bytes -= self._sizes.pop(key, 0)

    @contextmanager
    def watching(self, threaded: Iterable[nn.Module] = ()) -> Iterator[None]:
        """Count what this thread creates, and what ``threaded`` modules create in any thread."""
        modes = threading.local()
        watch = _Watch if "torch._dynamo" in sys.modules else _WatchWithoutCompiler

        def enter(_module: nn.Module, _inputs: Any) -> None:
            modes.stack = [*getattr(modes, "stack", []), watch(self)]
            modes.stack[-1].__enter__()

        def leave(_module: nn.Module, _inputs: Any, _output: Any) -> None:
            modes.stack.pop().__exit__(None, None, None)

        with ExitStack() as hooks:
            for module in threaded:
                hooks.enter_context(module.register_forward_pre_hook(enter))
                hooks.enter_context(module.register_forward_hook(leave))
            with watch(self), self._watching_sizes():
                yield

    @contextmanager
    def _watching_sizes(self) -> Iterator[None]:
        """Count storages that grow and shrink: FSDP frees gathered weights in this way.

        No operation does this, so the dispatch mode does not see it.
        """
        original = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            self._resized(storage)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = original  # type: ignore[method-assign]

    def _resized(self, storage: torch.UntypedStorage) -> None:
        with self._lock:
            if storage._cdata in self._sizes:
                self._hold(storage._cdata, storage.nbytes())

    def _hold(self, key: int, size: int) -> None:
        self.current_bytes += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.peak_bytes = max(self.peak_bytes, self.current_bytes)


def _parts_with_storage(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that hold a tensor's values: itself, a rank's part, indices and values."""
    local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
    if local.layout == torch.strided:
        yield local
    elif local.layout == torch.sparse_coo:
        yield from (local._indices(), local._values())
    # Other layouts hold no gradients.


class _Watch(TorchDispatchMode):
    """Counts the results of every operation."""

    def __init__(self, tensors: LiveTensors) -> None:
        super().__init__()
        self._tensors = tensors

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        self._tensors.count(tree_leaves(results))
        return results


class _WatchWithoutCompiler(_Watch):
    """The same; the first operation under ``_Watch`` would import torch's compiler."""

    __torch_dispatch__ = unwrap(_Watch.__torch_dispatch__)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
