"""Draw who holds what of a layer under each strategy: pictures for teaching.

::

         x: samples            w              y: samples
      [#][#][.][.]   -->   [ F x C ]   -->   [#][#][.][.]
      rows are image rows, columns are channels; a colour is a device
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from ddlbench.report.layout import Panel, PanelSize, Section, lay_out
from ddlbench.report.sharding_diagrams import (
    ALL,
    DEVICES,
    PICTURES,
    SAMPLES,
    SIDE,
    Held,
    Owners,
    Picture,
    one,
)
from ddlbench.report.style import GREY, MIN_PT, text_width_mm, wrapped

__all__ = ["draw"]

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
_WHOLE = "#E4E4E4"
_SCENE_MM = 29.0


def draw(strategy: str) -> Figure:
    """The picture of a strategy of :data:`PICTURES`."""
    picture = PICTURES[strategy]
    used = [0] if strategy == "serial" else list(range(DEVICES))
    legend = [(Patch(facecolor=_COLOURS[d], edgecolor="none"), f"device {d}") for d in used]
    sharing = _sharing(picture)
    if "all" in sharing:
        whole = Patch(facecolor=_WHOLE, edgecolor="none")
        legend.append((whole, picture.everyone))
    told = ["Stripes: both devices have the same values."] if "some" in sharing else []
    lines = _lines(picture)
    page = lay_out(
        picture.question,
        [*legend],
        [Section("", [Panel("")])],
        footer=[*told, "After ParaDL (Kahira et al. 2021), Figure 2; nothing is measured."],
        size=PanelSize(
            min_width=160.0, height=_SCENE_MM + 3.4 * len(lines), left=1.0, between=0.0, right=1.0,
            bottom=lambda _: 1.0,
        ),
        share_y=False,
    )  # fmt: skip
    axes = page.axes[0][0]
    height = _SCENE_MM + 3.4 * len(lines)
    axes.set_axis_off()
    axes.grid(visible=False)
    axes.set_xlim(0, page.width_mm)
    axes.set_ylim(0, height)
    _scene(axes, picture, foot=height - 25.0)
    _write(axes, lines, top=height - 30.0)
    return page.figure


def _sharing(picture: Picture) -> set[str]:
    """Whether something is held by "all" devices, or by "some" together."""
    if picture.layers:
        return set()
    places = [(n, r, c) for n in range(SAMPLES) for r in range(SIDE) for c in range(SIDE)]
    held = {
        owners(*place)
        for owners in (picture.inputs, picture.weights, picture.outputs)
        for place in places
    }
    return {"all" if one == ALL else "some" for one in held if len(one) > 1}


def _lines(picture: Picture) -> list[tuple[str, str]]:
    """Name of each sentence on its first line, and the sentence in lines that fit."""
    made = []
    for name, sentence in picture.told:
        for number, line in enumerate(wrapped(sentence, 135.0)):
            made.append(("" if number else name, line))
    return made


def _write(axes: Axes, lines: list[tuple[str, str]], top: float) -> None:
    for number, (name, line) in enumerate(lines):
        y = top - 3.4 * number
        axes.text(0, y, name, va="top", fontsize=MIN_PT, fontweight="bold", gid="name")
        axes.text(26, y, line, va="top", fontsize=MIN_PT, gid="sentence")


def _scene(axes: Axes, picture: Picture, foot: float) -> None:
    if picture.layers:
        _pipeline(axes, foot)
        return
    left = 8.0
    _tiles(axes, (left, foot), picture.inputs, "x: 4 samples", "channels")
    _arrow(axes, 71.5, 76.0, foot)
    _grid(axes, 80.0, foot + 3.0, 14.0, lambda row, column: picture.weights(0, row, column))
    axes.text(87.0, foot + 20.5, "w: weights", ha="center", fontsize=MIN_PT)
    axes.text(87.0, foot - 0.3, "channels", ha="center", va="center", fontsize=MIN_PT, color=GREY)
    axes.text(
        78.8, foot + 10.0, "filters", rotation=90, ha="center", va="center", fontsize=MIN_PT,
        color=GREY,
    )  # fmt: skip
    _arrow(axes, 96.0, 102.0, foot)
    _tiles(axes, (106.0, foot), picture.outputs, "y: 4 samples, as computed", "filters")


def _tiles(axes: Axes, at: tuple[float, float], held: Held, name: str, columns: str) -> None:
    """Four samples side by side."""
    (left, foot), side, gap = at, 14.0, 2.0
    for sample in range(SAMPLES):
        x = left + sample * (side + gap)

        def owners(row: int, column: int, sample: int = sample) -> Owners:
            return held(sample, row, column)

        _grid(axes, x, foot + 3.0, side, owners)
    middle = left + (SAMPLES * (side + gap) - gap) / 2
    axes.text(middle, foot + 20.5, name, ha="center", fontsize=MIN_PT)
    axes.text(middle, foot - 0.3, columns, ha="center", va="center", fontsize=MIN_PT, color=GREY)
    axes.text(
        left - 1.8, foot + 10.0, "rows", rotation=90, ha="center", va="center",
        fontsize=MIN_PT, color=GREY,
    )  # fmt: skip


def _grid(
    axes: Axes, left: float, foot: float, side: float, owners: Callable[[int, int], Owners]
) -> None:
    """Cells of a square, the first row on top; a cell of several devices is striped."""
    step = side / SIDE
    for row in range(SIDE):
        for column in range(SIDE):
            held = sorted(owners(row, column))
            x, y = left + column * step, foot + side - (row + 1) * step
            if len(held) == DEVICES:
                _box(axes, (x, y), step, step, _WHOLE)
                continue
            for place, device in enumerate(held):
                width = step / len(held)
                _box(axes, (x + place * width, y), width, step, _COLOURS[device])
            axes.add_patch(
                Rectangle((x, y), step, step, facecolor="none", edgecolor="white", linewidth=0.6)
            )


def _box(axes: Axes, at: tuple[float, float], width: float, height: float, colour: str) -> None:
    edge = "white" if colour == _WHOLE else "none"
    axes.add_patch(Rectangle(at, width, height, facecolor=colour, edgecolor=edge, linewidth=0.6))


def _arrow(axes: Axes, start: float, end: float, foot: float) -> None:
    axes.add_patch(
        FancyArrowPatch(
            (start, foot + 10.0), (end, foot + 10.0), arrowstyle="-|>", mutation_scale=6,
            linewidth=0.8, color=GREY, shrinkA=0, shrinkB=0,
        )
    )  # fmt: skip


def _pipeline(axes: Axes, foot: float) -> None:
    """Four stages, a layer each; activations go right, gradients left."""
    left, pitch, side = 14.0, 38.0, 14.0
    for stage in range(DEVICES):
        x = left + stage * pitch
        _grid(axes, x, foot + 3.0, side, partial(one, stage))
        axes.text(
            x + side / 2, foot + 20.5, f"layers of stage {stage}", ha="center", fontsize=MIN_PT
        )
        if stage + 1 < DEVICES:
            middle = x + side + (pitch - side) / 2
            for y, start, end, name in (
                (foot + 13.0, x + side + 1, x + pitch - 1, "output"),
                (foot + 7.0, x + pitch - 1, x + side + 1, "gradient"),
            ):
                axes.add_patch(
                    FancyArrowPatch(
                        (start, y), (end, y), arrowstyle="-|>", mutation_scale=6, linewidth=0.8,
                        color=GREY, shrinkA=0, shrinkB=0,
                    )
                )  # fmt: skip
                width = text_width_mm(name)
                axes.text(middle - width / 2, y + 0.8, name, fontsize=MIN_PT, color=GREY)
