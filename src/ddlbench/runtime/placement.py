"""Which process this one is, and the devices that it drives.

::

    launch   DDLBENCH_NODE, DDLBENCH_LOCAL_RANK     processes that this machine starts itself
    srun     SLURM_NODEID, SLURM_LOCALID            one task a process
      '-> own_process -> own_devices                a GPU's index on the node, or among its own
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ddlbench.planning.strategy import DeviceKind, Process
from ddlbench.runtime.shared_gpu import as_own_host, is_shared

if TYPE_CHECKING:
    import torch

__all__ = ["gpu_models", "identity_variables", "own_devices", "own_process"]

_NODE, _LOCAL_RANK = "DDLBENCH_NODE", "DDLBENCH_LOCAL_RANK"


def identity_variables(process: Process) -> dict[str, str]:
    """What :func:`own_process` reads in a process that was started without srun."""
    return {_NODE: str(process.node), _LOCAL_RANK: str(process.local_rank)}


def own_process(processes: Iterable[Process]) -> Process:
    """The one of ``processes`` that has this node and this place on the node."""
    node = int(os.environ.get(_NODE, os.environ.get("SLURM_NODEID", "0")))
    local = int(os.environ.get(_LOCAL_RANK, os.environ.get("SLURM_LOCALID", "0")))
    return next(p for p in processes if (p.node, p.local_rank) == (node, local))


def own_devices(device_kind: DeviceKind, process: Process) -> tuple[torch.device, ...]:
    """This process's devices; SLURM may show it only its own, or all of the node.

    Where ranks share a GPU (:mod:`.shared_gpu`), each of its devices is the node's first one.

    The first GPU becomes the current one: what names no device - the thread that pins batches,
    say - would open a context of every process on GPU 0.

    Raises:
        RuntimeError: the plan asks for a GPU that is not here.
    """
    import torch  # noqa: PLC0415 - a rank's guard asks only who it is, and is light

    if device_kind == "cpu":
        return tuple(torch.device("cpu") for _ in process.devices)
    visible = torch.cuda.device_count()
    if visible == 0:
        raise RuntimeError("the site says device: cuda, but torch finds no GPU on this node")
    indices = process.devices
    if is_shared():
        as_own_host(process.rank)
        indices = (0,) * len(indices)
    elif visible == len(indices):
        indices = tuple(range(visible))
    if max(indices) >= visible:
        raise RuntimeError(
            f"rank {process.rank} needs GPU {max(indices)}, but torch finds {visible} here"
        )
    devices = tuple(torch.device("cuda", index) for index in indices)
    torch.cuda.set_device(devices[0])
    return devices


def gpu_models(devices: Sequence[torch.device]) -> list[str]:
    """Model of each GPU, in the order of ``devices``; none of CPU devices."""
    import torch  # noqa: PLC0415 - see above

    return [torch.cuda.get_device_name(d) for d in devices if d.type == "cuda"]
