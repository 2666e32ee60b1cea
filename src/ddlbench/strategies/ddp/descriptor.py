"""PyTorch's DistributedDataParallel.

::

    backward  |  layer n ... | ... layer 1 |
    bucket 0     |--- all-reduce ---|               gradients leave in buckets,
    bucket 1            |--- all-reduce ---|        last layers first, while
    update                                 |--|     backward still runs

torch's default is two sizes: 25 MiB, but 1 MiB for the first bucket, so that messages begin early.
A cap that is given holds for the first one, too (``torch/nn/parallel/distributed.py``, torch 2.13:
``_BucketCapacityConfig.create``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.gradient_buckets import DDP_FIRST_BUCKET_BYTES, DEFAULT_BUCKET_BYTES
from ddlbench.planning.strategy import (
    Process,
    Strategy,
    data_parallel_placement,
    uneven_shares,
)

__all__ = ["DistributedDataParallel", "bucket_caps"]


class DistributedDataParallel(Strategy):
    """Replicas with bucketed gradient all-reduce overlapped with backward (Li et al. 2020)."""

    name: ClassVar[str] = "ddp"
    label: ClassVar[str] = "DDP"
    family: ClassVar[str] = "data parallel"
    executor: ClassVar[str] = "ddlbench.strategies.ddp.executor:DdpExecutor"
    options: ClassVar[dict[str, dict[str, Any]]] = {
        "bucket_cap_bytes": {
            "type": "integer",
            "minimum": 1,
            "default": DEFAULT_BUCKET_BYTES,
            "description": (
                "A gradient bucket is sent when it holds so many bytes. The default is torch's "
                "own: 25 MiB, and 1 MiB for the first bucket; any other value holds for all."
            ),
        },
    }

    def supports(self, cell: Cell) -> str | None:
        """Any number of nodes and devices; equal shares."""
        return uneven_shares(cell)

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        """One process a device."""
        return data_parallel_placement(cell)


def bucket_caps(details: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes at which the first bucket of a step is sent, and all others.

    Args:
        details: of a plan.
    """
    cap_bytes = int(details["bucket_cap_bytes"])
    return (DDP_FIRST_BUCKET_BYTES if cap_bytes == DEFAULT_BUCKET_BYTES else cap_bytes), cap_bytes
