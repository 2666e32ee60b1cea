"""DDLBench Eq. 1: Horovod (Jansen et al. 2020).

::

    T = T_seq / W  +  2 (W-1) max_i ( L_{i,i+1} + min(G, th) / (W BW_{i,i+1}) )

W workers, G bytes of gradients, th fusion threshold, L and BW latency and bandwidth of
neighbours in the ring. All all-reduces but the last are taken to be hidden behind backward; the
last is taken to be full (thesis 5.1.1: "conservative worst case").

What is reconstructed: T_seq is the sequential step with the whole mini-batch of the cell, so
that T_seq / W is linear speed-up; L and BW are those of a point-to-point test. With fusion turned
off (th = 0) the last message is the last tensor whose gradient is ready.
"""

from __future__ import annotations

from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.gradient_buckets import fused
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
from ddlbench.predict.workload import Workload

__all__ = ["DdlbenchEq1", "last_message_bytes", "messages"]

LIMITS = (
    "only the last fusion buffer is exposed",
    "no cycle time, negotiation, copies or waiting for the slowest worker",
    "replicas do not slow each other down",
)


class DdlbenchEq1(Predictor):
    """Linear speed-up, and one exposed ring all-reduce."""

    name: ClassVar[str] = "ddlbench-eq1"
    source: ClassVar[str] = "DDLBench, Eq. 1"
    strategies: ClassVar[tuple[str, ...] | None] = ("horovod",)

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module."""
        hops, remarks = links_or_error(links, self.name).ring("p2p", plan)
        threshold = int(plan.details["fusion_threshold_bytes"])
        sequential = workload.step(cell.batch_size)
        workers = plan.world_size
        exposed_s = ring_all_reduce_s(hops, last_message_bytes(workload, threshold))
        return Prediction(
            self.name,
            compute_s=sequential.step_s / workers,
            communication_s=sum(ring_all_reduce_s(hops, m) for m in messages(workload, threshold)),
            exposed_communication_s=exposed_s,
            limits=LIMITS,
            notes=joined(sequential.remark, remarks),
            interval_s=sequential.interval(1 / workers, exposed_s),
        )


def last_message_bytes(workload: Workload, threshold_bytes: int) -> int:
    """min(G, th); without fusion the last tensor to be ready."""
    if threshold_bytes <= 0:
        return workload.tensors[-1].bytes
    return min(workload.parameter_bytes, threshold_bytes)


def messages(workload: Workload, threshold_bytes: int) -> list[int]:
    """Bytes of every all-reduce of a step."""
    if threshold_bytes <= 0:
        return [tensor.bytes for tensor in workload.tensors]
    return fused(workload.parameter_bytes, threshold_bytes)
