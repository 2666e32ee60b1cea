"""What the cells of an experiment took: one outcome a configuration, over its repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import RESULTS, result_file
from ddlbench.experiment.result import InvalidResult, Result, read_result
from ddlbench.experiment.statistics import median_interval
from ddlbench.experiment.status import Status
from ddlbench.planning.matrix import MatrixRow
from ddlbench.predict.prediction import History, Measured

__all__ = ["Outcome", "Steps", "base_step_s", "history_of", "measure", "measured_of"]

STEPS_FILE = "steps.csv"


@dataclass(frozen=True)
class Steps:
    """Median step over repeats, its interval, and how far repeats lie apart."""

    step_s: float
    low_s: float
    high_s: float
    repeats: int
    spread: float


@dataclass
class Outcome:
    """One configuration: a cell whatever its repeat.

    Args:
        cell: with repeat 0.
        base: its sequential base, with repeat 0; None where there is none.
        status: ``ok`` if any repeat is, else what its first repeat ended as, or ``not run``.
        step_s: repeat -> median step.
        within: interval of the median step within the only repeat.
        memory_bytes: peak of the fullest device, over repeats.
        wait_s: repeat -> seconds of a step in which the mean rank waits for others, servers apart;
            a repeat whose strategy cannot tell is left out.
    """

    cell: Cell
    base: Cell | None
    status: str = Status.NOT_RUN
    step_s: dict[int, float] = field(default_factory=dict)
    within: tuple[float, float] | None = None
    memory_bytes: int | None = None
    wait_s: dict[int, float] = field(default_factory=dict)

    def steps(self, without_first: bool = False) -> Steps | None:
        """Summarise the repeats; None where there are none (left)."""
        values = [s for repeat, s in self.step_s.items() if repeat > 0 or not without_first]
        if not values:
            return None
        nan = float("nan")
        if len(values) == 1:
            low, high = self.within or (nan, nan)
            return Steps(values[0], low, high, 1, nan)
        interval = median_interval(values)
        spread = (max(values) - min(values)) / interval.median
        return Steps(interval.median, interval.low, interval.high, len(values), spread)


def measure(rows: Sequence[MatrixRow], site: str, results_root: Path = RESULTS) -> list[Outcome]:
    """Read the results of an experiment's cells, in the order of its matrix.

    Cells that a strategy or the site cannot run are left out; those without a result are kept.

    Args:
        rows: the expanded matrix.
        site: name of the site that it ran on.
        results_root: the folder that holds ``<site>/cells``.
    """
    found: dict[str, Outcome] = {}
    for row in rows:
        if row.unsupported is not None:
            continue
        cell = row.cell.with_(repeat=0)
        base = Cell.from_id(row.base_id).with_(repeat=0) if row.base_id else None
        outcome = found.setdefault(cell.id, Outcome(cell, base))
        result = _result(_path(row.cell, site, results_root), row.cell)
        if result is None:
            continue
        if outcome.status != Status.OK:
            outcome.status = result.status
        timing = result.timing
        if result.status != Status.OK or timing is None or timing.step_s.median_s is None:
            continue
        step = timing.step_s
        outcome.step_s[row.cell.repeat] = timing.step_s.median_s
        outcome.within = None
        if step.low_s is not None and step.high_s is not None:
            outcome.within = (step.low_s, step.high_s)
        # A server mostly waits: that is no communication of a step.
        waits = [rank.communication_wait_s for rank in result.ranks if rank.role != "server"]
        told = [wait_s for wait_s in waits if wait_s is not None]
        if told and len(told) == len(waits):
            outcome.wait_s[row.cell.repeat] = fmean(told) / step.count
        peaks = [
            entry.peak_bytes
            for rank in result.ranks
            for entry in rank.memory
            if entry.peak_bytes is not None
        ]
        if peaks:
            known = [] if outcome.memory_bytes is None else [outcome.memory_bytes]
            outcome.memory_bytes = max(*peaks, *known, 0)
    return list(found.values())


def history_of(outcomes: Sequence[Outcome], site: str, results_root: Path = RESULTS) -> History:
    """Every measured repeat, as predictors that carry measurements on read them."""
    return tuple(
        Measured(cell, step_s, _path(cell, site, results_root).with_name(STEPS_FILE))
        for outcome in outcomes
        for repeat, step_s in outcome.step_s.items()
        for cell in [outcome.cell.with_(repeat=repeat)]
    )


def measured_of(dataset: str, network: str, site: str, results_root: Path = RESULTS) -> History:
    """Every measured cell of one network on one dataset, whichever experiment asked for it."""
    cells = results_root / result_file(site, "").parent.relative_to(RESULTS)
    folder = cells / dataset / network.replace(":", "@")
    rows = []
    for path in sorted(folder.glob("*/*/*/rep*/result.json")):
        try:
            cell = Cell.from_id(path.parent.relative_to(cells).as_posix())
        except ConfigError:  # not a cell of this version
            continue
        rows.append(MatrixRow(cell, None, None))
    return history_of(measure(rows, site, results_root), site, results_root)


def base_step_s(outcome: Outcome, outcomes: dict[str, Outcome]) -> float | None:
    """Median step of a configuration's sequential base; None where it was not measured."""
    base = outcomes.get(outcome.base.id) if outcome.base else None
    return median(base.step_s.values()) if base and base.step_s else None


def _path(cell: Cell, site: str, results_root: Path) -> Path:
    return results_root / result_file(site, cell.id).relative_to(RESULTS)


def _result(path: Path, cell: Cell) -> Result | None:
    """A readable result of this very cell, else None: the report says what is wrong with it."""
    if not path.is_file():
        return None
    try:
        result = read_result(path)
    except InvalidResult:
        return None
    if result.cell_id != cell.id or (result.status == Status.OK and result.timing is None):
        return None
    return result
