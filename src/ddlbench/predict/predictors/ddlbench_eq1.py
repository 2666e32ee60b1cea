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
from ddlbench.planning.plan import Plan
from ddlbench.planning.workload import Workload
from ddlbench.predict.link_table import LinkTable
from ddlbench.predict.prediction import (
    NO_HISTORY,
    History,
    Prediction,
    Predictor,
    joined,
    links_or_error,
    traffic_or_error,
)
from ddlbench.predict.predictors.ring import ring_all_reduce_s

__all__ = ["DdlbenchEq1"]

LIMITS = (
    "only the last fusion buffer is exposed",
    "no cycle time, negotiation, copies or waiting for the slowest worker",
    "replicas do not slow each other down",
)


class DdlbenchEq1(Predictor):
    """Linear speed-up, and one exposed ring all-reduce."""

    name: ClassVar[str] = "ddlbench-eq1"
    source: ClassVar[str] = "DDLBench, Eq. 1"

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
        traffic = traffic_or_error(self.name, workload, plan)
        sequential = workload.step(cell.batch_size)
        workers = plan.world_size
        exposed_s = ring_all_reduce_s(hops, traffic.last_bytes)
        return Prediction(
            self.name,
            compute_s=sequential.step_s / workers,
            communication_s=sum(ring_all_reduce_s(hops, size) for size in traffic.sizes),
            exposed_communication_s=exposed_s,
            limits=LIMITS,
            notes=joined(sequential.remark, remarks),
            interval_s=sequential.interval(1 / workers, exposed_s),
        )
