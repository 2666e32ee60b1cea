"""NVML's handles of this process's GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def handles_of(devices: Sequence[torch.device]) -> list[Any]:
    """NVML handles of CUDA devices, by UUID, as NVML ignores CUDA_VISIBLE_DEVICES.

    Empty for CPU devices; None for each device where NVML does not answer.
    """
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
