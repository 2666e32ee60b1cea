"""Bars and points with whiskers; a mark gives the reason where the number is missing.

::

      |        I
      |  I     #    O        one slot a bar; slots of a group touch,
      |  #  #  #    O        groups stand one slot apart
      |__#__#__#____M___
        group 1  group 2

A stale number is pale; signs stand above it. Where strategies stand side by side, each bar has its
strategy's marker at its foot, for readers who see no colours.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddlbench.report import plain_matplotlib  # noqa: F401 - before matplotlib is imported

# isort: split
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation

from ddlbench.report.footer import signs
from ddlbench.report.labels import DatasetLook, StrategyLook, strategy_look
from ddlbench.report.layout import PanelSize
from ddlbench.report.style import (
    CENTRED,
    GREY,
    LINE_MM,
    MM,
    PAGE_MM,
    bar_style,
    shade,
    text_width_mm,
    wrapped,
)
from ddlbench.report.tables import rows_of

GAP = 0.8
SLOT_MM = 2.7
_NARROWEST_MM = 30.0
_MOST_ROWS = 4
_FILL = 0.86
_WIDEST_MM = 6.0
_NUMBER_MM = 6.0  # a slot as wide has its number written above the bar


@dataclass(frozen=True)
class Bar:
    """One slot: a value with its interval, or the mark that says why there is none."""

    value: float
    low: float
    high: float
    colour: str
    look: DatasetLook
    mark: str = ""
    stale: bool = False
    signs: str = ""
    marker: str = ""


@dataclass(frozen=True)
class Group:
    """Bars side by side over one label; None is a slot the experiment does not select."""

    label: str
    bars: Sequence[Bar | None]


@dataclass(frozen=True)
class Beside:
    """Published values beside bars."""

    values: Mapping[tuple[int, int], float]
    """By the bar's group and its slot in the group."""
    span: float
    """Of the y axis, in its units."""


def bar_groups(
    part: pd.DataFrame,
    groups: Mapping[Any, str],
    looks: Mapping[Any, DatasetLook],
    values: Callable[[Any], tuple[float, float, float]],
    *,
    group: str = "network",
    slot: str = "dataset",
    without: str = "",
    marked: bool = False,
) -> list[Group]:
    """Groups of bars, in each a slot for each look.

    Args:
        part: rows with ``mark``, and the columns of their signs.
        groups: the label of each value of the column ``group``.
        looks: of each value of the column ``slot``.
        values: gives value, low and high of a row.
        group: column that says in which group the bar of a row stands.
        slot: column that says in which slot.
        without: signs that stand elsewhere, or nowhere.
        marked: bars have the marker of their strategy.
    """
    bars = {
        (getattr(row, group), getattr(row, slot)): Bar(
            *values(row),
            strategy_look(row.strategy).colour,
            looks[getattr(row, slot)],
            row.mark,
            row.stale,
            signs(row, without),
            strategy_look(row.strategy).marker if marked else "",
        )
        for row in rows_of(part)
    }
    return [
        Group(label, [bars.get((name, look)) for look in looks]) for name, label in groups.items()
    ]


def slots_width_mm(groups: int, members: int) -> float:
    """The least width at which marks of neighbouring slots do not touch."""
    return groups * (members + GAP) * SLOT_MM


def parts_of_page(groups: Sequence[Any], members: int, sides: float) -> list[list[Any]]:
    """As few equal parts of the groups as fit the width of a page; ``sides`` is beside the axes."""
    most = max(1, int((PAGE_MM - 3 - sides) / slots_width_mm(1, members)))
    size = math.ceil(len(groups) / math.ceil(len(groups) / most))
    return [list(groups[at : at + size]) for at in range(0, len(groups), size)]


def widest_labels(parts: Sequence[Sequence[str]]) -> list[str]:
    """At each place the widest label of all parts, for panels of one size."""
    places = itertools.zip_longest(*parts, fillvalue="")
    return [max(labels, key=text_width_mm) for labels in places]


_LONGEST_LINE = 18
"""Letters in a line of a group's label."""
_LETTER_MM = 2.4  # the height of a line of letters
_TURNED = (30, 60, 90)  # degrees
_LEFT_OF_FIRST_MM = 12.0  # from the first group to the edge of the page


def label_width_mm(labels: Sequence[str]) -> float:
    """The least width at which the labels of neighbouring groups do not touch."""
    widths = [_width_mm(_lines(label)) for label in labels]
    pairs = [(a + b) / 2 + 1.5 for a, b in itertools.pairwise(widths)]
    return len(labels) * max([*pairs, 0.8 * max(widths)])


def panel_size(
    labels: Sequence[str],
    members: int,
    panels: Sequence[int],
    *,
    left: float,
    between: float,
    right: float = 2.0,
) -> PanelSize:
    """Compute the size of panels of groups.

    Labels are horizontal if then at least two panels fit side by side and the page is not too long.
    Otherwise panels are as narrow as their marks allow, and labels are turned. ``members`` are the
    slots of a group, ``panels`` the number of panels of each section.
    """
    slots = max(slots_width_mm(len(labels), members), _NARROWEST_MM)
    width = max(slots, label_width_mm(labels))
    inner = PAGE_MM - 3 - left - right
    if width > inner:
        width = slots
    elif max(panels) > 1:
        columns = int((inner + between) / (width + between))
        if columns < 2 or sum(math.ceil(n / columns) for n in panels) > _MOST_ROWS:
            width = slots
    columns = max(1, int((inner + between) / (width + between)))
    rows = sum(math.ceil(n / columns) for n in panels)
    return PanelSize(
        min_width=width,
        height=34.0 if rows <= _MOST_ROWS else 27.0,
        left=left,
        between=between,
        right=right,
        bottom=lambda axes_mm: labels_height_mm(labels, axes_mm),
    )


def labels_height_mm(labels: Sequence[str], width_mm: float) -> float:
    """The space that :func:`write_labels` needs below axes of this width."""
    degrees, lines = _turn(labels, width_mm)
    turned = max(map(_width_mm, lines)) * math.sin(math.radians(degrees))
    return turned + 4.0 * max(map(len, lines))


def write_labels(axes: Axes, at: Sequence[float], labels: Sequence[str], width_mm: float) -> None:
    """Write a label at each x; labels that do not fit side by side are turned."""
    degrees, lines = _turn(labels, width_mm)
    axes.set_xticks(at, ["\n".join(each) for each in lines])
    axes.tick_params(axis="x", length=0)
    if degrees:
        turn_labels(axes, degrees)


def turn_labels(axes: Axes, degrees: float) -> None:
    """Turn the labels of the x axis, so that they do not touch."""
    for label in axes.get_xticklabels():
        label.set(rotation=degrees, ha="right", rotation_mode="anchor")


def _lines(label: str) -> list[str]:
    return textwrap.wrap(label, _LONGEST_LINE, break_on_hyphens=False)


def _width_mm(lines: Sequence[str]) -> float:
    return max(map(text_width_mm, lines), default=0.0)


def pitch_mm(labels: Sequence[str]) -> float:
    """The least distance of upright labels that do not touch."""
    return _thickness_mm(list(map(_lines, labels)))


def _thickness_mm(labels: Sequence[Sequence[str]]) -> float:
    return _LETTER_MM + LINE_MM * (max(map(len, labels)) - 1)


def _turn(labels: Sequence[str], width_mm: float) -> tuple[int, list[list[str]]]:
    """By how many degrees to turn labels below axes, so that they do not touch, and their lines.

    A turned label ends below its group, and reaches to the left of it; of the first ones, not over
    the edge of the page.
    """
    lines = list(map(_lines, labels))
    if label_width_mm(labels) <= width_mm:
        return 0, lines
    pitch = width_mm / len(labels)
    for of_label in (lines, [[label] for label in labels]):
        for degrees in _TURNED:
            down, aside = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
            apart = pitch * down >= _thickness_mm(of_label)
            left = [_width_mm(each) * aside - place * pitch for place, each in enumerate(of_label)]
            if apart and max(left) <= _LEFT_OF_FIRST_MM:
                return degrees, of_label
    return _TURNED[-1], [[label] for label in labels]


def ground(pad: float) -> dict[str, Any]:
    """White behind a text."""
    return {"facecolor": "white", "edgecolor": "none", "pad": pad}


def patch(colour: str, look: DatasetLook) -> Patch:
    """Make a legend's sample of a bar."""
    return Patch(**bar_style(colour, look))


def marked_patch(strategy: str, look: DatasetLook) -> tuple[Patch, Line2D, Line2D]:
    """Make a legend's sample of a strategy's bar that has its marker."""
    of_strategy = strategy_look(strategy)
    return patch(of_strategy.colour, look), *_bar_marker(of_strategy.marker)


_DISC_PT, _MARKER_PT = 5.6, 3.4
_MARKER_AT = 0.05  # above the foot, as a share of the axes


def _bar_marker(marker: str) -> tuple[Line2D, Line2D]:
    """A white disc and a strategy's marker on it, to be seen on every colour and hatch."""
    plain_style: dict[str, Any] = {"linestyle": "none", "markeredgewidth": 0.0}
    return (
        Line2D([], [], marker="o", markersize=_DISC_PT, color="white", **plain_style),
        Line2D([], [], marker=marker, markersize=_MARKER_PT, color="black", **plain_style),
    )


def hollow(colour: str = "black", marker: str = "D") -> Line2D:
    """The mark of a published value."""
    style: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": colour}
    return Line2D(
        [], [], linestyle="none", marker=marker, markersize=3.6, markeredgewidth=0.8, **style
    )


_BESIDE_PT = 7.0


def draw_published(axes: Axes, place: tuple[float, float], mark: Line2D) -> None:
    """Draw a published point, left of where a measured one of the same values would stand."""
    mark.set_data([place[0]], [place[1]])
    beside = ScaledTranslation(-_BESIDE_PT / 72, 0, axes.figure.dpi_scale_trans)
    mark.set(gid="published", zorder=4, transform=axes.transData + beside)
    axes.add_line(mark)


def top_of(groups: Sequence[Group]) -> float:
    """The upper end of the highest whisker; NaN without bars."""
    tops = [_top(bar) for group in groups for bar in group.bars if bar and not bar.mark]
    return max(tops, default=math.nan)


def slot_centre(place: int, slot: int, members: int, of: int) -> float:
    """The x of bar ``slot`` of group ``place``, which has ``of`` of at most ``members`` slots."""
    return place * (members + GAP) + GAP / 2 + (members - of) / 2 + slot + 0.5


def draw_groups(
    axes: Axes,
    groups: Sequence[Group],
    width_mm: float,
    number: Callable[[float], str],
    beside: Beside | None = None,
) -> None:
    """Draw all groups; ``number`` makes the texts above wide bars of their values.

    A number that would lie under a published value ``beside`` it stands at zero.
    """
    members = max(len(group.bars) for group in groups)
    pitch = members + GAP
    total = len(groups) * pitch
    slot_mm = width_mm / total
    fill = min(_FILL, _WIDEST_MM / slot_mm)
    texts = {
        (place, slot): number(bar.value) + bar.signs
        for place, group in enumerate(groups)
        for slot, bar in enumerate(group.bars)
        if bar is not None and not bar.mark
    }
    room = slot_mm if members > 1 else pitch * slot_mm
    fits = slot_mm >= _NUMBER_MM and max(map(text_width_mm, texts.values()), default=0.0) <= room
    axes.set_xlim(0, total)
    centres = [(place + 0.5) * pitch for place in range(len(groups))]
    write_labels(axes, centres, [group.label for group in groups], width_mm)
    for place, group in enumerate(groups):
        for slot, bar in enumerate(group.bars):
            if bar is not None and not bar.mark:
                x = slot_centre(place, slot, members, len(group.bars))
                foot = _foot(bar, beside, (place, slot))
                text = texts[place, slot] if fits else bar.signs
                _draw_bar(axes, x, bar, fill=fill, slot_mm=slot_mm, text=text, foot=foot)
        start = slot_centre(place, 0, members, len(group.bars)) - 0.5
        _draw_marks(axes, start, group, slot_mm)


def _top(bar: Bar) -> float:
    return bar.high if math.isfinite(bar.high) else bar.value


_NUMBER_SHARE = 0.12  # of the y axis: a number, and half a mark beyond it
_MARK_SHARE = 0.035


def _foot(bar: Bar, beside: Beside | None, at: tuple[int, int]) -> float:
    """Where the number of a bar begins: at its outer end, or beyond zero if a mark stands there.

    Of a bar too low for that, it stands above the mark.
    """
    hangs = bar.value < 0
    end = (bar.low if math.isfinite(bar.low) else bar.value) if hangs else _top(bar)
    if beside is None or at not in beside.values:
        return end
    published, mark = beside.values[at], _MARK_SHARE * beside.span
    beyond = end - published if hangs else published - end
    if not -mark < beyond < _NUMBER_SHARE * beside.span:
        return end
    if hangs:
        return max(0.0, _top(bar), published + mark)
    return 0.0 if end > (_NUMBER_SHARE + _MARK_SHARE) * beside.span else published + mark


def draw_beside(axes: Axes, beside: Beside, members: int) -> None:
    """Draw hollow marks of published values over groups of at most so many slots."""
    for (place, slot), value in beside.values.items():
        mark = hollow()
        mark.set_data([slot_centre(place, slot, members, members)], [value])
        mark.set(gid="published", zorder=6)
        axes.add_line(mark)


def _draw_bar(
    axes: Axes, x: float, bar: Bar, *, fill: float, slot_mm: float, text: str, foot: float
) -> None:
    look = bar_style(bar.colour, bar.look)
    if bar.stale:
        look["facecolor"] = shade(bar.colour, max(bar.look.white, 0.6))
        look["edgecolor"] = shade(bar.colour, 0.55)
    axes.bar(x, bar.value, width=fill, zorder=2, gid="bar", **look)
    if math.isfinite(bar.low) and math.isfinite(bar.high):
        below, above = max(bar.value - bar.low, 0.0), max(bar.high - bar.value, 0.0)
        colour = "#333333" if bar.colour != "#000000" else "#888888"
        axes.errorbar(
            x, bar.value, yerr=[[below], [above]], fmt="none", ecolor=colour, elinewidth=0.7,
            capsize=min(1.6, slot_mm * 0.45), capthick=0.7, zorder=3,
        )  # fmt: skip
    for part in _bar_marker(bar.marker) if bar.marker else ():
        part.set_data([x], [_MARKER_AT])
        part.set(gid="bar-marker", zorder=3, transform=axes.get_xaxis_transform())
        axes.add_line(part)
    if text:
        hangs = bar.value < 0
        below = hangs and foot < 0  # else it stands on the other side of zero
        axes.annotate(
            text, (x, foot), xytext=(0, -1.2 if below else 1.2), textcoords="offset points",
            ha="center", va="top" if below else "bottom", gid="number", zorder=4, bbox=ground(0.1),
        )  # fmt: skip


def _draw_marks(axes: Axes, start: float, group: Group, slot_mm: float) -> None:
    marks = [bar.mark if bar is not None else "" for bar in group.bars]
    left = start
    for mark, run in itertools.groupby(marks):
        right = left + len(list(run))
        if mark:
            _draw_mark(axes, left, right, mark, slot_mm)
        left = right


def _draw_mark(axes: Axes, left: float, right: float, mark: str, slot_mm: float) -> None:
    lying = text_width_mm(mark) + 0.6 <= (right - left) * slot_mm
    axes.plot(
        [left + 0.1, right - 0.1],
        [0, 0],
        transform=axes.get_xaxis_transform(),
        color=GREY,
        linewidth=1.6,
        solid_capstyle="butt",
        clip_on=False,
        zorder=4,
    )
    axes.text(
        (left + right) / 2,
        0.03,
        mark,
        transform=axes.get_xaxis_transform(),
        ha="center",
        va="bottom",
        rotation=0 if lying else 90,
        color=GREY,
        gid="mark",
        zorder=5,
        bbox=ground(0.2),
    )


def message(axes: Axes, text: str, width_mm: float) -> None:
    """Write into an empty panel the reason that all its cells share."""
    lines = wrapped(text, 0.9 * width_mm)
    height_mm = axes.get_window_extent().height / axes.figure.dpi / MM
    most = max(1, int(height_mm * 0.8 / LINE_MM))
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1] + " ..."]
    axes.text(
        0.5,
        0.5,
        "\n".join(lines),
        transform=axes.transAxes,
        color=GREY,
        gid="message",
        zorder=5,
        bbox=ground(1.0),
        **CENTRED,
    )


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Rows from top to bottom, one a label."""
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_yticks(range(len(labels)), labels)


def label_rows(axes: Axes, labels: Sequence[str], labelled: bool = True) -> None:
    """The same over an x axis with a grid, without ticks of the rows."""
    name_rows(axes, labels)
    axes.tick_params(axis="y", length=0, labelleft=labelled)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")


def write_in_row(axes: Axes, place: int, x: float, text: str, **style: Any) -> None:
    """Write into a row; ``x`` is a share of the axes."""
    axes.text(x, place, text, transform=axes.get_yaxis_transform(), va="center", **style)


PALE = 0.75


def draw_point(
    axes: Axes,
    at: tuple[float, float],
    look: StrategyLook,
    row: Any,
    *,
    size: float | None = None,
    without: str = "",
    fill: str = "full",
) -> None:
    """Draw the point of a row of the summary at (x, y); it is pale if ``row.stale``.

    ``fill`` is the part of the mark that is filled, by matplotlib's name.

    Signs of ``without`` stand elsewhere.
    """
    x, y = at
    axes.plot(
        [x], [y], linestyle="none", marker=look.marker, markersize=size, color=look.colour,
        markerfacecolor=shade(look.colour, PALE if row.stale else 0.0), fillstyle=fill, zorder=3,
        gid="point",
    )  # fmt: skip
    text = signs(row, without)
    if text:
        axes.annotate(
            text, (x, y), xytext=(2.5, 1.5), textcoords="offset points", ha="left", va="bottom",
            gid="point-mark",
        )  # fmt: skip


def draw_cross(axes: Axes, x: float, colour: str, place: int = 0, **style: Any) -> None:
    """Draw the mark of a missing point above the x axis; ``place`` stacks several."""
    axes.plot(
        [x], [0.04 + 0.06 * place], transform=axes.get_xaxis_transform(), linestyle="none",
        marker="x", markersize=3.5, color=colour, gid="mark", **style,
    )  # fmt: skip


def write_instead(
    axes: Axes, x: float, words: str, *, gid: str = "mark", y: float = 0.03, rotation: float = 90
) -> None:
    """Write above the x axis why there is no point; ``y`` is in axes fractions."""
    axes.text(
        x, y, words, transform=axes.get_xaxis_transform(), rotation=rotation,
        ha="center", va="bottom", color=GREY, gid=gid,
    )  # fmt: skip
