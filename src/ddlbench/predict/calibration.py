"""Calibration of the predictor ``ddlbench``: constants of a site that cannot be measured alone.

::

    measured - predicted  =  work (compute + bubble)  +  communication sent  +  step_s

    work             share    computation takes longer than on a quiet device: stragglers
    communication    share    messages cost more than in a sweep, hidden or not
    step_s           seconds  once a step: the framework, a barrier

Every strategy has constants of its own. They are fitted to relative errors, each with a normal
prior at 0, so that few cells change little::

    sum over cells ((y - x c) / 5 %)^2  +  sum over constants (c / prior)^2  ->  least

A prediction is never scored with constants that learnt from its cell: :func:`held_out` leaves out
all cells of its network, or of its geometry. A family of strategies has constants only if they
lower these errors; a few networks on a noisy machine teach what is true of them alone. From the
errors comes the interval: its ratio is the ceil(0.9 (n + 1))-th of n sorted errors, the quantile of
conformal prediction, over all cells of a family of strategies (one strategy has few). Cells of one
network err alike, so it may hold fewer than 90 % of new ones; :func:`scores` says how many.

No constant may turn a step around: work is at least -1/2, communication -1, step_s 0. The choice of
cells is greedily D-optimal: each further one raises the determinant of the information most
(Fedorov 1972).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge

from ddlbench.common.document import Document
from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Form
from ddlbench.common.quantities import counted
from ddlbench.common.statistics import grouped
from ddlbench.experiment.paths import RESULTS
from ddlbench.planning.strategy import known_strategy
from ddlbench.predict.prediction import DEFAULT_PREDICTOR, Prediction, joined

if TYPE_CHECKING:
    import pandas as pd

COVERAGE = 0.9
_VERSION = 1
_NOISE = 0.05  # relative, of one cell
_PRIORS = (0.2, 0.5, 0.05)  # of work, of communication, of step_s over a typical step
_LEAST = (-0.5, -1.0, 0.0)  # of each constant
_FEWEST = 3


@dataclass(frozen=True)
class CalibrationCell:
    """A predicted cell, and its measured step if it has one; seconds of a step.

    Args:
        work_s: predicted compute and bubble.
        sent_s: predicted communication, hidden or not.
        predicted_s, measured_s: the step.
    """

    cell_id: str
    strategy: str
    network: str
    geometry: str
    work_s: float
    sent_s: float
    predicted_s: float
    measured_s: float | None = None

    def row(self, scale_s: float, typical_s: float) -> np.ndarray:
        """Seconds that each constant adds, over ``scale_s``; step_s counts in typical steps."""
        return np.array([self.work_s, self.sent_s, typical_s]) / scale_s


@dataclass(frozen=True)
class Constants(Form):
    """What calibration has learnt of one strategy.

    Args:
        work, communication, step_s: see the module.
        ratio: measured and predicted steps differ by at most this factor in 90 % of held-out cells
            of its family; None where no cell could be held out.
        cells: ids of the cells that it learnt from.
    """

    strategy: str
    work: float
    """Share by which compute and bubble take longer than predicted."""
    communication: float
    """Further cost of messages, as a share of their time."""
    step_s: float
    """Further seconds of a step."""
    ratio: Annotated[float, Ge(1)] | None
    """90 % of held-out cells lie within this factor of their prediction; null: none could be held
    out."""
    cells: tuple[str, ...]
    """Cells that it learnt from; never scored with these constants."""

    @property
    def teaches(self) -> bool:
        """Whether predictions change by it."""
        return any((self.work, self.communication, self.step_s))

    def longer_s(self, work_s: float, sent_s: float) -> float:
        """Seconds by which a step is longer than predicted; below zero it is shorter."""
        return self.work * work_s + self.communication * sent_s + self.step_s

    def step_of(self, cell: CalibrationCell) -> float:
        return cell.predicted_s + self.longer_s(cell.work_s, cell.sent_s)


@dataclass(frozen=True)
class Calibration(Form):
    """The content of calibration.json."""

    site: str
    strategies: tuple[Constants, ...]
    schema_version: int = _VERSION

    def of(self, strategy: str) -> Constants | None:
        return next(
            (constants for constants in self.strategies if constants.strategy == strategy), None
        )


_DOCUMENT = Document(
    Calibration,
    _VERSION,
    "calibration",
    ConfigError,
    instead="make it anew: ddlbench calibrate, or delete it",
)


def cells_of(predictions: pd.DataFrame, predictor: str) -> list[CalibrationCell]:
    """The cells that a predictor has predicted, from a frame of predictions."""
    rows = predictions[
        (predictions["predictor"] == predictor) & predictions["predicted_step_s"].notna()
    ]
    return [
        CalibrationCell(
            cell_id=str(row["cell_id"]),
            strategy=str(row["strategy"]),
            network=str(row["network"]),
            geometry=f"{row['nodes']}x{row['devices_per_node']}",
            work_s=float(row["compute_s"]) + float(row["bubble_s"]),
            sent_s=float(row["communication_s"]),
            predicted_s=float(row["predicted_step_s"]),
            measured_s=measured_s if math.isfinite(measured_s) else None,
        )
        for row, measured_s in zip(
            rows.to_dict("records"), rows["measured_step_s"].astype(float).tolist(), strict=True
        )
    ]


def fit(strategy: str, cells: Sequence[CalibrationCell]) -> Constants:
    """The constants of one strategy; zeros where nothing was measured."""
    known = [(cell, cell.measured_s) for cell in cells if cell.measured_s is not None]
    typical_s = median(cell.predicted_s for cell in cells)
    rows = [cell.row(measured_s, typical_s) for cell, measured_s in known]
    errors = [1 - cell.predicted_s / measured_s for cell, measured_s in known]
    # The priors are further rows: each says that its constant is 0, give or take its width.
    left = np.vstack([*(row / _NOISE for row in rows), np.diag([1 / width for width in _PRIORS])])
    right = np.array([*(error / _NOISE for error in errors), 0.0, 0.0, 0.0])
    from scipy.optimize import lsq_linear  # noqa: PLC0415 - slow to import

    solved = lsq_linear(left, right, bounds=(_LEAST, np.inf)).x
    work, communication, steps = (float(value) for value in solved)
    ids = tuple(cell.cell_id for cell, _ in known)
    return Constants(strategy, work, communication, steps * typical_s, None, ids)


def held_out(
    cells: Sequence[CalibrationCell], group_of: Callable[[CalibrationCell], str]
) -> dict[str, float]:
    """Cell id -> step, by constants that learnt from the cells of all other groups.

    Empty where all measured cells are of one group.
    """
    groups = grouped((group_of(cell), cell) for cell in cells if cell.measured_s is not None)
    steps: dict[str, float] = {}
    for name, cells_of_group in groups.items():
        others = [cell for other, part in groups.items() if other != name for cell in part]
        if others:
            constants = fit(cells_of_group[0].strategy, others)
            steps |= {cell.cell_id: constants.step_of(cell) for cell in cells_of_group}
    return steps


def calibrate(site: str, cells: Iterable[CalibrationCell]) -> Calibration:
    """Constants of every strategy with at least three measured cells, each with its interval."""
    measured = grouped((cell.strategy, cell) for cell in cells if cell.measured_s is not None)
    enough = {
        name: cells_of_strategy
        for name, cells_of_strategy in measured.items()
        if len(cells_of_strategy) >= _FEWEST
    }
    everything = [cell for cells_of_strategy in enough.values() for cell in cells_of_strategy]
    families = {strategy: _family_of(strategy, everything) for strategy in enough}
    return Calibration(
        site,
        tuple(
            replace(constants_of(strategy, family), ratio=ratio_of(family))
            for strategy, family in families.items()
        ),
    )


def constants_of(strategy: str, family: Sequence[CalibrationCell]) -> Constants:
    """The constants of a strategy; zeros where those of its family help no held-out cell."""
    fitted = fit(strategy, [cell for cell in family if cell.strategy == strategy])
    help_others, _ = _judged(family)
    return fitted if help_others else replace(fitted, work=0.0, communication=0.0, step_s=0.0)


def _judged(family: Sequence[CalibrationCell]) -> tuple[bool, dict[str, float]]:
    """Whether constants help held-out cells of a family, and the steps that are predicted so.

    The constants are those of the strategy's other networks, or else geometries. They are taken to
    help where no cell can be held out.
    """
    steps: dict[str, float] = {}
    for cells in grouped((cell.strategy, cell) for cell in family).values():
        by_network = held_out(cells, lambda cell: cell.network)
        steps |= by_network or held_out(cells, lambda cell: cell.geometry)
    known = [cell for cell in family if cell.cell_id in steps]
    before = {cell.cell_id: cell.predicted_s for cell in known}
    help_others = not known or _mean_error(known, steps) < _mean_error(known, before)
    return help_others, steps if help_others else before


def _family_of(strategy: str, cells: Iterable[CalibrationCell]) -> list[CalibrationCell]:
    """The cells of the strategies of its family; those of a stranger are its own."""

    def family(name: str) -> str:
        return known_strategy(name).family

    return [cell for cell in cells if family(cell.strategy) == family(strategy)]


def ratio_of(cells: Sequence[CalibrationCell]) -> float | None:
    """The factor within which 90 % of a family's cells lie that were held out.

    Constants are of each strategy by itself, the factor is of all. With fewer than nine cells it is
    that of the worst one.
    """
    _, fitted_ratio = _judged(cells)
    ratios = sorted(
        max(
            fitted_ratio[cell.cell_id] / cell.measured_s,
            cell.measured_s / fitted_ratio[cell.cell_id],
        )
        for cell in cells
        if cell.measured_s is not None and cell.cell_id in fitted_ratio
    )
    if not ratios:
        return None
    return ratios[min(math.ceil(COVERAGE * (len(ratios) + 1)), len(ratios)) - 1]


def choose(cells: Sequence[CalibrationCell], count: int) -> list[CalibrationCell]:
    """The ``count`` cells that tell most of the constants, for each strategy in turn."""
    by_strategy = grouped((cell.strategy, cell) for cell in cells)
    information = {name: np.diag([width**-2 for width in _PRIORS]) for name in by_strategy}
    typical_s = {
        name: median(cell.predicted_s for cell in cells_of_strategy)
        for name, cells_of_strategy in by_strategy.items()
    }
    chosen: list[CalibrationCell] = []

    def gain(cell: CalibrationCell) -> float:
        row = cell.row(cell.predicted_s, typical_s[cell.strategy]) / _NOISE
        known = information[cell.strategy]
        return float(np.linalg.slogdet(known + np.outer(row, row))[1] - np.linalg.slogdet(known)[1])

    while len(chosen) < count and any(by_strategy.values()):
        best = max(
            (cell for cells_of_strategy in by_strategy.values() for cell in cells_of_strategy),
            key=gain,
        )
        row = best.row(best.predicted_s, typical_s[best.strategy]) / _NOISE
        information[best.strategy] = information[best.strategy] + np.outer(row, row)
        by_strategy[best.strategy].remove(best)
        chosen.append(best)
    return chosen


def calibrated(
    prediction: Prediction, strategy: str, calibration: Calibration | None
) -> Prediction:
    """A prediction of ``ddlbench`` with its strategy's constants, if it has any; 90 % interval."""
    constants = calibration.of(strategy) if calibration else None
    if constants is None or prediction.predictor != DEFAULT_PREDICTOR:
        return prediction
    work = 1 + constants.work
    compute_s, bubble_s = work * prediction.compute_s, work * prediction.bubble_s
    work_s = prediction.compute_s + prediction.bubble_s
    step_s = prediction.step_s + constants.longer_s(work_s, prediction.communication_s)
    exposed_s = step_s - compute_s - bubble_s
    corrected = replace(
        prediction,
        compute_s=compute_s + min(0.0, exposed_s),  # less than all messages cannot be exposed
        bubble_s=bubble_s,
        exposed_communication_s=max(0.0, exposed_s),
        notes=joined(
            prediction.notes, f"calibrated by {counted(len(constants.cells), 'cell')} measured here"
        ),
        interval_s=None,
    )
    if constants.ratio is None:
        return corrected
    return replace(corrected, interval_s=(step_s / constants.ratio, step_s * constants.ratio))


def calibration_file(site: str, results_root: Path = RESULTS) -> Path:
    """The calibration of a site; it need not be there."""
    return results_root / site / "calibration.json"


def write_calibration(calibration: Calibration, results_root: Path = RESULTS) -> Path:
    """Check and write the calibration of its site atomically; return its path."""
    path = calibration_file(calibration.site, results_root)
    _DOCUMENT.write(path, calibration)
    return path


def read_calibration(site: str, results_root: Path = RESULTS) -> Calibration | None:
    """The calibration of a site; None if it has none.

    Raises:
        ConfigError: the file is not of its form.
    """
    path = calibration_file(site, results_root)
    return _DOCUMENT.read(path) if path.is_file() else None


def scores(cells: Sequence[CalibrationCell]) -> pd.DataFrame:
    """Errors of each strategy: as predicted, with networks held out, with geometries held out.

    ``covered``: share of cells within the interval that the other networks' cells of the family
    give.
    """
    records: list[dict[str, Any]] = []
    measured = [cell for cell in cells if cell.measured_s is not None]
    by_strategy = grouped((cell.strategy, cell) for cell in measured)
    for strategy, cells_of_strategy in by_strategy.items():
        family = _family_of(strategy, measured)
        by_network = _taught(cells_of_strategy, family, lambda cell: cell.network)
        by_geometry = _taught(cells_of_strategy, family, lambda cell: cell.geometry)
        records.append(
            {
                "strategy": strategy,
                "n": len(cells_of_strategy),
                "as_predicted": _mean_error(
                    cells_of_strategy, {c.cell_id: c.predicted_s for c in cells_of_strategy}
                ),
                "networks_held_out": _mean_error(cells_of_strategy, by_network),
                "geometries_held_out": _mean_error(cells_of_strategy, by_geometry),
                "covered": _covered(cells_of_strategy, family, by_network),
            }
        )
    import pandas as pd  # noqa: PLC0415 - slow to import, and `recommend` needs no frame

    return pd.DataFrame(records)


def _mean_error(cells: Sequence[CalibrationCell], steps: dict[str, float]) -> float:
    errors = [
        abs(steps[cell.cell_id] / cell.measured_s - 1)
        for cell in cells
        if cell.measured_s is not None and cell.cell_id in steps
    ]
    return sum(errors) / len(errors) if errors else math.nan


def _taught(
    cells: Sequence[CalibrationCell],
    family: Sequence[CalibrationCell],
    group_of: Callable[[CalibrationCell], str],
) -> dict[str, float]:
    """Cell id -> step, as :func:`calibrate` predicts it that knows the other groups alone.

    ``cells`` are measured ones of one strategy, ``family`` those of all strategies of its family.
    """
    steps: dict[str, float] = {}
    for group in dict.fromkeys(map(group_of, cells)):
        others = [cell for cell in family if group_of(cell) != group]
        if any(cell.strategy == cells[0].strategy for cell in others):
            constants = constants_of(cells[0].strategy, others)
            steps |= {c.cell_id: constants.step_of(c) for c in cells if group_of(c) == group}
    return steps


def _covered(
    cells: Sequence[CalibrationCell], family: Sequence[CalibrationCell], steps: Mapping[str, float]
) -> float:
    """Share of ``own`` cells within the interval that the other networks of the family give.

    ``steps`` are predicted by these networks, too.
    """
    inside = []
    for network in dict.fromkeys(cell.network for cell in cells):
        ratio = ratio_of([cell for cell in family if cell.network != network])
        for cell in cells:
            known = cell.network == network and cell.cell_id in steps
            if ratio is not None and known and cell.measured_s is not None:
                step_s = steps[cell.cell_id]
                inside.append(step_s / ratio <= cell.measured_s <= step_s * ratio)
    return sum(inside) / len(inside) if inside else math.nan
