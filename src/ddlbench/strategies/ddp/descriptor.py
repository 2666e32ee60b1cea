"""PyTorch's DistributedDataParallel.

::

    backward  |  layer n ... | ... layer 1 |
    bucket 0     |--- all-reduce ---|               gradients leave in buckets,
    bucket 1            |--- all-reduce ---|        last layers first, while
    update                                 |--|     backward still runs

By default torch's buckets have 25 MiB, but the first has 1 MiB, so that messages begin early. An
explicit cap holds for the first bucket, too (``torch/nn/parallel/distributed.py``, torch 2.13:
``_BucketCapacityConfig.create``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ddlbench.planning.data_parallel import DataParallel
from ddlbench.planning.gradient_traffic import (
    DDP_FIRST_BUCKET_BYTES,
    DEFAULT_BUCKET_BYTES,
    GradientMessage,
    filled_buckets,
)
from ddlbench.planning.plan import PlanDetails

if TYPE_CHECKING:
    from ddlbench.planning.plan import Plan
    from ddlbench.planning.workload import Workload


@dataclass(frozen=True)
class DdpDetails(PlanDetails):
    """Plan details of DDP."""

    bucket_cap_bytes: int

    @property
    def first_bucket_bytes(self) -> int:
        """Bytes at which the first bucket of a step is sent."""
        default = self.bucket_cap_bytes == DEFAULT_BUCKET_BYTES
        return DDP_FIRST_BUCKET_BYTES if default else self.bucket_cap_bytes


class DistributedDataParallel(DataParallel):
    """Replicas with bucketed gradient all-reduce overlapped with backward (Li et al. 2020)."""

    name: ClassVar[str] = "ddp"
    label: ClassVar[str] = "DDP"
    colour: ClassVar[str] = "#56B4E9"
    marker: ClassVar[str] = "D"
    library: ClassVar[str | None] = "ddp"
    executor: ClassVar[str] = "ddlbench.strategies.ddp.executor:DdpExecutor"
    predictors: ClassVar[tuple[str, ...]] = (
        *("ddp-buckets", "ddp-all-reduce", "ddp-serial"),
        *("paradl-authors", "paradl-corrected"),
    )
    # A rank's only CPU core computes or sends, so no message is hidden there.
    preferred_predictor: ClassVar[Mapping[str, str]] = {
        "cpu": "ddp-serial",
        "cuda": "ddp-buckets",
    }
    options: ClassVar[dict[str, dict[str, Any]]] = {
        "bucket_cap_bytes": {
            "type": "integer",
            "minimum": 1,
            "default": DEFAULT_BUCKET_BYTES,
            "examples": [2**20, 5 * 2**20, 50 * 2**20, 100 * 2**20],
            "description": (
                "A gradient bucket is sent when it holds so many bytes. The default is torch's "
                "own: 25 MiB, and 1 MiB for the first bucket; any other value holds for all."
            ),
        },
    }

    def gradient_messages(self, workload: Workload, plan: Plan) -> list[GradientMessage]:
        details = DdpDetails.of(plan)
        return filled_buckets(
            workload.tensors, details.first_bucket_bytes, details.bucket_cap_bytes
        )

    def communication_bytes(self, workload: Workload, plan: Plan) -> int:
        return workload.parameter_bytes  # buckets copy all gradients
