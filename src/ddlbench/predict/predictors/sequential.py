"""The sequential statistical predictor (thesis, chapter 4).

A few batches are run and extrapolated over the epoch::

    T_epoch = (samples / b) * median step of a few batches of size b

Per step that is the profile's median step at the cell's batch, data loading included. What is
reconstructed: a batch size that the profile did not run is read off a line through those it ran.
"""

from __future__ import annotations

from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.workload import Workload
from ddlbench.predict.link_table import LinkTable
from ddlbench.predict.prediction import NO_HISTORY, History, Prediction, Predictor, joined

__all__ = ["Sequential"]


class Sequential(Predictor):
    """A sequential step takes as long as those of the profile."""

    name: ClassVar[str] = "sequential"
    source: ClassVar[str] = "thesis, ch. 4"

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module."""
        step = workload.step(cell.batch_size)
        return Prediction(
            self.name,
            compute_s=step.step_s,
            limits=("steps later in a run are as those of the profile",),
            notes=joined(step.remark),
            interval_s=step.interval(1.0, 0.0),
        )
