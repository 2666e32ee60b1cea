"""DDLBench Eq. 2: GPipe (Jansen et al. 2020).

::

    T = T_seq (W + m - 1) / (W m)  +  sum_{i=1}^{W-1} ( L_{i,i+1} + A_i / BW_{i,i+1} )
                                   +  sum_{i=2}^{W}   ( L_{i,i-1} + G_i / BW_{i,i-1} )

W devices, m micro-batches, A_i bytes of activations that device i sends on, G_i of gradients that
it sends back. Only the first micro-batch's transfers are exposed. m = 1 is model parallelism.

What is reconstructed: T_seq is the sequential step with the whole mini-batch; A_i and G_i are of
one micro-batch, as only the first one's transfers count; the gradient that crosses a cut has the
bytes of the activation that crossed it. Recomputation is not in the paper's equation.
"""

from __future__ import annotations

from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.link_table import LinkTable
from ddlbench.predict.prediction import (
    NO_HISTORY,
    History,
    Prediction,
    Predictor,
    joined,
    links_or_error,
)

__all__ = ["CPU_LIMIT", "DdlbenchEq2", "pipeline_limits"]

CPU_LIMIT = (
    "on CPU all partitions share one process and run one after the other: the model's speed-up "
    "and transfers do not exist there"
)


class DdlbenchEq2(Predictor):
    """The ideal pipeline, and the first micro-batch's transfers."""

    name: ClassVar[str] = "ddlbench-eq2"
    source: ClassVar[str] = "DDLBench, Eq. 2"

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module."""
        table = links_or_error(links, self.name)
        strategy, devices = strategy_of(cell.strategy), plan.processes[0].devices
        chunks = strategy.micro_batches(plan)
        micro_batch = cell.batch_size / chunks
        partitions = strategy.stage_blocks(workload, plan)
        there, remarks = table.chain("p2p", devices)
        back, _ = table.chain("p2p", devices[::-1])
        sizes = [micro_batch * blocks[-1].output_bytes for blocks in partitions[:-1]]
        exposed_s = sum(hop.time_s(size) for hop, size in zip(there, sizes, strict=True)) + sum(
            hop.time_s(size) for hop, size in zip(back, reversed(sizes), strict=True)
        )
        sequential = workload.step(cell.batch_size)
        workers = len(devices)
        factor = (workers + chunks - 1) / (workers * chunks)
        return Prediction(
            self.name,
            compute_s=sequential.step_s / workers,
            communication_s=chunks * exposed_s,
            exposed_communication_s=exposed_s,
            bubble_s=sequential.step_s * (factor - 1 / workers),
            limits=pipeline_limits(workload),
            notes=joined(sequential.remark, remarks),
            interval_s=sequential.interval(factor, exposed_s),
        )


def pipeline_limits(workload: Workload) -> tuple[str, ...]:
    """What the papers' pipeline equations leave out."""
    limits = ("partitions take equally long", "no recomputation of activations")
    return (*limits, CPU_LIMIT) if workload.device_kind == "cpu" else limits
