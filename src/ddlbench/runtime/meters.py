"""Meters beside the clock: processor and GPU utilisation, memory of each device, bytes sent."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddlbench.runtime.rank_report import CountedBytes
from ddlbench.strategies.executor import Executor

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


class LiveTensors:
    """Counts the bytes of distinct live storages, on CPU, where no allocator keeps count.

    Every operation's result is seen by a dispatch mode; a storage counts from its birth until its
    last reference goes. One step is run this way outside the timed region, as seeing costs time.
    torchgpipe computes in threads of its own, so its partitions enter the mode themselves.

    Attributes:
        current_bytes: now.
        peak_bytes: the largest value of it so far.
    """

    def __init__(self) -> None:
        self.current_bytes = 0
        self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._lock = threading.RLock()

    def count(self, values: Iterable[Any]) -> None:
        """Count the tensors among ``values`` as live."""
        for value in values:
            if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                self._count(value.untyped_storage())

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        with self._lock:
            if key in self._sizes:
                return
            self._sizes[key] = storage.nbytes()
            self.current_bytes += self._sizes[key]
            self.peak_bytes = max(self.peak_bytes, self.current_bytes)
        weakref.finalize(storage, self._forget, key)

    def _forget(self, key: int) -> None:
        with self._lock:
            self.current_bytes -= self._sizes.pop(key, 0)

    @contextmanager
    def watching(self, threaded: Iterable[nn.Module] = ()) -> Iterator[None]:
        """Count what is made in this thread, and inside ``threaded`` modules in any thread."""
        modes = threading.local()

        def enter(_module: nn.Module, _inputs: Any) -> None:
            modes.stack = [*getattr(modes, "stack", []), _Watch(self)]
            modes.stack[-1].__enter__()

        def leave(_module: nn.Module, _inputs: Any, _output: Any) -> None:
            modes.stack.pop().__exit__(None, None, None)

        hooks = []
        for module in threaded:
            hooks.append(module.register_forward_pre_hook(enter))
            hooks.append(module.register_forward_hook(leave))
        try:
            with _Watch(self):
                yield
        finally:
            for hook in hooks:
                hook.remove()


class _Watch(TorchDispatchMode):
    """Shows every operation's results to a counter."""

    def __init__(self, tensors: LiveTensors) -> None:
        super().__init__()
        self._tensors = tensors

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count what it made."""
        results = func(*args, **(kwargs or {}))
        self._tensors.count(tree_leaves(results))
        return results


# Offsets in struct tcp_info. Its size grows with the kernel, its beginning never changes.
_RECEIVED, _UNSENT, _SENT, _RETRANSMITTED = 128, 144, 200, 208
_INFO_BYTES = 216

Bytes = tuple[int, int]


class TcpTraffic:
    """Counts what this process sends and receives over TCP (gloo) during the measured steps.

    ::

        warm-up | start | barrier | measured steps | stop | barrier | untimed steps
                | read  |                          | read |

    The kernel counts for every connection the bytes that a program wrote to it and the bytes that
    came in (``TCP_INFO``, Linux 4.19; ``struct tcp_info`` in linux/tcp.h). The counts are a
    process's own, so ranks that share a host, or talk over its loopback, are told apart. Peers
    cannot begin before :meth:`start`, nor send more before :meth:`stop`, as barriers lie between.

    Args:
        store_port: of the rendezvous store, whose connections do not count.
    """

    counted_by = "tcp_info"

    def __init__(self, store_port: int) -> None:
        self._store_port = store_port
        self._before: dict[str, Bytes] = {}
        self._first_step = 0
        self._counted: CountedBytes | None = None

    def start(self, done_steps: int) -> None:
        """So many measured steps are done; the next ones count."""
        self._before, self._first_step = connection_bytes(self._store_port), done_steps

    def stop(self, done_steps: int) -> None:
        """All measured steps are done."""
        after = connection_bytes(self._store_port)
        pairs = [(after[key], self._before.get(key, (0, 0))) for key in after]
        self._counted = None
        if pairs:
            self._counted = CountedBytes(
                counted_by=self.counted_by,
                steps=done_steps - self._first_step,
                sent_bytes=sum(now[0] - before[0] for now, before in pairs),
                received_bytes=sum(now[1] - before[1] for now, before in pairs),
            )

    def report(self) -> CountedBytes | None:
        """Counted bytes; None where the process has no connection that counts."""
        return self._counted


def connection_bytes(store_port: int) -> dict[str, Bytes]:
    """Bytes written to and received from each TCP connection of this process.

    Args:
        store_port: connections from or to this port are left out.

    Returns:
        (written, received) by the connection's socket. Empty where the kernel does not count.
    """
    found: dict[str, Bytes] = {}
    for name, connection in _connections():
        with closing(connection):
            try:
                ports = {connection.getpeername()[1], connection.getsockname()[1]}
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            except OSError:  # it listens, or it has just been closed
                continue
        if store_port in ports or len(info) < _INFO_BYTES:
            continue
        sent, again = struct.unpack_from("=QQ", info, _SENT)
        (waiting,) = struct.unpack_from("=I", info, _UNSENT)
        (received,) = struct.unpack_from("=Q", info, _RECEIVED)
        found[name] = (sent - again + waiting, received)
    return found


def _connections() -> Iterator[tuple[str, socket.socket]]:
    """Name and duplicate of each TCP socket of this process; the name lasts as long as it."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            name = str(entry.readlink())
            if not name.startswith("socket:"):
                continue
            connection = socket.socket(fileno=os.dup(int(entry.name)))
        except OSError:  # closed meanwhile
            continue
        internet = connection.family in (socket.AF_INET, socket.AF_INET6)
        if internet and connection.type == socket.SOCK_STREAM:
            yield name, connection
        else:
            connection.close()
