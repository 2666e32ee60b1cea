"""How a figure is made: drawn by its module, saved with the numbers that it shows."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from ddlbench.experiment.errors import ConfigError
from ddlbench.report.footer import Context
from ddlbench.report.selection import FIGURES
from ddlbench.report.style import save_figure, style
from ddlbench.report.tables import read_tables, write_table

__all__ = ["make_figure"]


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
    drawing = _drawing(name)
    tables = read_tables(tables_dir)
    with style():
        figure, plotted = drawing(tables, Context(site_description))
        write_table(out_png.with_suffix(".csv"), plotted)
        save_figure(figure, out_png)


def _drawing(name: str) -> Any:
    if name not in FIGURES:
        raise ConfigError(f"unknown figure {name!r}; known: {', '.join(FIGURES)}")
    module, _, function = FIGURES[name].draw.partition(":")
    return getattr(importlib.import_module(module), function)
