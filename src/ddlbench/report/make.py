"""All tables of an experiment, in one call."""

from __future__ import annotations

from pathlib import Path

from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.measurements import collect
from ddlbench.report.step_table import collect_steps
from ddlbench.report.summary import summarise
from ddlbench.report.tables import Tables, write_table

__all__ = ["make_tables"]


def make_tables(
    experiment: str, site: str, rows: list[MatrixRow], results_root: Path, out_dir: Path
) -> Tables:
    """Write ``measurements.csv``, ``summary.csv`` and ``steps.csv`` into ``out_dir``.

    Args:
        experiment: its name.
        site: name of the site.
        rows: the expanded matrix.
        results_root: the folder that holds ``<site>/cells``.
        out_dir: normally :func:`ddlbench.experiment.paths.tables_dir`.

    """
    measurements = collect(experiment, site, rows, results_root)
    tables = Tables(measurements, summarise(measurements), collect_steps(site, rows, results_root))
    for name in ("measurements", "summary", "steps"):
        write_table(out_dir / f"{name}.csv", getattr(tables, name))
    return tables
