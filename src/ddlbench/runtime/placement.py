"""Where a process runs: its rank, its devices and its cores.

::

    launch   DDLBENCH_NODE, DDLBENCH_LOCAL_RANK     processes that this machine starts itself
    srun     SLURM_NODEID, SLURM_LOCALID            one task a process
      '-> own_process -> own_devices                a GPU's index on the node, or among its own

Several ranks may share one GPU (site key ``devices_share_gpu``)::

    launch     DDLBENCH_SHARED_GPU=1                every process of the job
    process    own_devices -> cuda:0, cuda:0, ...   NCCL_HOSTID=rank0, rank1, ...

NCCL refuses two ranks on one GPU: it compares a hash of their host and the GPU's address on the
bus. With a host id of its own, every rank counts as a node with one GPU, and NCCL talks over
sockets, as between nodes without a faster network. This cannot test peer access or shared memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ddlbench.planning.plan import Process
from ddlbench.planning.strategy import DeviceKind

if TYPE_CHECKING:
    import torch

    from ddlbench.experiment.site import Site

_NODE, _LOCAL_RANK = "DDLBENCH_NODE", "DDLBENCH_LOCAL_RANK"


def identity_variables(process: Process) -> dict[str, str]:
    """Variables by which :func:`own_process` works in a process that srun did not start."""
    return {_NODE: str(process.node), _LOCAL_RANK: str(process.local_rank)}


def own_process(processes: Iterable[Process]) -> Process:
    """The entry of ``processes`` that describes this process."""
    node = int(os.environ.get(_NODE, os.environ.get("SLURM_NODEID", "0")))
    local = int(os.environ.get(_LOCAL_RANK, os.environ.get("SLURM_LOCALID", "0")))
    return next(p for p in processes if (p.node, p.local_rank) == (node, local))


def own_devices(device_kind: DeviceKind, process: Process) -> tuple[torch.device, ...]:
    """This process's devices; its first GPU becomes the current one.

    If ranks share a GPU, each of its devices is the node's first GPU.

    Raises:
        RuntimeError: the plan asks for a GPU that is not here.
    """
    import torch  # noqa: PLC0415 - a rank's guard, which is light, needs only own_process

    if device_kind == "cpu":
        return tuple(torch.device("cpu") for _ in process.devices)
    visible = torch.cuda.device_count()
    if visible == 0:
        raise RuntimeError("the site says device: cuda, but torch finds no GPU on this node")
    indices = process.devices
    if is_shared():
        as_own_host(process.rank)
        indices = (0,) * len(indices)
    elif visible == len(indices):  # SLURM shows the process its own GPUs only
        indices = tuple(range(visible))
    if max(indices) >= visible:
        raise RuntimeError(
            f"rank {process.rank} needs GPU {max(indices)}, but torch finds {visible} here"
        )
    devices = tuple(torch.device("cuda", index) for index in indices)
    # Else code that names no device, such as the thread that pins batches, would open a context
    # of every process on GPU 0.
    torch.cuda.set_device(devices[0])
    return devices


def gpu_models(devices: Sequence[torch.device]) -> list[str]:
    """Model of each GPU, in the order of ``devices``; empty for CPU devices."""
    import torch  # noqa: PLC0415 - see own_devices

    return [torch.cuda.get_device_name(d) for d in devices if d.type == "cuda"]


def own_cores() -> str:
    """This process's CPU affinity, for example ``0-3,8``.

    Call it before numerical libraries compute: OpenMP may bind its first thread to one core.
    """
    return compact(os.sched_getaffinity(0))


def compact(cores: Iterable[int]) -> str:
    """Numbers in Linux's list format: {0, 1, 2, 3, 8} is ``0-3,8``."""
    ranges: list[list[int]] = []
    for core in sorted(set(cores)):
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


SHARED_GPU_NOTE = "ranks share a GPU: no timing claim between devices"

_SHARED_GPU = "DDLBENCH_SHARED_GPU"


def device_variables(site: Site) -> dict[str, str]:
    """Variables that tell every process of a job what its devices are, if they are not plain."""
    shared = {_SHARED_GPU: "1"} if site.devices_share_gpu else {}
    return shared | ({} if site.accelerator is None else site.accelerator.variables())


def is_shared() -> bool:
    """Whether this process shares its GPU with the other ranks of its node."""
    return os.environ.get(_SHARED_GPU) == "1"


def as_own_host(rank: int) -> None:
    """Make NCCL take this process for a node of its own; call it before NCCL is initialised."""
    os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_NET="Socket", NCCL_IB_DISABLE="1")
