"""What a GPU's driver says of it, by its maker's library: name, utilisation, memory and energy.

::

    NVIDIA    NVML (nvidia-ml-py)       millijoules since the driver was loaded (Volta and later)
    AMD       AMD SMI (amdsmi)          counts of microjoules since the driver was loaded

torch calls both kinds ``cuda``; a build for AMD's GPUs has ``torch.version.hip``. AMD's part was
tried on stand-ins of amdsmi 7.0 only, not on a GPU yet.

Source: https://rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch


class NvidiaGpu:
    """A GPU that NVML knows by its UUID, as NVML ignores CUDA_VISIBLE_DEVICES.

    A part of a GPU (MIG) has a UUID of its own. NVML tells its memory, but neither its utilisation
    nor its energy.
    """

    counted_by: Literal["nvml"] = "nvml"

    def __init__(self, device: torch.device) -> None:
        import pynvml  # noqa: PLC0415 - only where a GPU is

        self._nvml = pynvml
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        except pynvml.NVMLError:
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")

    def uuid(self) -> str:
        return _text(self._nvml.nvmlDeviceGetUUID(self._handle))

    def utilisation(self) -> float:
        """Share of the last moments in which it computed, 0 to 1."""
        return float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu) / 100

    def used_bytes(self) -> int:
        """Memory in use on the whole GPU."""
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)

    def joules(self) -> float:
        """Energy of the whole GPU since its driver was loaded."""
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3


class AmdGpu:
    """A GPU that AMD SMI knows by its PCI address, as AMD SMI ignores HIP_VISIBLE_DEVICES."""

    counted_by: Literal["amdsmi"] = "amdsmi"

    def __init__(self, device: torch.device) -> None:
        import amdsmi  # noqa: PLC0415 - only where a GPU is

        self._smi = amdsmi
        amdsmi.amdsmi_init()
        at: Any = torch.cuda.get_device_properties(device)
        address = f"{at.pci_domain_id:04x}:{at.pci_bus_id:02x}:{at.pci_device_id:02x}.0"
        self._handle = amdsmi.amdsmi_get_processor_handle_from_bdf(address)

    def uuid(self) -> str:
        return _text(self._smi.amdsmi_get_gpu_device_uuid(self._handle))

    def utilisation(self) -> float:
        # A GPU without this counter says "N/A", which is no number: a ValueError.
        return float(self._smi.amdsmi_get_gpu_activity(self._handle)["gfx_activity"]) / 100

    def used_bytes(self) -> int:
        kind = self._smi.AmdSmiMemoryType.VRAM
        return int(self._smi.amdsmi_get_gpu_memory_usage(self._handle, kind))

    def joules(self) -> float:
        count = self._smi.amdsmi_get_energy_count(self._handle)
        return float(count["energy_accumulator"]) * float(count["counter_resolution"]) / 1e6

    def driver(self) -> str:
        return str(self._smi.amdsmi_get_gpu_driver_info(self._handle)["driver_version"])


Gpu = NvidiaGpu | AmdGpu
"""One GPU; every method raises what the maker's library raises."""


def is_amd() -> bool:
    """Whether this torch is a build for AMD's GPUs."""
    return getattr(torch.version, "hip", None) is not None


def library_name() -> str:
    """The library that knows this machine's GPUs."""
    return "AMD SMI" if is_amd() else "NVML"


def gpus_of(devices: Sequence[torch.device]) -> list[Gpu | None]:
    """Each of the CUDA devices; None where the maker's library does not know it.

    Empty for CPU devices.
    """
    return [_gpu(device) for device in devices if device.type == "cuda"]


def _gpu(device: torch.device) -> Gpu | None:
    try:
        return AmdGpu(device) if is_amd() else NvidiaGpu(device)
    except Exception:  # a driver without such a library must not stop a measurement
        return None


def model_of(device: torch.device | int) -> str:
    """The GPU's model; some builds for AMD's GPUs know only its architecture, as gfx90a."""
    name = torch.cuda.get_device_name(device)
    return name or str(torch.cuda.get_device_properties(device).gcnArchName)


def software_of_gpus() -> dict[str, str | None]:
    """Versions of the driver and of what computes and communicates on this process's GPUs.

    AMD's RCCL has the interface of NCCL, and torch calls it so.
    """
    collectives = ".".join(str(part) for part in torch.cuda.nccl.version())
    if is_amd():
        return {"driver": _driver(), "rocm": torch.version.hip, "rccl": collectives}
    return {"driver": _driver(), "cuda": torch.version.cuda, "nccl": collectives}


def _driver() -> str | None:
    try:
        if is_amd():
            return AmdGpu(torch.device("cuda", 0)).driver()
        import pynvml  # noqa: PLC0415 - only where a GPU is

        pynvml.nvmlInit()
        return _text(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # provenance must not stop a measurement
        return None


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)
