"""The plot of report.html in which a reader picks cells: its data, and its script.

The script is ``page_plot.js``, written for this page. The browser runs it and no other: the page's
Content-Security-Policy names its digest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from ddlbench.experiment.status import Status
from ddlbench.planning.labels import dataset_label, network_label, strategy_label
from ddlbench.report.looks import strategy_look
from ddlbench.report.page_tables import embedded_json, state_of
from ddlbench.report.style import variant_labels

SCRIPT = Path(__file__).with_suffix(".js")
_DIGITS = 4

# Axes and lines of the hover: a column of the summary, its label, its unit.
NUMBERS = (
    ("samples_per_s", "Samples a second", "/s"),
    ("speedup", "Speed-up", "x"),
    ("step_median_s", "Step time", "s"),
    ("load_step_s", "Waiting for data in a step", "s"),
    ("peak_memory_bytes", "Memory of a device", "B"),
    ("sent_bytes", "Sent in a step", "B"),
    ("workers", "Devices", ""),
    ("batch_size", "Samples a step", ""),
)


@dataclass(frozen=True)
class Script:
    """Text of a script, and its source in a Content-Security-Policy."""

    text: Markup
    source: Markup


def plot_script() -> Script:
    """The script of the plot."""
    text = SCRIPT.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Script(Markup(text), Markup(f"'sha256-{digest}'"))


def plot_data(summary: pd.DataFrame) -> Markup:
    """The configurations, by column, as JSON that can stand in a script element.

    A text is a place in its column's list of values; a number that is not known is null.
    """
    rows = summary.to_dict("records")
    variants = variant_labels(summary)
    texts: dict[str, tuple[str, Iterable[str]]] = {
        "strategy": ("Strategy", _each(rows, lambda row: strategy_label(str(row["strategy"])))),
        "network": ("Network", _each(rows, lambda row: network_label(str(row["network"])))),
        "geometry": ("Geometry", _each(rows, lambda row: str(row["geometry"]))),
        "dataset": ("Dataset", _each(rows, lambda row: dataset_label(str(row["dataset"])))),
        "status": ("Status", _each(rows, lambda row: str(row["status"]).replace("_", " "))),
        "variant": ("Options", variants),
        "precision": ("Precision", _each(rows, lambda row: str(row["precision"]))),
        "fabric": ("Links", _each(rows, lambda row: str(row["fabric"]))),
        "settings": ("Settings", _each(rows, lambda row: str(row["settings"]))),
        "state": ("State", _each(rows, state_of)),
    }
    colours = {
        strategy_label(name): strategy_look(name).colour
        for name in dict.fromkeys(map(str, summary["strategy"]))
    }
    content = {
        "count": len(rows),
        "texts": [_pooled(name, label, list(each)) for name, (label, each) in texts.items()],
        "numbers": [
            {"name": name, "label": label, "unit": unit, "values": _numbers(rows, name)}
            for name, label, unit in NUMBERS
        ],
        "colours": colours,
    }
    return embedded_json(content)


def _each(
    rows: Iterable[Mapping[Hashable, Any]], text: Callable[[Mapping[Hashable, Any]], str]
) -> Iterable[str]:
    return (text(row) for row in rows)


def _pooled(name: str, label: str, values: list[str]) -> dict[str, Any]:
    places = {value: place for place, value in enumerate(dict.fromkeys(values))}
    return {
        "name": name,
        "label": label,
        "pool": list(places),
        "values": [places[value] for value in values],
    }


def _numbers(rows: Iterable[Mapping[Hashable, Any]], name: str) -> list[float | None]:
    of_settings = name in ("workers", "batch_size")
    return [
        float(f"{float(row[name]):.{_DIGITS}g}")
        if not pd.isna(row[name]) and (of_settings or row["status"] == Status.OK)
        else None
        for row in rows
    ]
