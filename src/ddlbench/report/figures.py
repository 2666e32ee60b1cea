"""Which figures there are, which an experiment has, and how one is made.

A figure is a module with ``draw(tables, context) -> (figure, table)`` and ``applicable(rows)``,
and a line in :data:`FIGURES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddlbench.experiment.errors import ConfigError
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.footer import Context
from ddlbench.report.style import save_figure, style
from ddlbench.report.tables import read_tables, write_table

__all__ = ["FIGURES", "figures_for", "make_figure"]

FIGURES: dict[str, str] = {
    "speedup": "ddlbench.report.speedup:draw",
    "memory": "ddlbench.report.memory:draw",
    "steps": "ddlbench.report.steps:draw",
    "scaling": "ddlbench.report.scaling:draw",
}


def figures_for(rows: Sequence[MatrixRow]) -> list[str]:
    """Names of the figures that a matrix has something to show in, known before it runs."""
    return [name for name in FIGURES if _attribute(name, "applicable")(rows)]


def make_figure(name: str, tables_dir: Path, out_png: Path, site_description: str = "") -> None:
    """Draw a figure: the PNG, and beside it a PDF and a CSV with the plotted numbers.

    Args:
        name: a key of :data:`FIGURES`.
        tables_dir: folder of the tables that ``make_tables`` wrote.
        out_png: where the figure goes; the others have its name.
        site_description: what the site is, for the footer.

    Raises:
        ConfigError: there is no such figure.

    """
    drawing = _attribute(name)
    tables = read_tables(tables_dir)
    with style():
        figure, plotted = drawing(tables, Context(site_description))
        write_table(out_png.with_suffix(".csv"), plotted)
        save_figure(figure, out_png)


def _attribute(name: str, attribute: str | None = None) -> Any:
    if name not in FIGURES:
        raise ConfigError(f"unknown figure {name!r}; known: {', '.join(FIGURES)}")
    module, _, drawing = FIGURES[name].partition(":")
    return getattr(importlib.import_module(module), attribute or drawing)
