"""One look for all figures: sizes, fonts, and how a figure becomes files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

__all__ = [
    "COLUMN_MM",
    "GREY",
    "LINE_MM",
    "MIN_PT",
    "MM",
    "PAGE_MM",
    "TITLE_PT",
    "new_figure",
    "save_figure",
    "style",
    "text_width_mm",
    "wrapped",
]

MM = 1 / 25.4
COLUMN_MM = 85.0
PAGE_MM = 180.0
MIN_PT = 7.0
TITLE_PT = 9.0
LINE_MM = 3.0
GREY = "#555555"

_RC: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelsize": MIN_PT,
    "axes.linewidth": 0.5,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": MIN_PT + 0.5,
    "axes.unicode_minus": True,
    "figure.dpi": 200,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": MIN_PT,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.4,
    "hatch.linewidth": 0.5,
    "legend.fontsize": MIN_PT,
    "legend.frameon": False,
    "lines.linewidth": 1.0,
    "lines.markersize": 4.0,
    "pdf.fonttype": 42,
    "savefig.dpi": 200,
    "xtick.labelsize": MIN_PT,
    "xtick.major.size": 2.0,
    "xtick.major.width": 0.5,
    "xtick.minor.size": 0.0,
    "ytick.labelsize": MIN_PT,
    "ytick.major.size": 2.0,
    "ytick.major.width": 0.5,
    "ytick.minor.size": 0.0,
}


@contextmanager
def style() -> Iterator[None]:
    """Within it, matplotlib draws as all figures of the project do."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def new_figure(width_mm: float, height_mm: float) -> Figure:
    """Make an empty figure that draws without a display and without global state."""
    figure = Figure(figsize=(width_mm * MM, height_mm * MM))
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, out_png: Path) -> None:
    """Write the PNG and, beside it, the PDF; each appears whole or not at all."""
    out_png.parent.mkdir(parents=True, exist_ok=True)
    for path, kind, metadata in (
        (out_png.with_suffix(".pdf"), "pdf", {"CreationDate": None}),
        (out_png, "png", {"Software": None}),
    ):
        beside = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
        try:
            figure.savefig(beside, format=kind, metadata=metadata)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


@cache
def text_width_mm(text: str, size: float = MIN_PT) -> float:
    """How wide a line of text is drawn."""
    if not text.strip():
        return 0.0
    path = TextPath((0, 0), text, size=size, prop=FontProperties(family="DejaVu Sans"))
    return float(path.get_extents().width) / 72 / MM


def wrapped(text: str, width_mm: float, size: float = MIN_PT) -> list[str]:
    """Lines of ``text`` that fit into ``width_mm``; a longer word has a line of its own."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width_mm(longer, size) <= width_mm:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines
