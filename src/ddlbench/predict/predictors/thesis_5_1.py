"""Thesis Eq. 5.1: Horovod with measured links.

::

    T = T_seq / W  +  2 (W-1) max_i ( L_{i,i+1} + min(G, th) / (W BW_{i,i+1}) )

The equation is DDLBench's Eq. 1. T_seq comes from the sequential predictor (chapter 4) at the
batch of one worker, b = B / W, as DDLBench's baseline has one worker's batch: the sequential time
of W such batches over W is t(b). L and BW are measured for every pair of devices and the slowest
hop of the ring counts (section 5.1.2); between nodes the user gives them.

Two predictors: ``p2p`` reads the point-to-point test that the thesis used, ``transport`` what
training itself sends through (NCCL, gloo, Horovod). What is reconstructed: t(b) keeps the launch
costs and the optimiser of a whole step, which T_seq(B) / W would divide.
"""

from __future__ import annotations

from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.workload import Workload
from ddlbench.predict.link_table import Kind, LinkTable
from ddlbench.predict.prediction import (
    NO_HISTORY,
    History,
    Prediction,
    Predictor,
    joined,
    links_or_error,
    traffic_or_error,
)
from ddlbench.predict.predictors.ddlbench_eq1 import LIMITS
from ddlbench.predict.predictors.ring import ring_all_reduce_s

__all__ = ["Thesis51P2p", "Thesis51Transport"]


class _Thesis51(Predictor):
    """One worker's step, and one exposed ring all-reduce over measured links."""

    kind: ClassVar[Kind]

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module."""
        hops, remarks = links_or_error(links, self.name).ring(self.kind, plan)
        traffic = traffic_or_error(self.name, workload, plan)
        alone = workload.step(cell.batch_size / plan.world_size)
        exposed_s = ring_all_reduce_s(hops, traffic.last_bytes)
        return Prediction(
            self.name,
            compute_s=alone.step_s,
            communication_s=sum(ring_all_reduce_s(hops, size) for size in traffic.sizes),
            exposed_communication_s=exposed_s,
            limits=LIMITS,
            notes=joined(alone.remark, remarks),
            interval_s=alone.interval(1.0, exposed_s),
        )


class Thesis51P2p(_Thesis51):
    """With the links of a point-to-point test."""

    name: ClassVar[str] = "thesis-5.1-p2p"
    source: ClassVar[str] = "thesis, Eq. 5.1, p2p test"
    kind: ClassVar[Kind] = "p2p"


class Thesis51Transport(_Thesis51):
    """With the links of the training transport."""

    name: ClassVar[str] = "thesis-5.1-transport"
    source: ClassVar[str] = "thesis, Eq. 5.1, training transport"
    kind: ClassVar[Kind] = "transport"
