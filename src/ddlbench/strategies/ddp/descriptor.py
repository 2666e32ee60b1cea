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
    """What a plan of DDP fixes."""

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
    executor: ClassVar[str] = "ddlbench.strategies.ddp.executor:DdpExecutor"
    predictors: ClassVar[tuple[str, ...]] = (
        *("ddp-buckets", "ddp-all-reduce", "ddp-serial"),
        *("paradl-published", "paradl-corrected"),
    )
    # A CPU's only core computes or sends: nothing is hidden there.
    preferred_predictor: ClassVar[Mapping[str, str]] = {
        "cpu": "ddp-serial",
        "cuda": "ddp-buckets",
    }
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

    def gradient_messages(self, workload: Workload, plan: Plan) -> list[GradientMessage]:
        """One a bucket."""
        details = DdpDetails.of(plan)
        return filled_buckets(
            workload.tensors, details.first_bucket_bytes, details.bucket_cap_bytes
        )

    def communication_bytes(self, workload: Workload, plan: Plan) -> int:
        """Buckets hold all gradients once more."""
        return workload.parameter_bytes
