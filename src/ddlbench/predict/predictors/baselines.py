"""Predictors without a model: they extrapolate what was measured.

In the equations, T is the time of a step, B the batch size and W the number of devices that train.
"""

from __future__ import annotations

import csv
import math
from itertools import islice
from operator import attrgetter
from pathlib import Path
from statistics import median

from ddlbench.common.quantities import counted
from ddlbench.common.statistics import round_means
from ddlbench.experiment.cell import OF_A_STEP, Cell
from ddlbench.experiment.registry import BASE
from ddlbench.planning.strategy import workers_of
from ddlbench.predict.prediction import (
    BuiltInPredictor,
    CellInputs,
    Measured,
    NotPredictable,
    Prediction,
    joined,
)
from ddlbench.predict.predictors.published import linear_speedup


class Linear(BuiltInPredictor):
    """Baseline: linear speed-up for every strategy.

    The sequential step with the whole mini-batch is divided by the number of devices that train::

        T = T_seq / W
    """

    name = "linear"
    source = "baseline"
    strategies = None
    baseline = True

    def model(self, inputs: CellInputs) -> Prediction:
        return linear_speedup(inputs, workers_of(inputs.cell), ("no communication", "no bubble"))


class CarryForward(BuiltInPredictor):
    """Baseline: perfect weak scaling from the smallest measured cell.

    ::

        T = T_small (B / W) / (B_small / W_small)

    The smallest cell is the measured cell of the same network, dataset, strategy, precision and
    threads with the fewest devices; a cell on the same fabric is preferred. It has fewer devices
    than the predicted cell.
    """

    name = "carry-forward"
    source = "baseline"
    strategies = None
    baseline = True

    def model(self, inputs: CellInputs) -> Prediction:
        cell = inputs.cell
        smaller = [m for m in _comparable(inputs) if m.cell.devices < cell.devices]
        if not smaller:
            raise NotPredictable(
                f"no smaller {cell.strategy} cell of {cell.network} on {cell.dataset} is measured"
            )
        smallest = min(
            smaller, key=lambda m: (m.cell.devices, m.cell.fabric != cell.fabric, m.cell.batch_size)
        ).cell
        note = None
        if smallest.fabric != cell.fabric:
            note = f"carried from fabric {smallest.fabric}"
        steps_s = [m.step_s for m in smaller if m.cell.with_(repeat=0) == smallest.with_(repeat=0)]
        return Prediction(
            self.name,
            compute_s=median(steps_s) * _worker_batch(cell) / _worker_batch(smallest),
            limits=("further devices cost nothing",),
            notes=joined(note, f"carried from {smallest.geometry}, batch {smallest.batch_size}"),
        )


class HardwareExtrapolation(BuiltInPredictor):
    """The thesis' alternative (section 8.3): run sequentially, assume how a strategy scales.

    One device trains sequentially. A strategy is assumed to scale as its schedule allows::

        T = T_1 (B / B_1) / S        S = W, of a pipeline W m / (m + W - 1), of model parallelism 1

    B_1 is the measured batch that is nearest to B. Reconstructed: the equation, and S. The thesis
    gives only the idea.
    """

    name = "hardware-extrapolation"
    source = "thesis, alternative: from one device"
    strategies = None

    def model(self, inputs: CellInputs) -> Prediction:
        cell = inputs.cell
        alone = _comparable(inputs, BASE)
        if cell.strategy == BASE or not alone:
            raise NotPredictable(
                f"sequential training of {cell.network} on {cell.dataset} is not measured, or is "
                "what is asked for"
            )
        source = min(alone, key=lambda m: abs(math.log(m.cell.batch_size / cell.batch_size))).cell
        scale = inputs.strategy.most_speedup(cell)
        steps_s = [m.step_s for m in alone if m.cell.batch_size == source.batch_size]
        return Prediction(
            self.name,
            compute_s=median(steps_s) * cell.batch_size / source.batch_size / scale,
            limits=("communication costs nothing", "stages take equally long"),
            notes=(f"from one device, batch {source.batch_size}",),
        )


FEW_STEPS = 10


class DataExtrapolation(BuiltInPredictor):
    """The thesis' alternative: run a few batches on the N nodes, extrapolate to the epoch.

    ::

        T = median of the first few measured steps of repeat 0

    Where a strategy communicates once in H steps, the median is of whole rounds of H. The other
    repeats, which are separate jobs, score it. A cell with a single repeat has
    no score. Reconstructed: the number of batches. The thesis gives only the idea.
    """

    name = "data-extrapolation"
    source = "thesis, alternative: a few batches on N nodes"
    strategies = None
    uses_first_repeat = True

    def model(self, inputs: CellInputs) -> Prediction:
        first = inputs.cell.with_(repeat=0)
        for measured in inputs.history:
            if measured.cell == first and measured.steps_file is not None:
                round_steps = inputs.strategy.round_steps(first)
                few = -(-FEW_STEPS // round_steps) * round_steps
                steps_s = _first_steps_s(measured.steps_file, few)
                if len(steps_s) >= round_steps:
                    return Prediction(
                        self.name,
                        compute_s=median(round_means(steps_s, round_steps).tolist()),
                        limits=("needs the whole machine for a short run",),
                        notes=(f"first {counted(len(steps_s), 'step')} of repeat 0",),
                    )
        raise NotPredictable("the cell's repeat 0 has no measured steps")


_OF_SIZE = {"nodes", "devices_per_node", "batch_size", "fabric"}
_comparable_fields = attrgetter(*(name for name in OF_A_STEP if name not in _OF_SIZE))


def _comparable(inputs: CellInputs, strategy: str = "") -> list[Measured]:
    """Measured cells that differ only in geometry, batch size, fabric, repeat and length of run.

    With a strategy: its cells of the same network and data, whatever their options.
    """
    cell = inputs.cell
    if strategy:
        cell = cell.with_(strategy=strategy, options=())
    fields = _comparable_fields(cell)
    return [m for m in inputs.history if _comparable_fields(m.cell) == fields]


def _worker_batch(cell: Cell) -> float:
    return cell.batch_size / workers_of(cell)


def _first_steps_s(path: Path, few: int) -> list[float]:
    if not path.is_file():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            measured = (float(row["step_s"]) for row in rows if int(row["warmup"]) == 0)
            return list(islice(measured, few))
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise NotPredictable(f"{path} cannot be read: {error}; measure the cell again") from None
