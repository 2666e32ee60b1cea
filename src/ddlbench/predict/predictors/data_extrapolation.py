"""The thesis' alternative: run a few batches on the N nodes themselves, extrapolate over the epoch.

::

    T = median of the first few measured steps of repeat 0

It is scored against the other repeats, which are separate jobs; with a single repeat it cannot be.
What is reconstructed: the number of batches; the thesis is quoted for the idea only.
"""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median
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
)

__all__ = ["FEW_STEPS", "DataExtrapolation"]

FEW_STEPS = 10


class DataExtrapolation(Predictor):
    """The run goes on as it began."""

    name: ClassVar[str] = "data-extrapolation"
    source: ClassVar[str] = "thesis, alternative: a few batches on N nodes"
    strategies: ClassVar[tuple[str, ...] | None] = None
    uses_first_repeat: ClassVar[bool] = True

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module."""
        first = cell.with_(repeat=0)
        for measured in history:
            if measured.cell == first and measured.steps_file is not None:
                steps_s = first_steps_s(measured.steps_file)
                if steps_s:
                    return Prediction(
                        self.name,
                        compute_s=median(steps_s),
                        limits=("needs the whole machine for a short run",),
                        notes=(f"first {len(steps_s)} steps of repeat 0",),
                    )
        raise NotPredictable("the cell's repeat 0 has no measured steps")


def first_steps_s(path: Path) -> list[float]:
    """Seconds of the first few steps after warm-up in a cell's steps.csv."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        measured = (float(row["step_s"]) for row in rows if int(row["warmup"]) == 0)
        return [seconds for _, seconds in zip(range(FEW_STEPS), measured, strict=False)]
