"""What report.html shows beside figures: tables, lists, sentences, and the plot to pick cells in.

Each is made of the tables of an experiment. The plot's script is ``page_plot.js``, written for this
page. The browser runs it and no other: the page's Content-Security-Policy names its digest.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from markupsafe import Markup

from ddlbench.common.quantities import duration_text, few, ratio_text
from ddlbench.common.schema import read_yaml
from ddlbench.common.screen import Column
from ddlbench.experiment.cell import Cell, short_names
from ddlbench.experiment.status import Status
from ddlbench.planning.labels import dataset_label, network_label, strategy_label
from ddlbench.predict.documents import Answer
from ddlbench.report.choice_tables import not_advised
from ddlbench.report.comparability import NOTE_BREAK
from ddlbench.report.footer import interval_words, is_set, marks
from ddlbench.report.labels import input_bound, other_settings, strategy_look, variant_labels
from ddlbench.report.tables import Tables
from ddlbench.report.terminal import (
    advice,
    answers_at,
    numbers_of,
    speedup_table,
    telling_rows,
)

_FEW_NAMES = 12
_FEW_ROWS = 20
_FEW_WAITS = 5
_BELOW_A_PLOT = 6
_MANY_ROWS = 1000
_NOT_YET = "not measured yet"


@dataclass(frozen=True)
class PageInputs:
    """What a section is made of."""

    folder: Path
    """Of the page; addresses of files are seen from it."""
    tables_dir: Path
    tables: Tables
    slow: Sequence[tuple[str, str]] = ()
    """Ranks and nodes that are slow, each with its evidence."""


@dataclass(frozen=True)
class PageTable:
    """A table with its notes.

    Args:
        name: of its element, as ``rows-of-cells``; unique on the page.
        columns: their headings.
        rows: texts.
        notes: sentences below it.
        state: the last column is a state with a reason, which may be long.
        count: what a row is, in the plural: ``configurations``.
        most_rows: that are shown before the reader opens it.
    """

    name: str
    columns: Sequence[Column]
    rows: Sequence[tuple[str, ...]]
    notes: Sequence[str] = ()
    state: bool = False
    count: str = "rows"
    most_rows: int = _FEW_ROWS

    @property
    def is_long(self) -> bool:
        return len(self.rows) > self.most_rows

    @property
    def is_huge(self) -> bool:
        """Whether its elements are made when the reader opens it, as a browser takes long."""
        return len(self.rows) > _MANY_ROWS

    @property
    def json(self) -> Markup:
        """The rows, to make elements of."""
        return embedded_json(list(self.rows))


def embedded_json(content: Any) -> Markup:
    """JSON that can stand in a script element: no text of it ends the element or begins another."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def advice_text(inputs: PageInputs) -> list[str]:
    """What to train with, in sentences."""
    none = "There is no advice: no case on several devices has a measurement or a profile."
    return advice(inputs.tables_dir) or [none]


_ADVISED = (
    Column("Dataset"), Column("Network"), Column("Devices"), Column("Batch", right=True),
    Column("Setting"), Column("Train with"), Column("Fastest", right=True),
    Column("Speed-up", right=True), Column("Step", right=True), Column("90 %", right=True),
    Column("By"),
)  # fmt: skip
_CASE = 5  # columns that name the case; those in which all cases are equal are left out


def advised(inputs: PageInputs) -> PageTable | None:
    """A row per case, with how sure the advice is; None without a case."""
    rows = [row for answer in answers_at(inputs.tables_dir) if (row := _advised(answer))]
    if not rows:
        return None
    note = (
        "Fastest: the chance to be the fastest of all strategies. 90 %: holds the step with this "
        "probability. By: whether the step is measured or predicted."
    )
    equal_in_all = [
        at < _CASE and len({row[at] for row in rows}) == 1 for at in range(len(_ADVISED))
    ]
    rows = [tuple("" if equal_in_all[at] else text for at, text in enumerate(row)) for row in rows]
    return PageTable("advised-cases", *_shown(_ADVISED, rows), notes=[note], count="cases")


def _advised(answer: Answer) -> tuple[str, ...] | None:
    chosen = next((c for c in answer["candidates"] if c["strategy"] == answer["recommended"]), None)
    if chosen is None:
        return None
    case = answer["case"]
    from ddlbench.predict.advice import chance_text, range_text  # noqa: PLC0415 - slow to import

    return (
        dataset_label(case["dataset"]),
        network_label(case["network"]),
        f"{case['nodes']}x{case['devices_per_node']}",
        str(case["batch_size"]),
        ", ".join(other_settings(case)),
        chosen["label"],
        chance_text(chosen["chance"]),
        "" if chosen["speedup"] is None else ratio_text(chosen["speedup"]),
        duration_text(chosen["step_s"]),
        range_text(*chosen["interval_s"]),
        chosen["basis"],
    )


def speedups(inputs: PageInputs) -> PageTable:
    """A row per network, a column per strategy."""
    summary = inputs.tables.summary
    columns, rows = speedup_table(*telling_rows(summary))
    notes = [
        "1 device: samples a second of sequential training. Above 1 is faster than that.",
        *not_advised(answers_at(inputs.tables_dir), summary),
    ]
    return PageTable("speed-ups", *_shown(columns, rows), notes=notes, count="cases")


def waiting_for_data(inputs: PageInputs) -> list[str]:
    """Which cells wait for their data, in a sentence."""
    rows = inputs.tables.summary.to_dict("records")
    waits = [(row, text) for row in rows if (text := input_bound(row))]
    if not waits:
        return []
    listed = "; ".join(
        f"{strategy_label(str(row['strategy']))} of {network_label(str(row['network']))} on "
        f"{dataset_label(str(row['dataset']))}, {row['geometry']}: {text}"
        for row, text in waits[:_FEW_WAITS]
    )
    left = len(waits) - _FEW_WAITS
    more = f"; and {left} more, which the table of configurations names" if left > 0 else ""
    return [f"Waiting for data: {listed}{more}."]


_CONFIGURATIONS = (
    Column("Dataset"), Column("Network"), Column("Strategy"), Column("Geometry"),
    Column("Batch", right=True), Column("Samples/s", right=True),
    Column("Speed-up (interval)", right=True), Column("Memory", right=True), Column("State"),
)  # fmt: skip


def configurations(inputs: PageInputs) -> PageTable:
    """One row per configuration; an empty number has its reason in the last column."""
    summary = inputs.tables.summary
    rows = [
        (
            dataset_label(str(row["dataset"])),
            network_label(str(row["network"])),
            strategy_label(str(row["strategy"]), variant),
            str(row["geometry"]),
            str(row["batch_size"]),
            *(numbers_of(row) if row["status"] == Status.OK else ("", "", "")),
            state_of(row),
        )
        for row, variant in zip(summary.to_dict("records"), variant_labels(summary), strict=True)
    ]
    words = interval_words(summary, ratio=True)
    notes = [*([f"In brackets: {words}."] if words else []), *marks(summary)]
    return PageTable(
        "configurations", _CONFIGURATIONS, rows, notes, state=True, count="configurations",
        most_rows=_BELOW_A_PLOT,
    )  # fmt: skip


_MARKS = ("noisy", "unsteady", "stale", "disturbed")


def state_of(row: Mapping[Hashable, Any]) -> str:
    """Status, marks, what it waits for, and the reason why it has no number."""
    parts = [str(row["status"]).replace("_", " ")]
    parts += [mark for mark in _MARKS if is_set(row[mark])]
    parts += filter(None, [input_bound(row), str(row["departure"] or "")])
    reason = row["reason"] if row["status"] != Status.NOT_RUN else ""
    return ", ".join(parts) + (f": {reason}" if reason else "")


def _shown(
    columns: Sequence[Column], rows: list[tuple[str, ...]]
) -> tuple[list[Column], list[tuple[str, ...]]]:
    """Columns that have a text, and what of the rows is in them."""
    kept = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    return [columns[at] for at in kept], [tuple(row[at] for at in kept) for row in rows]


def reasons(inputs: PageInputs) -> list[tuple[str, str, str, str]]:
    """State, reason, names of the cells, and address of the first one's log."""
    shown = inputs.tables.measurements
    shown = shown[~shown["status"].isin([Status.OK, Status.NOT_RUN])]
    rows = []
    for (status, reason), cells in shown.groupby(["status", "reason"], sort=False):
        names = short_names([Cell.from_id(name) for name in cells["cell_id"]])
        log = f"../cells/{cells['cell_id'].iloc[0]}/log.txt"
        log = quote(log) if (inputs.folder / log).is_file() else ""
        rows.append((str(status).replace("_", " "), str(reason), few(names, _FEW_NAMES), log))
    return rows


def facts(inputs: PageInputs) -> list[tuple[str, str]]:
    """What was measured, and on what."""
    summary = inputs.tables.summary

    def different(column: str, label: Any = str) -> str:
        values = dict.fromkeys(label(value) for value in summary[column] if not pd.isna(value))
        return ", ".join(value for value in values if value) or _NOT_YET

    processors = dict.fromkeys(
        model for text in summary["processors"] for model in str(text).split(NOTE_BREAK) if model
    )
    return [
        ("Devices", different("device_kind", lambda kind: str(kind).upper())),
        ("Processors", ", ".join(processors) or _NOT_YET),
        ("Nodes x devices", different("geometry")),
        ("Datasets", different("dataset", dataset_label)),
        ("Networks", different("network", network_label)),
        ("Strategies", different("strategy", strategy_label)),
        ("Samples a step", different("batch_size")),
        ("Settings", different("settings", lambda text: str(text).replace(",", ", "))),
        ("Repeats", different("repeats")),
    ]


def files(inputs: PageInputs) -> list[tuple[str, str, str]]:
    """Path, address and meaning of the tables that are there."""
    meanings = read_yaml(Path(__file__).with_name("html_report.yaml"))
    there = [(inputs.tables_dir / name, text) for name, text in meanings.items()]
    return [
        (str(file.relative_to(inputs.folder)), quote(file.relative_to(inputs.folder).as_posix()), t)
        for file, t in there
        if file.is_file()
    ]


SCRIPT = Path(__file__).with_name("page_plot.js")
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
    texts = {
        "strategy": ("Strategy", summary["strategy"].map(strategy_label)),
        "network": ("Network", summary["network"].map(network_label)),
        "geometry": ("Geometry", summary["geometry"]),
        "dataset": ("Dataset", summary["dataset"].map(dataset_label)),
        "status": ("Status", summary["status"].str.replace("_", " ")),
        "variant": ("Options", variant_labels(summary)),
        "precision": ("Precision", summary["precision"]),
        "fabric": ("Links", summary["fabric"]),
        "settings": ("Settings", summary["settings"]),
        "state": ("State", map(state_of, rows)),
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
