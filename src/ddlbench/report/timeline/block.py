"""The rows and boxes of one panel of a timeline.

::

    row      | forward | backward       | update |     what the device does
    lanes               |-- bucket --|                 what runs meanwhile; only where there is any
                              |-- bucket --|
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from ddlbench.report.colours import KindLook, kind_look, shade
from ddlbench.report.style import GREY, MIN_PT, text_width_mm
from ddlbench.report.timeline.box import PASSES, WAIT, Box, Row, beside_lanes
from ddlbench.report.timeline.windows import Part

__all__ = ["Block", "row_heights_mm"]

_ROW_MM = 4.8
_LOW_ROW_MM = 3.5
_LANE_MM = 1.5
_MANY_ROWS = 16
_FILL = 0.84
_WAIT_FILL = 0.16
_EDGED_FROM_MM = 0.6  # a narrower box would be all edge
_HATCHED_WHITE = 0.6
_PALEST = 0.55


def row_heights_mm(rows: int, part: Part) -> list[float]:
    """Of many rows each is lower, but never too low for a number; a row's lanes are added."""
    lanes = [0] * rows
    for box, lane in beside_lanes(part.boxes).items():
        lanes[box.row] = max(lanes[box.row], lane + 1)
    return [_device_mm(rows) + count * _LANE_MM for count in lanes]


def _device_mm(rows: int) -> float:
    return _ROW_MM if rows <= _MANY_ROWS else _LOW_ROW_MM


class Block:
    """Rows under each other, in axes whose y is in millimetres from the top.

    Args:
        axes: to draw into.
        rows: the devices.
        part: what they did.
        top_mm: where the first row begins.
        mm_per_s: of the time axis.
    """

    def __init__(
        self, axes: Axes, rows: Sequence[Row], part: Part, top_mm: float, mm_per_s: float
    ) -> None:
        self._axes, self._rows, self._part = axes, rows, part
        self._mm_per_s, self._device_mm = mm_per_s, _device_mm(len(rows))
        self._tops_mm = [*accumulate(row_heights_mm(len(rows), part), initial=top_mm)]
        self._lanes = beside_lanes(part.boxes)

    def centre(self, row: int) -> float:
        """Where the middle of a row is, without its lanes."""
        return self._tops_mm[row] + self._device_mm / 2

    def draw(self, length_s: float) -> None:
        """All boxes, and where the part's mini-batches end if the axis goes on."""
        part = self._part
        for y in self._tops_mm:
            self._axes.plot([0, length_s], [y, y], color="#dddddd", linewidth=0.4, zorder=1)
        for box in part.boxes:
            self._draw_box(box, part.start_s, length_s)
        if part.length_s < 0.995 * length_s:
            self._axes.plot(
                [part.length_s] * 2,
                [self._tops_mm[0], self._tops_mm[-1]],
                color=GREY,
                linewidth=0.8,
                linestyle=(0, (1, 1)),
                zorder=4,
                gid="end",
            )

    def _draw_box(self, box: Box, zero_s: float, length_s: float) -> None:
        left = max(0.0, box.start_s - zero_s)
        width = min(length_s, box.end_s - zero_s) - left
        if width <= 0:
            return
        look = kind_look(box.kind)
        y, height = self._place(box)
        edged = width * self._mm_per_s >= _EDGED_FROM_MM and box.kind != WAIT
        ground = self._ground(box, look)
        self._axes.add_patch(
            Rectangle(
                (left, y - height / 2),
                width,
                height,
                facecolor=ground,
                edgecolor=look.colour if look.hatch else "white",
                hatch=look.hatch or None,
                linewidth=0.5 if edged else 0.0,
                gid=box.kind,
                zorder=2,
            )
        )
        text = str(box.number)
        if box.kind in PASSES and width * self._mm_per_s > text_width_mm(text) + 0.9:
            self._write(text, (left + width / 2, self.centre(box.row)), ground, look)

    def _place(self, box: Box) -> tuple[float, float]:
        """Middle and height of a box."""
        if box in self._lanes:
            below = self._device_mm + (self._lanes[box] + 0.5) * _LANE_MM
            return self._tops_mm[box.row] + below, _LANE_MM * _FILL
        fill = _WAIT_FILL if box.kind == WAIT else _FILL
        return self.centre(box.row), self._device_mm * fill

    def _ground(self, box: Box, look: KindLook) -> str:
        """A device's later stages are paler; what is hatched is pale."""
        white = _HATCHED_WHITE if look.hatch else 0.0
        stages = self._rows[box.row].stages
        if box.kind in PASSES and len(stages) > 1 and box.stage in stages:
            white = max(white, _PALEST * stages.index(box.stage) / (len(stages) - 1))
        return shade(look.colour, white)

    def _write(self, text: str, where: tuple[float, float], ground: str, look: KindLook) -> None:
        drawn = self._axes.text(
            *where,
            text,
            ha="center",
            va="center_baseline",
            fontsize=MIN_PT,
            color="black" if _is_light(ground) else "white",
            gid="number",
            zorder=3,
        )
        if look.hatch:
            drawn.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.3})


def _is_light(colour: str) -> bool:
    """By relative luminance (ITU-R BT.709)."""
    red, green, blue = to_rgb(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.45
