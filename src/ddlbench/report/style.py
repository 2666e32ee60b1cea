"""The style of all figures: sizes, fonts, units of axes, labels, and how a figure is saved."""

from __future__ import annotations

from ddlbench.report import plain_matplotlib  # noqa: F401 - before matplotlib is imported

# isort: split

import io
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

from ddlbench.common.document import whole_file
from ddlbench.common.statistics import TIMES, Unit, unit_for
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Status
from ddlbench.planning.labels import dataset_label, network_label
from ddlbench.planning.strategy import known_strategy
from ddlbench.report.looks import PARAMETERS, DatasetLook
from ddlbench.report.tables import rows_of

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
    with whole_file(out_png.with_suffix(".pdf")) as beside:
        figure.savefig(beside, format="pdf", metadata={"CreationDate": None})
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", metadata={"Software": None})
    with whole_file(out_png) as beside:
        beside.write_bytes(small_png(drawn.getvalue()))


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
    plain = FontProperties(
        family="DejaVu Sans", style="normal", variant="normal", weight="normal", stretch="normal"
    )
    text_path = TextPath((0, 0), text, size=size, prop=plain)
    # The same as `get_extents`, seven times faster: glyphs have a point at every extreme.
    x = text_path.vertices[text_path.codes != TextPath.CLOSEPOLY, 0]
    return float(x.max() - x.min()) / 72 / MM


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


_DEFAULTS = {
    field.name: field.default for field in fields(Cell) if field.name not in ("options", "repeat")
}


def case_title(case: Mapping[str, Any], *further: str, geometry: bool = True) -> str:
    """The network, dataset and geometry of a case, and what is known of it further."""
    where = [f"{case['nodes']}x{case['devices_per_node']}"] if geometry else []
    named = [network_label(case["network"]), dataset_label(case["dataset"]), *where, *further]
    return ", ".join(named)


def workers_label(workers: int) -> str:
    """``1 worker``, ``4 workers``."""
    return f"{workers} worker{'' if workers == 1 else 's'}"


def common_workers(workers: Iterable[int]) -> str:
    """``on 4 workers`` where all have that number; else nothing."""
    counts = set(workers)
    return f"on {workers_label(int(counts.pop()))}" if len(counts) == 1 else ""


def variant_labels(summary: pd.DataFrame, without: Collection[str] = ()) -> pd.Series:
    """Name the variant of each row, as "chunks 8, precision bf16"; empty if there is only one.

    Two cells of one dataset, network, strategy and geometry are variants if an option or another
    field differs. Then its value is written for all rows of the strategy, defaults included. What a
    row ran as, where its strategy's name says another thing, is always written.

    Args:
        summary: rows with ``configuration``.
        without: fields to ignore, as the figure shows them in another way.
    """
    values = [_values(str(row.configuration)) for row in rows_of(summary)]
    groups: dict[tuple[str, str, str, str], list[int]] = {}
    for place, row in enumerate(rows_of(summary)):
        groups.setdefault((row.dataset, row.network, row.strategy, row.geometry), []).append(place)
    differ: dict[str, list[str]] = {}
    for (_, _, strategy, _), places in groups.items():
        known = differ.setdefault(strategy, [])
        for name in dict.fromkeys(key for place in places for key in values[place]):
            if name in without:
                continue
            if len({values[place].get(name) for place in places}) > 1 and name not in known:
                known.append(name)
    texts = [
        ", ".join(
            f"{name} {_readable(values[place].get(name))}" for name in differ[str(row.strategy)]
        )
        for place, row in enumerate(rows_of(summary))
    ]
    if "ran_as" in summary:
        pairs = zip(texts, _ran_as(summary, list(groups.values())), strict=True)
        texts = [", ".join(filter(None, pair)) for pair in pairs]
    return pd.Series(texts, index=summary.index, dtype=object)


def _ran_as(summary: pd.DataFrame, groups: list[list[int]]) -> list[str]:
    """What each row ran as; of a strategy that ran as one thing a network, "64 or 96 samples"."""
    texts = [str(text) for text in summary["ran_as"]]
    strategies = [str(name) for name in summary["strategy"]]
    several = {strategies[group[0]] for group in groups if len({texts[at] for at in group}) > 1}
    either = {
        name: _either([text for of, text in zip(strategies, texts, strict=True) if of == name])
        for name in set(strategies) - several
    }
    return [either.get(of) or text for of, text in zip(strategies, texts, strict=True)]


_FEW_NUMBERS = 2


def _either(texts: list[str]) -> str:
    """``64 or 96 samples an update`` of texts that differ in their number only; else empty.

    A cell that did not run has no text.
    """
    parts = {text.partition(" ") for text in texts if text}
    numbers = sorted({number for number, _, _ in parts if number.isdigit()}, key=int)
    rests = {rest for _, _, rest in parts}
    if len(rests) != 1 or len(numbers) != len(parts):
        return ""
    spread = (
        " or ".join(numbers) if len(numbers) <= _FEW_NUMBERS else f"{numbers[0]} to {numbers[-1]}"
    )
    return f"{spread} {rests.pop()}"


def _values(configuration: str) -> dict[str, Any]:
    cell = Cell.from_id(f"{configuration}/rep0")
    placed = ("dataset", "network", "strategy", "nodes", "devices_per_node")
    values = {name: getattr(cell, name) for name in _DEFAULTS if name not in placed}
    return {**values, **known_strategy(cell.strategy).option_values(cell)}


def _readable(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


OUT_OF_MEMORY = "OOM"


def status_mark(status: str) -> str:
    """The text in place of a number for a cell of this status; empty if it was measured."""
    if status == Status.OK:
        return ""
    return OUT_OF_MEMORY if status == Status.OUT_OF_MEMORY else status


def speedup_mark(row: Any, speedup: float) -> str:
    """The text in place of a row's speed-up; empty if it has one."""
    status = str(row.status)
    if status != Status.OK or math.isfinite(speedup):
        return status_mark(status)
    return mark_without_speedup(str(row.no_speedup))


def mark_without_speedup(code: str, otherwise: str = "no base") -> str:
    """The text in place of a measured cell's speed-up, by the code of why there is none."""
    return code.replace("_", " ") or otherwise


def printed_name(figure: str) -> str:
    """A published figure as one cites it: ``DDLBench, Fig. 4`` of ``ddlbench/fig4``."""
    paper, _, name = figure.partition("/")
    papers = {"ddlbench": "DDLBench", "thesis": "Jansen 2020", "paradl": "ParaDL",
              "networking": "Cheng et al."}  # fmt: skip
    for short, long in (("fig", "Fig. "), ("table", "Table "), ("appendix", "Appendix ")):
        name = name.replace(short, long)
    return f"{papers.get(paper, paper)}, {name}"
