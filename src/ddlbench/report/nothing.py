"""A figure whose cells are not there yet: its title, and why it is empty."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ddlbench.report.layout import Panel, PanelSize, Section, lay_out

__all__ = ["nothing_to_show"]


def nothing_to_show(title: str, why: str, below: Sequence[str]) -> Figure:
    """Draw an empty panel below a sentence.

    Args:
        title: of the figure.
        why: what is missing.
        below: the footer.
    """
    size = PanelSize(
        min_width=60.0, height=4.0, left=4.0, between=0.0, right=2.0, bottom=lambda _: 1.0
    )
    section = Section(why, [Panel("")])
    page = lay_out(title, [], [section], footer=list(below), size=size, share_y=False)
    page.axes[0][0].set_axis_off()
    return page.figure
