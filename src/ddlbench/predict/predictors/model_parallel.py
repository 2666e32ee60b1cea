"""Model parallelism: sequential compute, and every cut crossed twice.

::

    T = T_seq  +  sum_{i=1}^{W-1} 2 ( L_i + B A_i / BW_i )         one device works at a time

It is DDLBench's Eq. 2 with one micro-batch ("model parallelism = one micro-batch"), in which the
gradient that crosses a cut has the bytes of the activation.
"""

from __future__ import annotations

from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.workload import Workload
from ddlbench.predict.link_table import LinkTable
from ddlbench.predict.prediction import NO_HISTORY, History, Prediction, Predictor
from ddlbench.predict.predictors.ddlbench_eq2 import DdlbenchEq2

__all__ = ["ModelParallel"]


class ModelParallel(Predictor):
    """Eq. 2 with one micro-batch: nothing overlaps, so waiting is work elsewhere, not bubble."""

    name: ClassVar[str] = "model-parallel"
    source: ClassVar[str] = "DDLBench, Eq. 2 with one micro-batch"

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module."""
        ideal = DdlbenchEq2().predict(workload, links, plan, cell, history)
        return Prediction(
            self.name,
            compute_s=ideal.compute_s + ideal.bubble_s,
            communication_s=ideal.communication_s,
            exposed_communication_s=ideal.exposed_communication_s,
            limits=ideal.limits,
            notes=ideal.notes,
            interval_s=ideal.interval_s,
        )
