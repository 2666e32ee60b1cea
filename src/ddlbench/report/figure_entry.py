"""One entry of the registry of figures: what draws it, from what, and its caption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ddlbench.common.entry_points import load_target
from ddlbench.report.applicability import Rows, anything_runs

FigureKind = Literal[
    "experiment",
    "prediction",
    "strategy",
    "links",
    "published",
    "cell",
    "schedule",
    "sharding",
    "choice",
    "sizes",
    "tuning",
    "choices",
    "transformer",
]


@dataclass(frozen=True)
class FigureEntry:
    """One figure.

    Args:
        kind: sets the arguments of the function:

            * ``experiment``: ``Tables``, ``Context``;
            * ``prediction``: ``Predicted``, ``Context``;
            * ``strategy``: ``Predicted``, ``Context``, a strategy's name; there is a figure for
              each predicted strategy, as ``deviation_horovod``;
            * ``links``: ``Links``;
            * ``published``: rows of a measured campaign, a ParaDL platform, their source;
            * ``cell``: a ``CellTimeline``; ``schedule``: a ``Lesson``; ``sharding``: the name of
              one of ParaDL's strategies;
            * ``choice``: the content of choice.json; ``tuning``: that of tuning.json;
            * ``sizes``: what ``ddlbench.predict.sizes.sizes_dict`` returns;
            * ``choices``: rows of a study's choices.csv;
            * ``transformer``: measured runs, predicted seconds, their source; or a platform.
        draw: ``module:function``; it returns ``(figure, table of the plotted numbers)``, or only
            the figure if it shows no numbers.
        applicable: whether a matrix has something to show; for the first two kinds.
        caption: for the HTML report: what the figure shows, and what to look at.
    """

    kind: FigureKind
    draw: str
    applicable: Callable[[Rows], bool] = anything_runs
    caption: str = ""

    @property
    def heading(self) -> str:
        """The first sentence of the caption, without its point; empty without a caption."""
        return self.caption.partition("\n\n")[0].partition(". ")[0].rstrip(".")

    def function(self) -> Callable[..., Any]:
        """Import the function that draws it.

        Raises:
            ConfigError: it cannot be imported.
        """
        return load_target("figure", self.draw)


@dataclass(frozen=True)
class ReportFigure:
    """A figure of an experiment.

    Args:
        name: of its files.
        entry: in the registry.
        strategy: that it is of, as ``deviation_horovod`` of Horovod; else empty.
    """

    name: str
    entry: FigureEntry
    strategy: str = ""
