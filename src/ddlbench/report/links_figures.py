"""The figures of one links.json, each with its PDF and its table beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddlbench.report.links_heatmap import draw_links
from ddlbench.report.links_sweep import draw_sweeps
from ddlbench.report.style import save_figure, style
from ddlbench.report.tables import write_table

__all__ = ["make_links_figures"]


def make_links_figures(links: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write links.png (heat maps of pairs) and sweeps.png into ``folder``; returns the PNGs."""
    made = []
    for name, draw in (("links", draw_links), ("sweeps", draw_sweeps)):
        made.append(folder / f"{name}.png")
        with style():
            figure, plotted = draw(links)
            write_table(made[-1].with_suffix(".csv"), plotted)
            save_figure(figure, made[-1])
    return made
