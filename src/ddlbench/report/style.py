"""The style of all figures: sizes, fonts, units of axes, labels, and how a figure is saved."""

from __future__ import annotations

from ddlbench.report import plain_matplotlib  # noqa: F401 - before matplotlib is imported

# isort: split

import io
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from PIL import Image

from ddlbench.common.document import whole_file
from ddlbench.common.quantities import TIMES, Unit, unit_for
from ddlbench.report.fonts import FAMILY, families_of, font_of, lacking
from ddlbench.report.labels import PARAMETERS, DatasetLook

MM = 1 / 25.4
COLUMN_MM = 85.0
PAGE_MM = 180.0
MIN_PT = 7.0
TITLE_PT = 9.0
LINE_MM = 3.0
GREY = "#555555"
CENTRED: dict[str, Any] = {"ha": "center", "va": "center"}
REFERENCE: dict[str, Any] = {"color": GREY, "linewidth": 0.6, "linestyle": (0, (4, 2))}
"""A line to compare with."""
DOTS: dict[str, Any] = {**REFERENCE, "linestyle": (0, (1, 1.5))}

_REPORTED: set[str] = set()
"""Signs that no font has, of figures so far."""
_LOG = logging.getLogger(__name__)
_COLOURS = 256  # of a picture: an index of a byte


@contextmanager
def style() -> Iterator[None]:
    """Set matplotlib's parameters for figures of the project, within the context."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(PARAMETERS)
        yield


def new_figure(width_mm: float, height_mm: float) -> Figure:
    """Make an empty figure that needs neither a display nor global state."""
    figure = Figure(figsize=(width_mm * MM, height_mm * MM))
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, out_png: Path) -> None:
    """Write the PNG and, beside it, the PDF, each atomically."""
    # In memory first: on a full disk matplotlib's PDF ends in an error that is no OSError.
    pdf, png = io.BytesIO(), io.BytesIO()
    missing = _set_fonts(figure) - _REPORTED
    if missing:
        _REPORTED.update(missing)
        signs = "".join(sorted(missing))
        _LOG.warning("no font of this machine has %s: each is drawn as a box", signs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a line per sign
        figure.savefig(pdf, format="pdf", metadata={"CreationDate": None})
        figure.savefig(png, format="png", metadata={"Software": None})
    for path, drawn in (
        (out_png.with_suffix(".pdf"), pdf.getvalue()),
        (out_png, small_png(png.getvalue())),
    ):
        with whole_file(path) as beside:
            beside.write_bytes(drawn)


def _set_fonts(figure: Figure) -> set[str]:
    """Give texts further families where they need some; returns the signs that none has."""
    missing = set()
    for text in figure.findobj(Text):
        families = families_of(text.get_text())
        if families != (FAMILY,):
            text.set_fontfamily(list(families))
        missing |= lacking(text.get_text(), families)
    return missing


def small_png(png: bytes) -> bytes:
    """The same opaque picture with at most 256 colours: a third of the bytes.

    A figure has few colours. The shades at the edges of letters are the many, and a shade moves by
    a few steps of 255 at most where they are more than a palette holds.
    """
    with Image.open(io.BytesIO(png)) as picture:
        resolution = picture.info.get("dpi")
        palette = picture.convert("RGB").quantize(
            _COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
        )
    made = io.BytesIO()
    kept = {} if resolution is None else {"dpi": resolution}
    palette.save(made, "PNG", optimize=True, **kept)
    return min(made.getvalue(), png, key=len)


@cache
def text_width_mm(text: str, size: float = MIN_PT) -> float:
    """Width of a line of text."""
    if not text.strip():
        return 0.0
    # Also outside `style`, so nothing is left to matplotlib's parameters.
    text_path = TextPath((0, 0), text, size=size, prop=font_of(text))
    # The same as `get_extents`, seven times faster: glyphs have a point at every extreme.
    x = text_path.vertices[text_path.codes != TextPath.CLOSEPOLY, 0]
    return float(x.max() - x.min()) / 72 / MM


def wrapped(text: str, width_mm: float, size: float = MIN_PT) -> list[str]:
    """Lines of ``text`` that fit into ``width_mm``; a longer word is broken."""
    lines: list[str] = []
    for word in (part for whole in text.split() for part in _parts(whole, width_mm, size)):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width_mm(longer, size) <= width_mm:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _parts(word: str, width_mm: float, size: float) -> Iterator[str]:
    """A word, or parts of it that fit into lines of their own."""
    while len(word) > 1 and text_width_mm(word, size) > width_mm:
        ends = range(len(word) - 1, 1, -1)
        end = next((end for end in ends if text_width_mm(word[:end], size) <= width_mm), 1)
        yield word[:end]
        word = word[end:]
    yield word


def seconds_axis(axes: Axes, top_s: float, label: str, headroom: float) -> None:
    """Scale the y axis from zero to ``headroom * top_s``, in a suitable unit.

    An axis without a bar (``top_s`` not above zero) has no ticks.
    """
    if not (math.isfinite(top_s) and top_s > 0):
        axes.set_ylim(0, 1)
        axes.set_yticks([])
        return
    unit = unit_for(top_s, TIMES)
    axes.set_ylim(0, headroom * top_s)
    ticks_in(unit, axes.yaxis, label, 5)


LOG_FROM = 30
"""An axis whose values lie further apart is logarithmic: the small ones would lie on its foot."""


def log_steps_axis(axes: Axes, low_s: float, high_s: float) -> None:
    """Make the x axis a logarithmic one of steps; each tick has its unit."""
    axes.set_xscale("log")
    axes.set_xlim(low_s, high_s)
    axes.xaxis.set_major_locator(LogLocator(10, numticks=5))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda step_s, _: unit_for(step_s, TIMES).text(step_s, ",.10g"))
    axes.set_xlabel("Step (log)", labelpad=1)


def ticks_in(unit: Unit, axis: Axis, label: str, most: int) -> None:
    """Label an axis in a unit, with ticks at round numbers.

    Args:
        unit: of the ticks.
        axis: its data are in the base of ``unit``.
        label: written before the unit.
        most: most intervals between ticks.
    """
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{unit.of(value):,g}"))
    axis.set_label_text(f"{label} ({unit.name})")
    axis.labelpad = 1


def plain(value: float, _: object) -> str:
    """Format a tick as a plain number."""
    return f"{value:g}"


def bar_style(colour: str, look: DatasetLook) -> dict[str, Any]:
    """Matplotlib's properties of a bar."""
    face = shade(colour, look.white)
    return {"facecolor": face, "edgecolor": colour, "hatch": look.hatch, "linewidth": 0.6}


def shade(colour: str, white: float) -> str:
    """``colour`` mixed with a share of white."""
    red, green, blue = to_rgb(colour)
    return to_hex((red + (1 - red) * white, green + (1 - green) * white, blue + (1 - blue) * white))
