"""Sections of report.html, in the order in which a reader asks.

A section declares what it shows; one that has nothing to show is left out. A new section is a line
of :data:`SECTIONS`::

    PageSection("Slow links", "slow-links", tables=(slow_links,), figures=("links",))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ddlbench.report.page_tables import (
    PageInputs,
    PageTable,
    advice_text,
    advised,
    configurations,
    facts,
    files,
    reasons,
    speedups,
    waiting_for_data,
)
from ddlbench.report.registry import FigureKind

# What is no table: a macro of html_report.html of this name shows the value.
TEXTS: Mapping[str, Callable[[PageInputs], Any]] = {
    "advice": advice_text,
    "waiting": waiting_for_data,
    "plot": lambda _: True,
    "reasons": reasons,
    "facts": facts,
    "files": files,
    "slow": lambda inputs: inputs.slow,
}


@dataclass(frozen=True)
class PageSection:
    """One section.

    Args:
        title: at most eight words.
        anchor: of its address, as ``#speed-up``.
        texts: keys of :data:`TEXTS`, shown first.
        tables: functions that make a table, or None where there is nothing to show.
        figures: names in the registry of figures; of a strategy's figure, without the strategy.
        rest_of: kinds of figures, all of which are shown that no section names.
        folded: shown when the reader opens it.
    """

    title: str
    anchor: str
    texts: tuple[str, ...] = ()
    tables: tuple[Callable[[PageInputs], PageTable | None], ...] = ()
    figures: tuple[str, ...] = ()
    rest_of: tuple[FigureKind, ...] = ()
    folded: bool = False


SECTIONS = (
    PageSection("What to train with", "advice", texts=("advice",), tables=(advised,)),
    PageSection("Speed-up", "speed-up", tables=(speedups,), figures=("speedup",)),
    PageSection("Ranking of strategies", "choice", figures=("choice",)),
    PageSection("Scaling and pipelines", "scaling", figures=("scaling", "pipelines")),
    PageSection("Time", "time", texts=("waiting",), figures=("steps",)),
    PageSection(
        "Memory, traffic, utilisation",
        "memory-traffic-utilisation",
        figures=("memory", "traffic", "utilisation"),
    ),
    PageSection("Timelines", "timelines", figures=("timelines",)),
    PageSection("Slow ranks and nodes", "slow-ranks", texts=("slow",)),
    PageSection("Loss and accuracy", "learning", figures=("loss", "time_to_accuracy")),
    PageSection("Slower links", "links", figures=("latency", "bandwidth", "packet_loss")),
    PageSection("Further figures", "further", rest_of=("experiment",)),
    PageSection("Every configuration", "cells", texts=("plot",), tables=(configurations,)),
    PageSection("Without a measurement", "without-measurement", texts=("reasons",)),
    PageSection(
        "How good are the predictions?",
        "predictions",
        figures=("accuracy", "oracle", "conditions", "gpipe_step", "micro_batches"),
        rest_of=("prediction", "strategy"),
        folded=True,
    ),
    PageSection("What was measured", "measured", texts=("facts",), folded=True),
    PageSection("Files", "files", texts=("files",), folded=True),
)
