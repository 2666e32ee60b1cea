"""DDLBench Eq. 3: PipeDream (Jansen et al. 2020).

::

    T = T_seq / W

The partition is taken to be optimal, communication hidden, and start-up to vanish over an epoch.
T_seq is the sequential step with the whole mini-batch.
"""

from __future__ import annotations

from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.workload import Workload
from ddlbench.predict.link_table import LinkTable
from ddlbench.predict.prediction import NO_HISTORY, History, Prediction, Predictor, joined

__all__ = ["DdlbenchEq3"]


class DdlbenchEq3(Predictor):
    """Linear speed-up."""

    name: ClassVar[str] = "ddlbench-eq3"
    source: ClassVar[str] = "DDLBench, Eq. 3"

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module."""
        sequential = workload.step(cell.batch_size)
        return Prediction(
            self.name,
            compute_s=sequential.step_s / cell.devices,
            limits=("optimal partition", "no communication", "no start-up"),
            notes=joined(sequential.remark),
            interval_s=sequential.interval(1 / cell.devices, 0.0),
        )
