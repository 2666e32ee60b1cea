"""Baseline: what the smallest measured size took, a device's share as long as it took there.

::

    T = T_small (B / W) / (B_small / W_small)

Small is the measured cell of the same network, dataset, strategy, precision and threads with the
fewest devices, on the same fabric where there is one. A cell of as many devices or more as the one
asked for is not smaller.
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
    NotPredictable,
    Prediction,
    Predictor,
    joined,
)
from ddlbench.predict.predictors.scaling import carried_s, same_but_size

__all__ = ["CarryForward"]


class CarryForward(Predictor):
    """Perfect weak scaling from the smallest measured size."""

    name: ClassVar[str] = "carry-forward"
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
        smaller = [m for m in same_but_size(cell, history) if m.cell.devices < cell.devices]
        if not smaller:
            raise NotPredictable(
                f"no smaller {cell.strategy} cell of {cell.network} on {cell.dataset} is measured"
            )
        smallest = min(
            smaller,
            key=lambda m: (m.cell.devices, m.cell.fabric != cell.fabric, m.cell.batch_size),
        ).cell
        note = None
        if smallest.fabric != cell.fabric:
            note = f"carried from fabric {smallest.fabric}"
        return Prediction(
            self.name,
            compute_s=carried_s(cell, smallest, smaller),
            limits=("further devices cost nothing",),
            notes=joined(note, f"carried from {smallest.geometry}, batch {smallest.batch_size}"),
        )
