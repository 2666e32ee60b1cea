"""Meters beside the clock: processor and GPU utilisation, memory of each device."""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from ddlbench.runtime.live_tensors import LiveTensors
from ddlbench.strategies.executor import Executor

__all__ = [
    "Usage",
    "Utilisation",
    "cpu_peak_bytes",
    "device_memory",
    "mean_usage",
    "peak_rss_bytes",
    "restart_peaks",
]

_SAMPLE_S = 0.2


@dataclass(frozen=True)
class Usage:
    """How busy a stretch of time was.

    Args:
        wall_s: its length.
        cpu, gpu: as in :class:`Utilisation`.
    """

    wall_s: float
    cpu: float | None
    gpu: float | None


def mean_usage(parts: Sequence[Usage]) -> Usage:
    """Over several stretches, each as weighty as it is long."""

    def mean(values: Sequence[tuple[float, float | None]]) -> float | None:
        known = [(wall_s, value) for wall_s, value in values if value is not None]
        total_s = sum(wall_s for wall_s, _ in known)
        return sum(wall_s * value for wall_s, value in known) / total_s if total_s > 0 else None

    return Usage(
        wall_s=sum(part.wall_s for part in parts),
        cpu=mean([(part.wall_s, part.cpu) for part in parts]),
        gpu=mean([(part.wall_s, part.gpu) for part in parts]),
    )


class Utilisation:
    """Mean utilisation between enter and exit.

    Attributes:
        cpu: processor seconds over wall seconds and threads, 0 to 1 (more if it used more).
        gpu: mean of NVML's samples over the devices, 0 to 1; None without a GPU.
    """

    def __init__(self, devices: Sequence[torch.device], threads: int) -> None:
        self.cpu: float | None = None
        self.gpu: float | None = None
        self._wall_s = 0.0
        self._threads = threads
        self._handles = [h for h in _nvml_handles(devices) if h is not None]
        self._samples: list[float] = []
        self._stop = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    @property
    def usage(self) -> Usage:
        """What was found, once the time is over."""
        return Usage(self._wall_s, self.cpu, self.gpu)

    def __enter__(self) -> Utilisation:
        """Start counting."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        if self._handles:
            self._sampler.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop counting."""
        wall_s = self._wall_s = time.perf_counter() - self._wall
        if wall_s > 0:
            self.cpu = (time.process_time() - self._cpu) / wall_s / self._threads
        if self._handles:
            self._stop.set()
            self._sampler.join()
            if self._samples:
                self.gpu = sum(self._samples) / len(self._samples)

    def _sample(self) -> None:
        import pynvml  # noqa: PLC0415 - only where a GPU is

        while not self._stop.wait(_SAMPLE_S):
            with contextlib.suppress(pynvml.NVMLError):
                rates = [pynvml.nvmlDeviceGetUtilizationRates(h).gpu for h in self._handles]
                self._samples.append(sum(rates) / len(rates) / 100)


def restart_peaks(devices: Sequence[torch.device]) -> list[int]:
    """Forget the CUDA allocator's peaks so far, and return them in bytes; none of CPU devices.

    With cuDNN's search for the fastest plan, warm-up allocates the largest workspace of all plans.
    """
    gpus = [device for device in devices if device.type == "cuda"]
    peaks = [torch.cuda.max_memory_allocated(device) for device in gpus]
    for device in gpus:
        torch.cuda.reset_peak_memory_stats(device)
    return peaks


def device_memory(
    devices: Sequence[torch.device], cpu_peak: int | None, before: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """Peak bytes of each device this process drove; CPU partitions share one process.

    Args:
        devices: of this process.
        cpu_peak: what :func:`cpu_peak_bytes` found; None on CUDA.
        before: what :func:`restart_peaks` gave, if it was called: an entry then has both peaks.
    """
    if devices[0].type == "cpu":
        name = "cpu" if len(devices) == 1 else f"cpu ({len(devices)} partitions together)"
        return [_memory(name, peak_bytes=cpu_peak)]
    found = [
        _cuda_memory(device, handle)
        for device, handle in zip(devices, _nvml_handles(devices), strict=False)
    ]
    for entry, earlier in zip(found, before, strict=False):
        entry["peak_with_warmup_bytes"] = max(earlier, entry["peak_bytes"])
    return found


def cpu_peak_bytes(executor: Executor, mini_batch: int) -> int:
    """Peak of live tensor bytes in one (untimed) step, communication buffers included."""
    tensors = LiveTensors()
    tensors.count(executor.persistent_tensors())
    with tensors.watching(executor.threaded_modules()):
        executor.run(mini_batch, executor.filling())
    return tensors.peak_bytes + executor.buffer_bytes()


def peak_rss_bytes() -> int:
    """Largest resident set of this process (Linux counts it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _memory(device: str, **values: int | None) -> dict[str, Any]:
    keys = ("peak_bytes", "reserved_bytes", "device_used_bytes", "total_bytes")
    return {"device": device, **{key: values.get(key) for key in keys}}


def _cuda_memory(device: torch.device, handle: Any) -> dict[str, Any]:
    used: int | None = None
    if handle is not None:
        import pynvml  # noqa: PLC0415 - only where a GPU is

        with contextlib.suppress(pynvml.NVMLError):
            used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    return _memory(
        str(device),
        peak_bytes=torch.cuda.max_memory_allocated(device),
        reserved_bytes=torch.cuda.max_memory_reserved(device),
        device_used_bytes=used,
        total_bytes=torch.cuda.get_device_properties(device).total_memory,
    )


def _nvml_handles(devices: Sequence[torch.device]) -> list[Any]:
    """NVML handles of CUDA devices, found by UUID since NVML ignores CUDA_VISIBLE_DEVICES."""
    if devices[0].type != "cuda":
        return []
    try:
        import pynvml  # noqa: PLC0415 - only where a GPU is

        pynvml.nvmlInit()
        return [
            pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(d).uuid}")
            for d in devices
        ]
    except Exception:  # a driver without NVML must not stop a measurement
        return [None for _ in devices]
