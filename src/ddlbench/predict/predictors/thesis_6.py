"""Thesis Eq. 6.1 and 6.2: GPipe with measured partitions and micro-batches.

::

    T_comp = T_seq (W + m - 1) / (W m)                       T_seq at the micro-batch size (6.1)

    T_comm = 2 ( sum_{i=1}^{W-2} max_{j<=i} c_j                              fill            (6.2)
               + (m - (W-2)) max_j c_j                                       steady
               + sum_{i=2}^{W-1} max_{j>=i} c_j )                            drain
    c_j = L_j + mb A_j / BW_j       cut j of W-1; mb samples, A_j bytes a sample

    T = T_comp + T_comm, as torchgpipe was seen not to overlap the two.

T_seq at the micro-batch size is m sequential steps of mb samples each. What is reconstructed:
with fewer micro-batches than W-2 the steady term is taken as zero, where the equation would have
it below zero; L and BW are those of a point-to-point test between neighbouring devices.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from ddlbench.predict.predictors.ddlbench_eq2 import pipeline_limits

__all__ = ["Thesis6", "communication_s"]


class Thesis6(Predictor):
    """The ideal pipeline at the micro-batch size, and transfers that nothing hides."""

    name: ClassVar[str] = "thesis-6"
    source: ClassVar[str] = "thesis, Eq. 6.1 and 6.2"

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module."""
        strategy, devices = strategy_of(cell.strategy), plan.processes[0].devices
        workers, chunks = len(devices), strategy.micro_batches(plan)
        micro_batch = cell.batch_size / chunks
        partitions = strategy.stage_blocks(workload, plan)
        hops, remarks = links_or_error(links, self.name).chain("p2p", devices)
        cuts = [
            hop.time_s(micro_batch * blocks[-1].output_bytes)
            for hop, blocks in zip(hops, partitions[:-1], strict=True)
        ]
        transfers_s = communication_s(cuts, chunks)
        one = workload.step(micro_batch)
        sequential_s = chunks * one.step_s
        factor = (workers + chunks - 1) / (workers * chunks)
        return Prediction(
            self.name,
            compute_s=sequential_s / workers,
            communication_s=transfers_s,
            exposed_communication_s=transfers_s,
            bubble_s=sequential_s * (factor - 1 / workers),
            limits=pipeline_limits(workload),
            notes=joined(one.remark, remarks),
            interval_s=one.interval(chunks * factor, transfers_s),
        )


def communication_s(cuts_s: Sequence[float], chunks: int) -> float:
    """Eq. 6.2 for the times c_1 .. c_{W-1} of the cuts; zero for one device."""
    if not cuts_s:
        return 0.0
    workers = len(cuts_s) + 1
    fill = sum(max(cuts_s[:i]) for i in range(1, workers - 1))
    steady = max(0, chunks - (workers - 2)) * max(cuts_s)
    drain = sum(max(cuts_s[i - 1 :]) for i in range(2, workers))
    return 2 * (fill + steady + drain)
