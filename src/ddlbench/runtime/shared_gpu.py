"""Several ranks on one GPU (site key ``devices_share_gpu``).

::

    launch     DDLBENCH_SHARED_GPU=1                every process of the job
    process    own_devices -> cuda:0, cuda:0, ...   NCCL_HOSTID=rank0, rank1, ...

NCCL refuses two ranks on one GPU: it compares the hash of their host and the GPU's address on the
bus. A host id of its own makes every rank a node of one GPU. NCCL then talks over sockets, as it
would between nodes without a faster network. Peer access and shared memory cannot be tested so.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddlbench.experiment.site import Site

__all__ = ["NOTE", "as_own_host", "is_shared", "shared_gpu_variables"]

NOTE = "ranks share a GPU: no timing claim between devices"

_SHARED = "DDLBENCH_SHARED_GPU"


def shared_gpu_variables(site: Site) -> dict[str, str]:
    """What every process of a job at ``site`` finds in its environment."""
    return {_SHARED: "1"} if site.devices_share_gpu else {}


def is_shared() -> bool:
    """Whether this process shares its GPU with the other ranks of its node."""
    return os.environ.get(_SHARED) == "1"


def as_own_host(rank: int) -> None:
    """Have NCCL take this process for a node of its own; before the first communicator."""
    os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_NET="Socket", NCCL_IB_DISABLE="1")
