"""What a rank's devices take and reach: energy by their counters, and speed by large products.

::

    GPU     its maker's library, see gpus.py                      whole GPU since the driver came
    host    RAPL, /sys/class/powercap/intel-rapl:*/energy_uj      microjoules, wrapping around

A counter is of the whole GPU or processor, whoever computes on it. RAPL's counters of packages and
memory are read by one rank of each node; those of cores and uncore are parts of a package's.
Many systems let only root read them (CVE-2020-8694): then nothing is counted, and the reason says
so. Counters advance every 1 ms (RAPL) to 100 ms (NVML), so a measured region should last seconds.

Speed is that of large matrix products, after training::

    all ranks    wait for all | product, dropped | products for some tenths of a second |
                                                  median round -> operations a second

All ranks multiply at once, so that ranks which share a device or cores share its speed, as they do
in a step. It is measured, not read from a data sheet: on CPU with the cell's threads, on GPUs with
their clocks and power as they are.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.site import Accelerator
from ddlbench.networks.factory import training_flops
from ddlbench.planning.plan import Process
from ddlbench.runtime.gpus import gpus_of, library_name
from ddlbench.strategies.training import HALF_TYPES

POWERCAP = Path("/sys/class/powercap")
_COUNTED = ("package", "dram")  # beginnings of names of RAPL's domains
_POLL_S = 30.0  # a counter of 65 kJ wraps around after minutes

Joules = Mapping[str, float]


class RaplCounter:
    """The sum of what one counter of RAPL advanced; it wraps around at ``max_energy_range_uj``."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self._range = int((folder / "max_energy_range_uj").read_text())
        self._last = self._microjoules()
        self._sum = 0
        self._lock = threading.Lock()

    def joules(self) -> float:
        """Since the counter was opened; to be called more often than it wraps around."""
        with self._lock:
            now = self._microjoules()
            advanced = now - self._last
            self._sum += advanced if advanced >= 0 else advanced + self._range
            self._last = now
            return self._sum / 1e6

    def _microjoules(self) -> int:
        return int(self._file.read_text())


class EnergyMeter:
    """The counters that one rank reads.

    Attributes:
        missing: why GPUs or the host have no counter; a sentence each.
    """

    def __init__(
        self, devices: Sequence[torch.device], *, of_host: bool, powercap: Path = POWERCAP
    ) -> None:
        self.missing: list[str] = []
        self._counters: dict[str, Callable[[], float]] = {}
        self._of_host: list[RaplCounter] = []
        if devices[0].type == "cuda":
            self._open_gpus(devices)
        if of_host:
            self._open_host(powercap)

    def read(self) -> dict[str, float]:
        """Joules of each domain since some time in the past; a counter that fails is left out."""
        joules = {}
        for domain, counter in self._counters.items():
            try:
                joules[domain] = counter()
            except Exception:  # the library's errors, and a file that went away
                self.missing.append(f"{domain}: its counter could not be read during training")
        self._counters = {domain: self._counters[domain] for domain in joules}
        return joules

    def _open_gpus(self, devices: Sequence[torch.device]) -> None:
        for gpu in gpus_of(list(dict.fromkeys(devices))):
            if gpu is None:
                self.missing.append(f"GPUs: {library_name()} does not answer")
                return
            try:
                name = gpu.uuid()
                gpu.joules()
            except Exception as error:  # of old GPUs, and of parts of a GPU
                self.missing.append(f"GPUs: {library_name()} counts no energy here ({error})")
                return
            self._counters[f"{gpu.counted_by} {name}"] = gpu.joules

    def _open_host(self, powercap: Path) -> None:
        folders = sorted(powercap.glob("intel-rapl:*")) if powercap.is_dir() else []
        for folder in folders:
            try:
                name = (folder / "name").read_text().strip()
                if name.startswith(_COUNTED):
                    counter = RaplCounter(folder)
                    self._of_host.append(counter)
                    self._counters[f"rapl {folder.name} {name}"] = counter.joules
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or str(error)
                self.missing.append(f"host: {folder / 'energy_uj'} cannot be read ({why})")
                break
        if not folders:
            self.missing.append(f"host: there are no counters of RAPL in {powercap}")
        if self._of_host:
            threading.Thread(target=self._keep_up, daemon=True).start()

    def _keep_up(self) -> None:
        """Read the counters now and then, so that none wraps around twice unseen."""
        pause = threading.Event()
        while not pause.wait(_POLL_S):
            for counter in self._of_host:
                with suppress(OSError, ValueError):  # whoever reads it for a result says so
                    counter.joules()


def taken(before: Joules, after: Joules) -> dict[str, float]:
    """Joules between two readings, of the domains that are in both."""
    return {domain: after[domain] - before[domain] for domain in before if domain in after}


def added(parts: Sequence[Joules]) -> dict[str, float]:
    """The sums of several stretches of time, of the domains that are in all of them."""
    if not parts:
        return {}
    shared = set(parts[0]).intersection(*parts[1:])
    return {domain: sum(part[domain] for part in parts) for domain in parts[0] if domain in shared}


SIDE = {"cpu": 1024, "cuda": 8192}  # of the square matrices
_LEAST_SIDE = 256
_MEASURED_S = 0.2
_ROUND_S = 0.02  # a round of several short products, which are queued on a GPU
_FEWEST_ROUNDS = 3
_LONGEST_S = 0.1  # of one product; a slow device gets smaller ones


def peak_flops_per_s(devices: Sequence[torch.device], precision: str) -> float:
    """Floating-point operations a second of all ``devices`` together, each multiplying by itself.

    Args:
        devices: of this process; a CPU device has as many threads as torch now uses.
        precision: of a cell; of fp32 and tf32, torch's global setting decides.

    Raises:
        RuntimeError: a device has no memory left, or no such arithmetic.
    """
    kind = HALF_TYPES.get(precision, torch.float32)
    if len(devices) == 1:
        return _speed(devices[0], kind)
    with ThreadPoolExecutor(len(devices)) as pool:  # products release Python's lock
        return sum(pool.map(lambda device: _speed(device, kind), devices))


def _speed(device: torch.device, kind: torch.dtype) -> float:
    side = SIDE[device.type]
    while True:
        least = side <= _LEAST_SIDE
        try:
            speed = _speed_at(device, kind, side, longest_s=math.inf if least else _LONGEST_S)
        except torch.OutOfMemoryError:
            if least:
                raise
            speed = None
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if speed is not None:
            return speed
        side //= 2


def _speed_at(device: torch.device, kind: torch.dtype, side: int, longest_s: float) -> float | None:
    """Operations a second of products of this size; None if one takes longer than ``longest_s``."""
    factor = torch.full((side, side), 1 / side, dtype=kind, device=device)
    product = torch.empty_like(factor)
    products_s(factor, product, 1)  # the first one is slower
    alone_s = products_s(factor, product, 1)
    if alone_s > longest_s:
        return None
    count = max(1, round(_ROUND_S / alone_s))
    rounds: list[float] = []
    while len(rounds) < _FEWEST_ROUNDS or sum(rounds) < _MEASURED_S:
        rounds.append(products_s(factor, product, count))
    return 2.0 * side**3 * count / statistics.median(rounds)


def products_s(factor: torch.Tensor, product: torch.Tensor, count: int) -> float:
    """Seconds of ``count`` products of a square matrix with itself."""
    begin = time.perf_counter()
    for _ in range(count):
        torch.mm(factor, factor, out=product)
    if factor.is_cuda:
        torch.cuda.synchronize(factor.device)
    return time.perf_counter() - begin


_EMULATED = "computation is emulated, so there are neither operations nor a peak to measure"


def measured_by_rank(
    cell: Cell, process: Process, devices: Sequence[torch.device]
) -> dict[str, Any]:
    """Fields of a rank's report; all ranks call this at once, after everything else.

    A failure costs the number, and not the measurement before it.
    """
    if Accelerator.of_this_process() is not None:
        return {"efficiency_missing": _EMULATED}
    measured: dict[str, Any] = {}
    try:
        if process.shard >= 0:
            measured["peak_flops_per_s"] = peak_flops_per_s(devices, cell.precision)
        if process.rank == 0:
            measured["sample_flops"] = training_flops(cell.network, DATASETS[cell.dataset])
    except Exception as error:  # whatever a network of users or a full device raises
        traceback.print_exc()
        text = " ".join(str(error).split())[:200]
        what = "operations were not counted" if "peak_flops_per_s" in measured else "no peak"
        measured["efficiency_missing"] = f"{what}: {type(error).__name__}: {text}"
    return measured
