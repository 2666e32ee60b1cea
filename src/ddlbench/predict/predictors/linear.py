"""Baseline: linear speed-up, whatever the strategy.

::

    T = T_seq / W
"""

from __future__ import annotations

from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import workers_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.link_table import LinkTable
from ddlbench.predict.prediction import NO_HISTORY, History, Prediction, Predictor, joined

__all__ = ["Linear"]


class Linear(Predictor):
    """The sequential step with the whole mini-batch, over the number of devices that train."""

    name: ClassVar[str] = "linear"
    source: ClassVar[str] = "baseline"
    strategies: ClassVar[tuple[str, ...] | None] = None
    baseline: ClassVar[bool] = True

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module."""
        sequential, workers = workload.step(cell.batch_size), workers_of(cell)
        return Prediction(
            self.name,
            compute_s=sequential.step_s / workers,
            limits=("no communication", "no bubble"),
            notes=joined(sequential.remark),
            interval_s=sequential.interval(1 / workers, 0.0),
        )
