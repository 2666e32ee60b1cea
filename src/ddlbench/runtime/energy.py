"""Energy that devices and hosts take, by their own counters.

::

    GPU     NVML, total energy since the driver was loaded        millijoules (Volta and later)
    host    RAPL, /sys/class/powercap/intel-rapl:*/energy_uj      microjoules, wrapping around

A counter is of the whole GPU or processor, whoever computes on it. RAPL's counters of packages and
memory are read by one rank of each node; those of cores and uncore are parts of a package's.
Many systems let only root read them (CVE-2020-8694): then nothing is counted, and the reason says
so. Counters advance every 1 ms (RAPL) to 100 ms (NVML), so a measured region should last seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ddlbench.runtime.nvml import handles_of

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
            except Exception:  # NVML's errors, and a file that went away
                self.missing.append(f"{domain}: its counter could not be read during training")
        self._counters = {domain: self._counters[domain] for domain in joules}
        return joules

    def _open_gpus(self, devices: Sequence[torch.device]) -> None:
        for handle in dict.fromkeys(handles_of(devices)):
            if handle is None:
                self.missing.append("GPUs: NVML does not answer")
                return
            try:
                import pynvml  # noqa: PLC0415 - only where a GPU is

                name = pynvml.nvmlDeviceGetUUID(handle)
                pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            except Exception as error:  # of old GPUs, and of parts of a GPU
                self.missing.append(f"GPUs: NVML counts no energy here ({error})")
                return
            text = name.decode() if isinstance(name, bytes) else str(name)
            self._counters[f"nvml {text}"] = partial(_nvml_joules, handle)

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


def _nvml_joules(handle: Any) -> float:
    import pynvml  # noqa: PLC0415 - only where a GPU is

    return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3


def taken(before: Joules, after: Joules) -> dict[str, float]:
    """Joules between two readings, of the domains that are in both."""
    return {domain: after[domain] - before[domain] for domain in before if domain in after}


def added(parts: Sequence[Joules]) -> dict[str, float]:
    """The sums of several stretches of time, of the domains that are in all of them."""
    if not parts:
        return {}
    shared = set(parts[0]).intersection(*parts[1:])
    return {domain: sum(part[domain] for part in parts) for domain in parts[0] if domain in shared}
