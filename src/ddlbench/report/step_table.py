"""Every step of every cell in one long table."""

from __future__ import annotations

import logging
from pathlib import Path

import pandas as pd

from ddlbench.experiment.paths import RESULTS, cell_dir
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.columns import STEPS
from ddlbench.report.tables import conform

__all__ = ["COLUMNS", "collect_steps"]

COLUMNS = STEPS
_OWN = ("epoch", "step", "warmup", "step_s", "load_s", "loss")
_LOG = logging.getLogger(__name__)


def collect_steps(
    site_name: str, rows: list[MatrixRow], results_root: Path = RESULTS
) -> pd.DataFrame:
    """Put the ``steps.csv`` of all cells below each other; see :data:`COLUMNS`.

    Cells without one are left out; so is one that cannot be read, with a warning.
    """
    parts = [part for row in rows if (part := _of(row, site_name, results_root)) is not None]
    if not parts:
        return conform(pd.DataFrame(), STEPS)
    return pd.concat(parts, ignore_index=True)


def _of(row: MatrixRow, site: str, root: Path) -> pd.DataFrame | None:
    cell = row.cell
    path = root / cell_dir(site, cell.id).relative_to(RESULTS) / "steps.csv"
    if row.unsupported is not None or not path.is_file():
        return None
    try:
        own = pd.read_csv(path, dtype=str, keep_default_na=False)
        missing = set(_OWN) - set(own.columns)
        if missing:
            raise ValueError(f"no column {', '.join(sorted(missing))}")
        own = own.loc[:, list(_OWN)].assign(
            cell_id=cell.id,
            dataset=cell.dataset,
            network=cell.network,
            strategy=cell.strategy,
            geometry=cell.geometry,
            repeat=cell.repeat,
        )
        return conform(own, STEPS)
    except (ValueError, OSError) as error:  # pandas' parser errors are ValueErrors
        _LOG.warning("%s is left out: %s", path, error)
        return None
