"""Diagrams for teaching: how each strategy shards a layer, and what it sends when.

::

         x: samples            w              y: samples
      [#][#][.][.]   -->   [ F x C ]   -->   [#][#][.][.]
      rows are image rows, columns are channels; a colour is a device

After Figure 2 of ParaDL (Kahira et al. 2021), for four devices. Communication is that of our
strategies. It equals their Table III, except for data+spatial: our all-reduce of gradients is over
all devices; theirs is within each node first, then between the node leaders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from ddlbench.common.schema import read_yaml
from ddlbench.predict.paradl.configuration import STRATEGIES
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out
from ddlbench.report.style import CENTRED, GREY, MIN_PT, text_width_mm, wrapped

DEVICES = 4
SAMPLES = 4
SIDE = 4
"""Image rows, and channels and filters, of the layer that is drawn."""

Owners = frozenset[int]
ALL: Owners = frozenset(range(DEVICES))
Held = Callable[[int, int, int], Owners]


@dataclass(frozen=True)
class Picture:
    """One strategy.

    Args:
        inputs, outputs: who computes with (sample, row, channel).
        weights: who holds (filter, channel); the first argument is not used.
        sentences: name and text: forward, backward, end of a step, what is held, limit.
        question: the title.
        layers: the stages of a pipeline are drawn instead of one layer.
        everyone: the legend of cells that all devices hold.
    """

    inputs: Held
    weights: Held
    outputs: Held
    sentences: tuple[tuple[str, str], ...]
    question: str
    layers: bool = False
    everyone: str = "every device, the same values"


def alone(device: int, *_: int) -> Owners:
    """That device alone, for any place."""
    return frozenset((device,))


# By its name in sharding.yaml: who holds (sample, row or filter, channel or filter).
_HELD: dict[str, Held] = {
    "all": lambda *_: ALL,
    "first": lambda *_: alone(0),
    "sample": lambda n, *_: alone(n),
    "second": lambda _n, row, _c: alone(row),
    "third": lambda _n, _r, column: alone(column),
    "group": lambda n, *_: frozenset((2 * (n // 2), 2 * (n // 2) + 1)),
    "half of second": lambda _n, row, _c: frozenset((row // 2, 2 + row // 2)),
    "group and second": lambda n, row, _c: alone(2 * (n // 2) + row // 2),
    "group and third": lambda n, _r, column: alone(2 * (n // 2) + column // 2),
}


def _picture(held: list[str], sentences: dict[str, str], **values: Any) -> Picture:
    inputs, weights, outputs = (_HELD[name] for name in held)
    return Picture(inputs, weights, outputs, tuple(sentences.items()), **values)


PICTURES = {
    name: _picture(**values)
    for name, values in read_yaml(Path(__file__).with_suffix(".yaml")).items()
}
assert tuple(PICTURES) == STRATEGIES


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
    stripes = ["Stripes: both devices have the same values."] if "some" in sharing else []
    lines = _lines(picture)
    height = _SCENE_MM + 3.4 * len(lines)
    page = lay_out(
        picture.question,
        [*legend],
        [Section("", [Panel("")])],
        footer=[*stripes, "After ParaDL (Kahira et al. 2021), Figure 2; nothing is measured."],
        size=PanelSize(160.0, height, left=1.0, between=0.0, right=1.0, bottom=1.0),
    )
    ((axes,),) = page.axes
    axes.set_axis_off()
    axes.grid(visible=False)
    axes.set_xlim(0, page.width_mm)
    axes.set_ylim(0, height)
    _scene(axes, picture, foot=height - 25.0)
    for number, (name, line) in enumerate(lines):
        y = height - 30.0 - 3.4 * number
        axes.text(0, y, name, va="top", fontweight="bold", gid="name")
        axes.text(26, y, line, va="top", gid="sentence")
    return page.figure


def _sharing(picture: Picture) -> set[str]:
    """Who shares values: "all" devices, "some" of them, or both in different places."""
    if picture.layers:
        return set()
    places = [(n, r, c) for n in range(SAMPLES) for r in range(SIDE) for c in range(SIDE)]
    held = {
        owners(*place)
        for owners in (picture.inputs, picture.weights, picture.outputs)
        for place in places
    }
    return {"all" if holders == ALL else "some" for holders in held if len(holders) > 1}


def _lines(picture: Picture) -> list[tuple[str, str]]:
    """Wrap the sentences; the name of each stands on its first line."""
    made = []
    for name, sentence in picture.sentences:
        for number, line in enumerate(wrapped(sentence, 135.0)):
            made.append(("" if number else name, line))
    return made


def _scene(axes: Axes, picture: Picture, foot: float) -> None:
    if picture.layers:
        _pipeline(axes, foot)
        return
    _tiles(axes, (8.0, foot), picture.inputs, "x: 4 samples", "channels")
    _arrow(axes, 71.5, 76.0, foot + 10.0)
    _grid(axes, 80.0, foot + 3.0, 14.0, lambda row, column: picture.weights(0, row, column))
    axes.text(87.0, foot + 20.5, "w: weights", ha="center")
    axes.text(87.0, foot - 0.3, "channels", ha="center", va="center", color=GREY)
    axes.text(78.8, foot + 10.0, "filters", rotation=90, color=GREY, **CENTRED)
    _arrow(axes, 96.0, 102.0, foot + 10.0)
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
    axes.text(middle, foot + 20.5, name, ha="center")
    axes.text(middle, foot - 0.3, columns, ha="center", va="center", color=GREY)
    axes.text(left - 1.8, foot + 10.0, "rows", rotation=90, color=GREY, **CENTRED)


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


def _arrow(axes: Axes, start: float, end: float, y: float) -> None:
    axes.add_patch(
        FancyArrowPatch(
            (start, y), (end, y), arrowstyle="-|>", mutation_scale=6, linewidth=0.8, color=GREY,
            shrinkA=0, shrinkB=0,
        )
    )  # fmt: skip


def _pipeline(axes: Axes, foot: float) -> None:
    """Four stages, a layer each; activations go right, gradients left."""
    left, pitch, side = 14.0, 38.0, 14.0
    for stage in range(DEVICES):
        x = left + stage * pitch
        _grid(axes, x, foot + 3.0, side, partial(alone, stage))
        axes.text(
            x + side / 2, foot + 20.5, f"layers of stage {stage}", ha="center", fontsize=MIN_PT
        )
        if stage + 1 < DEVICES:
            middle = x + side + (pitch - side) / 2
            for y, start, end, name in (
                (foot + 13.0, x + side + 1, x + pitch - 1, "output"),
                (foot + 7.0, x + pitch - 1, x + side + 1, "gradient"),
            ):
                _arrow(axes, start, end, y)
                width = text_width_mm(name)
                axes.text(middle - width / 2, y + 0.8, name, color=GREY)
