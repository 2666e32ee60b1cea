"""Collects the tables of an experiment from its cells.

``measurements.csv`` has a row for every cell of the matrix, with or without a result: a record of
:mod:`.records`. ``steps.csv`` has a row for every step, ``validation.csv`` for every validated
epoch. :mod:`.summary` makes ``summary.csv`` of the first.
"""

from __future__ import annotations

import csv
import logging
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import RESULTS, cell_dir, result_file
from ddlbench.experiment.result import InvalidResult, cell_result
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.columns import MEASUREMENTS, STEPS, VALIDATION
from ddlbench.report.records import OF_CELL, records_of
from ddlbench.report.summary import summarise
from ddlbench.report.tables import Tables, frame_of, read_columns, typed_frame, write_table

_LOG = logging.getLogger(__name__)
_OWN = tuple(column for column in STEPS if column.name not in {"cell_id", *OF_CELL})


def collect(
    experiment: str, site_name: str, rows: list[MatrixRow], results_root: Path = RESULTS
) -> pd.DataFrame:
    """Collect the measurements of an experiment, in the order of its matrix; see :mod:`.columns`.

    ``results_root`` is the folder that holds ``<site>/cells``.
    """
    return frame_of(records_of(experiment, site_name, rows, results_root), MEASUREMENTS)


def collect_steps(
    site_name: str, rows: list[MatrixRow], results_root: Path = RESULTS
) -> pd.DataFrame:
    """Concatenate the ``steps.csv`` of all cells; see :data:`STEPS`.

    An unreadable file is left out with a warning.
    """
    # One table in the end: pandas takes milliseconds for each, and there may be thousands.
    fields: dict[str, list[Any]] = {column.name: [] for column in STEPS}
    for row in rows:
        own = _steps_of(row, site_name, results_root)
        if not own:
            continue
        count = len(own["step"])
        for name, values in fields.items():
            values.extend(own[name] if name in own else [_of_cell(row.cell, name)] * count)
    return typed_frame(fields, STEPS)


def _of_cell(cell: Cell, name: str) -> Any:
    return cell.id if name == "cell_id" else getattr(cell, name)


def _steps_of(row: MatrixRow, site: str, root: Path) -> dict[str, list[Any]]:
    """The columns of a cell's own file; none if it is missing or damaged."""
    path = root / cell_dir(site, row.cell.id).relative_to(RESULTS) / "steps.csv"
    if row.unsupported is not None or not path.is_file():
        return {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return read_columns(file, _OWN)
    except (ValueError, OverflowError, OSError, csv.Error) as error:
        _LOG.warning("%s is left out: %s", path, error)
        return {}


def collect_validation(
    site_name: str, rows: list[MatrixRow], results_root: Path = RESULTS
) -> pd.DataFrame:
    """Accuracies after every epoch of the cells that have a valid result; see :data:`VALIDATION`.

    A result that cannot be read is left out: ``measurements.csv`` says why.
    """
    records = []
    for row in rows:
        path = results_root / result_file(site_name, row.cell.id).relative_to(RESULTS)
        if not row.cell.validate:
            continue
        with suppress(InvalidResult):
            result = cell_result(path, site_name, row.cell.id)
            own = {name: _of_cell(row.cell, name) for name in ("cell_id", *OF_CELL)}
            records += [{**own, **asdict(one)} for one in result.validation] if result else []
    return frame_of(records, VALIDATION)


def make_tables(
    experiment: str, site: str, rows: list[MatrixRow], results_root: Path, out_dir: Path
) -> Tables:
    """Write the tables of measurements, summary, steps and validation into ``out_dir``."""
    measurements = collect(experiment, site, rows, results_root)
    tables = Tables(
        measurements,
        summarise(measurements),
        collect_steps(site, rows, results_root),
        collect_validation(site, rows, results_root),
    )
    for name, table in vars(tables).items():
        write_table(out_dir / f"{name}.csv", table)
    return tables
