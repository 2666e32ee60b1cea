"""What every figure must satisfy: readable texts, on the page, that do not overlap."""

from __future__ import annotations

import itertools

from matplotlib.text import Text

from ddlbench.report.style import MIN_PT


def texts_of(figure):
    """Every text that is drawn; axes keep the labels of ticks that are out of sight."""
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            room = 1e-9 * (high - low)
            for all_ticks, used in (
                (axis.majorTicks, axis.get_major_ticks()),
                (axis.minorTicks, axis.get_minor_ticks()),
            ):
                for tick in all_ticks:
                    if tick not in used or not low - room <= tick.get_loc() <= high + room:
                        hidden |= {tick.label1, tick.label2}
    return [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in hidden
    ]


def of(figure, gid):
    """Artists of one kind."""
    return [artist for artist in figure.findobj() if artist.get_gid() == gid]


def assert_readable(figure):
    """No text is too small or off the page."""
    renderer = figure.canvas.get_renderer()
    page = figure.bbox
    for text in texts_of(figure):
        assert text.get_fontsize() >= MIN_PT, text.get_text()
        box = text.get_window_extent(renderer)
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= page.x1 + 1 and box.y1 <= page.y1 + 1
        assert inside, (text.get_text(), box, page)


def assert_no_overlap(figure):
    """No two texts that stand or lie overlap."""
    renderer = figure.canvas.get_renderer()
    texts = [text for text in texts_of(figure) if text.get_rotation() % 90 == 0]
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts]
    for (first, a), (second, b) in itertools.combinations(boxes, 2):
        wide = min(a.x1, b.x1) - max(a.x0, b.x0)
        high = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert min(wide, high) <= 2.0, (first, second, wide, high)  # pixels at 200 dpi: 0.25 mm
