"""The thesis' alternative: measure on one node, extrapolate to N.

::

    T(N nodes) = T(1 node) (B / W) / (B_1 / W_1)

A node's step is measured with all its devices; N nodes are taken to be N times as fast. What is
reconstructed: the equation and the scaling by share; the thesis is quoted for the idea only.
"""

from __future__ import annotations

from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import workers_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.link_table import LinkTable
from ddlbench.predict.prediction import (
    NO_HISTORY,
    History,
    NotPredictable,
    Prediction,
    Predictor,
    joined,
)
from ddlbench.predict.predictors.scaling import carried_s, same_but_size

__all__ = ["HardwareExtrapolation"]


class HardwareExtrapolation(Predictor):
    """Every further node is as fast as the measured one."""

    name: ClassVar[str] = "hardware-extrapolation"
    source: ClassVar[str] = "thesis, alternative: from one node"
    strategies: ClassVar[tuple[str, ...] | None] = None

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module."""
        if cell.nodes < 2:
            raise NotPredictable("hardware extrapolation goes from one node to more than one")
        on_one = [
            m
            for m in same_but_size(cell, history)
            if m.cell.nodes == 1 and m.cell.devices_per_node == cell.devices_per_node
        ]
        if not on_one:
            raise NotPredictable(
                f"{cell.strategy} of {cell.network} on {cell.dataset} is not measured on one node "
                f"with {cell.devices_per_node} device(s)"
            )
        share = cell.batch_size / workers_of(cell)
        source = min(on_one, key=lambda m: abs(m.cell.batch_size / workers_of(m.cell) - share)).cell
        return Prediction(
            self.name,
            compute_s=carried_s(cell, source, on_one),
            limits=("the network between nodes costs nothing",),
            notes=joined(f"from {source.geometry}, batch {source.batch_size}"),
        )
