"""The devices that one process drives: which they are, and their models."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ddlbench.planning.strategy import DeviceKind, Process

__all__ = ["gpu_models", "own_devices"]


def own_devices(device_kind: DeviceKind, process: Process) -> tuple[torch.device, ...]:
    """This process's devices; SLURM may show it only its own, or all of the node.

    The first GPU becomes the current one: what names no device - the thread that pins batches,
    say - would open a context of every process on GPU 0.

    Raises:
        RuntimeError: the plan asks for a GPU that is not here.
    """
    if device_kind == "cpu":
        return tuple(torch.device("cpu") for _ in process.devices)
    visible = torch.cuda.device_count()
    if visible == 0:
        raise RuntimeError("the site says device: cuda, but torch finds no GPU on this node")
    indices = process.devices
    if visible == len(indices):
        indices = tuple(range(visible))
    if max(indices) >= visible:
        raise RuntimeError(f"the cell needs GPU {max(indices)}, but torch finds {visible} here")
    devices = tuple(torch.device("cuda", index) for index in indices)
    torch.cuda.set_device(devices[0])
    return devices


def gpu_models(devices: Sequence[torch.device]) -> list[str]:
    """Model of each GPU, in the order of ``devices``; none of CPU devices."""
    return [torch.cuda.get_device_name(d) for d in devices if d.type == "cuda"]
