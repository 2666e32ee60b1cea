"""DistributedDataParallel: Eq. 1's ring all-reduce, bucket by bucket (Li et al. 2020, section 3.2).

::

    backward    |---------------------------|
    ready_k         |      |       |        |          when the bucket's last gradient is ready
    all-reduce      |-b0-| |--b1--||--b2---||-b3-|     one after the other
                                            |----|     exposed

    start_k = max(ready_k, end_{k-1});  end_k = start_k + t(S_k)
    T = k t_seq(B/W) + max(0, end_last - k t_backward)

Gradients fill a bucket, in the order in which they are ready, until it holds ``bucket_cap_bytes``;
by default torch's first bucket is sent earlier, from 1 MiB on (``strategies/ddp``). No published
model: it is Eq. 1's idea put to DDP. Two predictors:

* ``ddp-buckets`` has Eq. 1's terms and no others: t(S) is its ring over the links of the training
  transport, and k = 1. So it compares with the predictors of Horovod on equal terms.
* ``ddp-all-reduce`` takes t(S) from the fitted sweep of the all-reduce itself, and k from the
  profile: the slow-down of as many silent replicas on a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.gradient_buckets import buckets_once_full
from ddlbench.planning.plan import Plan
from ddlbench.predict.link_table import LinkTable
from ddlbench.predict.prediction import (
    NO_HISTORY,
    History,
    Prediction,
    Predictor,
    joined,
    links_or_error,
)
from ddlbench.predict.predictors.ring import ring_all_reduce_s
from ddlbench.predict.workload import Tensor, Workload
from ddlbench.strategies.ddp.descriptor import bucket_caps

__all__ = ["DdpAllReduce", "DdpBuckets", "buckets", "exposed_s"]

AllReduceTime = Callable[[float], float]


class _Ddp(Predictor):
    """One worker's step, and buckets that leave while backward runs."""

    strategies: ClassVar[tuple[str, ...] | None] = ("ddp",)

    def all_reduce(
        self, links: LinkTable, workload: Workload, plan: Plan
    ) -> tuple[AllReduceTime, tuple[str, ...]]:
        """Seconds over bytes, and remarks."""
        raise NotImplementedError

    def slowdown(self, workload: Workload, cell: Cell) -> float:
        """The factor k."""
        return 1.0

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module."""
        time_s, remarks = self.all_reduce(links_or_error(links, self.name), workload, plan)
        slowdown = self.slowdown(workload, cell)
        alone = workload.step(cell.batch_size / plan.world_size)
        filled = buckets(workload.tensors, *bucket_caps(plan.details))
        waited_s = exposed_s(filled, slowdown * alone.backward_s, time_s)
        return Prediction(
            self.name,
            compute_s=slowdown * alone.step_s,
            communication_s=sum(time_s(size) for size, _ in filled),
            exposed_communication_s=waited_s,
            limits=("communication does not slow computation down", "no straggling worker"),
            notes=joined(alone.remark, remarks),
            interval_s=alone.interval(slowdown, waited_s),
        )


class DdpBuckets(_Ddp):
    """With Eq. 1's ring over the links of the training transport."""

    name: ClassVar[str] = "ddp-buckets"
    source: ClassVar[str] = "DDLBench, Eq. 1, a bucket at a time"

    def all_reduce(
        self, links: LinkTable, workload: Workload, plan: Plan
    ) -> tuple[AllReduceTime, tuple[str, ...]]:
        """Eq. 1's ring."""
        hops, remarks = links.ring("transport", plan)
        return (lambda size: ring_all_reduce_s(hops, size)), remarks


class DdpAllReduce(_Ddp):
    """With the fitted sweep of the all-reduce."""

    name: ClassVar[str] = "ddp-all-reduce"
    source: ClassVar[str] = "measured all-reduce, a bucket at a time"

    def all_reduce(
        self, links: LinkTable, workload: Workload, plan: Plan
    ) -> tuple[AllReduceTime, tuple[str, ...]]:
        """The backend that DDP uses on the profile's device."""
        backend = "nccl" if workload.device_kind == "cuda" else "gloo"
        if plan.world_size < 2:
            return (lambda size: 0.0), ()
        swept = links.all_reduce(plan.cell.nodes, plan.cell.devices_per_node, backend)
        return swept.time_s, swept.notes

    def slowdown(self, workload: Workload, cell: Cell) -> float:
        """Of as many replicas as a node has devices."""
        return workload.slowdown(cell.devices_per_node)


def buckets(tensors: Sequence[Tensor], first_bytes: int, cap_bytes: int) -> list[tuple[int, float]]:
    """Bytes of each bucket, and the fraction of the backward pass after which it is ready.

    Args:
        tensors: gradients in the order in which they are ready.
        first_bytes: at which the first bucket is sent.
        cap_bytes: at which all others are.
    """
    found = buckets_once_full([tensor.bytes for tensor in tensors], cap_bytes, first_bytes)
    return [
        (sum(tensors[index].bytes for index in bucket), tensors[bucket[-1]].ready_fraction)
        for bucket in found
    ]


def exposed_s(
    filled: Sequence[tuple[int, float]], backward_s: float, time_s: AllReduceTime
) -> float:
    """Seconds that the last all-reduce ends after the backward pass."""
    end_s = 0.0
    for size, fraction in filled:
        end_s = max(end_s, fraction * backward_s) + time_s(size)
    return max(0.0, end_s - backward_s)
