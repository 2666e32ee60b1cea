"""What a terminal shows of an experiment: the state of each cell, the summary, and the advice."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.common.document import read_json
from ddlbench.common.errors import ConfigError, first_line
from ddlbench.common.quantities import duration_text, ratio_text, size_text, two_digits
from ddlbench.common.screen import Column, columns, paragraph, table, terminal_width
from ddlbench.experiment.cell import Cell, setting_text
from ddlbench.experiment.paths import ADVICE, result_file
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.result import DIVERGED
from ddlbench.experiment.status import Status
from ddlbench.planning.labels import dataset_label, network_label, strategy_label
from ddlbench.predict.documents import Answer
from ddlbench.report.footer import interval_words
from ddlbench.report.labels import case_title, mark_without_speedup, other_settings
from ddlbench.report.tables import read_tables, rows_of

_FEW_ROWS = 18
_SHORTER = 2 / 3
_OLD_BASE_S = 3600.0
_FEW_ANSWERS = 6  # with all of their sentences
_MOST_ANSWERS = 12
_DEFAULTS = {
    field.name: "" if field.default is MISSING else setting_text(field.default)
    for field in fields(Cell)
    if field.name != "options"
}
# What may tell two rows of one dataset, network and strategy apart.
_SAME = ["dataset", "network", "strategy"]
_DISTINGUISHING = ("geometry", "batch_size", "fabric", "precision", "settings")


def summary_lines(tables_dir: Path, *, every_row: bool = True) -> list[str]:
    """Speed, speed-up and memory of every configuration, or why there is none.

    Without ``every_row`` a long table is one line per network.
    """
    summary = read_tables(tables_dir).summary
    rows, differing = telling_rows(summary)
    heading = _SUMMARY
    compact = [] if every_row or len(rows) <= _FEW_ROWS else _compact_table(rows, differing)
    if compact:
        further = paragraph(f"All {len(rows)} rows with intervals and memory: --all.")
        return [heading, *compact, *further]
    words = interval_words(summary, ratio=True)
    further = paragraph(f"In brackets: {words}; without: too few runs or steps.") if words else []
    return [*_full_table(rows, differing), *further]


def telling_rows(summary: pd.DataFrame) -> tuple[list[dict[Hashable, Any]], list[str]]:
    """The rows of a table, and its columns that may tell two of them apart.

    Settings that differ are a column each, with the setting's name.
    """
    differing = telling_apart(summary)
    rows = with_telling_options(summary).to_dict("records")
    if "settings" not in differing:
        return rows, differing
    names = []
    written = [
        {pair.partition("=")[0]: pair.partition("=")[2] for pair in row["settings"].split(",")}
        for row in rows
    ]
    for name in dict.fromkeys(name for settings in written for name in settings):
        values = [settings.get(name, _DEFAULTS.get(name, "")) for settings in written]
        if len(set(values)) > 1:
            names.append(f"{_SETTING}{name}")
            for row, value in zip(rows, values, strict=True):
                row[names[-1]] = value
    return rows, [*(name for name in differing if name != "settings"), *names]


def telling_apart(summary: pd.DataFrame) -> list[str]:
    """Columns that may tell two rows of one dataset, network and strategy apart."""
    differing = [name for name in _DISTINGUISHING if summary[name].nunique() > 1]
    # Numbers of steps often differ by strategy, and the table would be too wide.
    if summary.groupby(_SAME, dropna=False)["settings"].nunique().max() == 1:
        differing = [name for name in differing if name != "settings"]
    return differing


def with_telling_options(summary: pd.DataFrame) -> pd.DataFrame:
    """Without options, and what a strategy ran as, where a network has one row of the strategy."""
    same = [*_SAME, *_DISTINGUISHING]
    for column in ("options", "ran_as"):
        several = summary.groupby(same, dropna=False)[column].transform("nunique") > 1
        kept = summary["strategy"].isin(set(summary.loc[several, "strategy"]))
        summary = summary.assign(**{column: summary[column].where(kept, "")})
    return summary


_SUMMARY = "Speed-up over sequential training"


def _full_table(rows: list[dict[Hashable, Any]], differing: list[str]) -> list[str]:
    """The heading, and a line per row; a common dataset is in the heading if that saves lines."""
    headings = [
        "dataset | network | strategy",
        *(_heading(name) for name in differing),
        "> workers /2 | > samples/s | > speed-up | > memory /1",
    ]
    cells = [
        (
            dataset_label(str(row["dataset"])),
            network_label(str(row["network"])),
            _column_name(row),
            *(str(row[name]) for name in differing),
            str(row["workers"]),
            *numbers_of(row),
        )
        for row in rows
    ]
    lines = table(" | ".join(headings), cells)
    datasets = {dataset for dataset, *_ in cells}
    if len(lines) == len(cells) + 1 or len(datasets) > 1:
        return [_SUMMARY, *lines]
    shown = [Column("network"), *columns(" | ".join(headings))[2:]]
    return [f"{_SUMMARY}, {datasets.pop()}", *table(shown, [row[1:] for row in cells])]


_HEADINGS = {"geometry": "devices", "batch_size": "batch", "fabric": "link"}
_SETTING = "setting "


def _heading(column: str) -> str:
    return _HEADINGS.get(column, column.removeprefix(_SETTING))


def _compact_table(rows: list[dict[Hashable, Any]], differing: list[str]) -> list[str]:
    """One line per network, one column per strategy; empty where it does not fit the terminal.

    Strategies that do not fit beside each other are in a further table, if that saves lines.
    """
    shown, cells = speedup_table(rows, differing)
    first = sum(not column.right for column in shown) + 1  # what names a row, and the base
    if first == len(shown):
        return table(shown, cells)
    lines: list[str] = []
    start = first
    while start < len(shown):
        fitting: list[str] = []
        for end in range(start + 1, len(shown) + 1):
            part = [*range(first), *range(start, end)]
            made = table([shown[at] for at in part], [[row[at] for at in part] for row in cells])
            if max(map(len, made)) > terminal_width() or len(made) > len(cells) + 1:
                break
            fitting, last = made, end
        if not fitting:
            return []
        lines += [*([""] if lines else []), *fitting]
        start = last
    whole = len(lines) == len(cells) + 1
    return lines if whole or len(lines) < _SHORTER * len(rows) else []


def speedup_table(
    rows: list[dict[Hashable, Any]], differing: list[str]
) -> tuple[list[Column], list[tuple[str, ...]]]:
    """Speed-ups of rows of the summary, a row per network, a column per strategy."""
    kept = [name for name in differing if name != "geometry"]
    names = list(dict.fromkeys(_column_name(row) for row in rows if row["strategy"] != BASE))
    groups: dict[tuple[str, ...], dict[str, dict[Hashable, Any]]] = {}
    bases = {row["configuration"]: row for row in rows if row["strategy"] == BASE}
    base_of: dict[tuple[str, ...], dict[Hashable, Any]] = {}
    alone = set(bases) - {row["base_configuration"] for row in rows if row["strategy"] != BASE}
    for row in rows:
        if row["strategy"] == BASE and row["configuration"] not in alone:
            continue  # it stands in the rows of those that it is the base of
        key = (
            dataset_label(str(row["dataset"])),
            network_label(str(row["network"])),
            *(str(row[name]) for name in kept),
            str(row["geometry"]),
        )
        groups.setdefault(key, {})[_column_name(row)] = row
        if base := bases.get(row["base_configuration"]):
            base_of[key] = base
    several = len({key[-1] for key in groups}) > 1
    shown = [
        *columns(" | ".join(["dataset", "network", *(_heading(name) for name in kept)])),
        *columns(f"{'devices' if several else ''} | > 1 device"),
        *(Column(name, right=True) for name in names),
    ]
    cells = []
    for key, by_name in groups.items():
        base = base_of.get(key)
        speed = _samples(base) if base else "no base"
        speed += "/s" if base and base["status"] == Status.OK else ""
        speed += " disturbed" if base and base["disturbed"] else ""
        speed += _diverged(base) if base else ""
        by_column = [by_name.get(name) for name in names]
        speedups = [_speedup(row) + _diverged(row) if row else "" for row in by_column]
        cells.append((*key[:-1], key[-1] if several else "", speed, *speedups))
    return shown, cells


def _column_name(row: dict[Hashable, Any]) -> str:
    options = str(row["options"]).replace(",", ", ")
    variant = ", ".join(filter(None, (options, str(row["ran_as"]))))
    return strategy_label(str(row["strategy"]), variant)


def _samples(row: Mapping[Hashable, Any]) -> str:
    if row["status"] != Status.OK:
        return str(row["status"]).replace("_", " ")
    return "unknown" if pd.isna(row["samples_per_s"]) else two_digits(float(row["samples_per_s"]))


def _speedup(row: Mapping[Hashable, Any]) -> str:
    if row["status"] != Status.OK:
        return str(row["status"]).replace("_", " ")
    if pd.isna(row["speedup"]):
        return mark_without_speedup(str(row["no_speedup"]))
    return ratio_text(float(row["speedup"]))


def _diverged(row: Mapping[Hashable, Any]) -> str:
    """A mark where the loss of a run is no number."""
    return " diverged" if DIVERGED in str(row["notes"]) else ""


def numbers_of(row: Mapping[Hashable, Any]) -> list[str]:
    """Samples a second, speed-up with its interval, memory."""
    speed = _samples(row)
    if row["status"] != Status.OK:
        return [speed, "", ""]
    speedup = _speedup(row)
    if row["strategy"] == BASE:
        speedup = mark_without_speedup(str(row["no_speedup"]), "base")
    low, high = row["speedup_low"], row["speedup_high"]
    if row["strategy"] != BASE and not (pd.isna(row["speedup"]) or pd.isna(low) or pd.isna(high)):
        speedup += f" ({ratio_text(float(low))}-{ratio_text(float(high))})"
    speedup += _diverged(row)
    peak = row["peak_memory_bytes"]
    return [speed, speedup, "unknown" if pd.isna(peak) else size_text(float(peak))]


def advice_lines(tables_dir: Path) -> list[str]:
    """The sentences of :func:`advice`, as lines of the terminal."""
    return [line for text in advice(tables_dir) for line in paragraph(text, hanging="  ")]


def advice(tables_dir: Path) -> list[str]:
    """What to train with in each case, as ``ddlbench recommend`` says it.

    Then what speaks against the measurements, and how often predictions named the fastest strategy.
    A case in which nothing could be compared has no line: its measurements stand in the table.
    """
    answers = [answer for answer in answers_at(tables_dir) if answer["recommended"] is not None]
    whole = len(answers) <= _FEW_ANSWERS
    sentences = [
        f"{_title(answer['case'])}: {' '.join(answer['advice'] if whole else answer['advice'][:1])}"
        for answer in answers[:_MOST_ANSWERS]
    ]
    if len(answers) > _MOST_ANSWERS:
        more = len(answers) - _MOST_ANSWERS
        sentences.append(f"{more} more cases: {tables_dir}/{ADVICE}.")
    return [*sentences, *_old_bases(tables_dir), *_checked(tables_dir)] if sentences else []


def answers_at(tables_dir: Path) -> list[Answer]:
    """The answers for the cases of an experiment; none if there is no file of them."""
    path = tables_dir / ADVICE
    if not path.is_file():
        return []
    from ddlbench.predict.recommend import read_choice  # noqa: PLC0415 - slow to import

    return read_choice(path)["answers"]


def _title(case: Mapping[str, Any]) -> str:
    """``VGG-11, CIFAR-10, 1x2, batch 16``, and settings that are not the defaults."""
    return case_title(case, f"batch {case['batch_size']}", *other_settings(case))


def _old_bases(tables_dir: Path) -> list[str]:
    """How many cells were measured long after their base, on a machine that others may use."""
    cells = read_tables(tables_dir).measurements
    compared = cells[cells["speedup"].notna() & (cells["strategy"] != BASE)]
    made_s = cache(_made_s)  # many cells share a base
    pairs = [
        (made_s(row.site, row.cell_id), made_s(row.site, row.base_cell_id))
        for row in rows_of(compared)
    ]
    gaps_s = [
        abs(cell_made_s - base_made_s)
        for cell_made_s, base_made_s in pairs
        if cell_made_s is not None and base_made_s is not None
    ]
    old = [gap_s for gap_s in gaps_s if gap_s > _OLD_BASE_S]
    if not old:
        return []
    return [
        f"{len(old)} of {len(gaps_s)} speed-ups compare cells measured over "
        f"{duration_text(_OLD_BASE_S)} apart from their base (at most {duration_text(max(old))}): "
        "if this machine did other work meanwhile, measure both again."
    ]


def _made_s(site: str, cell_id: str) -> float | None:
    """Seconds since the epoch at which a cell was measured here; None on a cluster's own nodes."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        provenance = read_json(result_file(site, cell_id))["provenance"]
        if provenance.get("slurm_job_id") is None:
            return datetime.fromisoformat(provenance["created"]).timestamp()
    return None


_RATES = ["correct", "top1_within_noise", "n"]


def _checked(tables_dir: Path) -> list[str]:
    """How often the recommender was right; nothing where no case could be scored."""
    path = tables_dir / "table_8_2.csv"
    if not path.is_file():
        return []
    from ddlbench.predict.accuracy import ALL  # noqa: PLC0415 - slow to import
    from ddlbench.predict.prediction import DEFAULT_RECOMMENDER  # noqa: PLC0415 - the same

    try:
        rates = pd.read_csv(path, usecols=["recommender", "dataset", *_RATES])
        rates = rates[rates["recommender"] == DEFAULT_RECOMMENDER]
        rates = rates.astype(dict.fromkeys(_RATES, float))
        if len(rates) > 1 and rates["dataset"].iloc[-1] != ALL:
            raise ValueError("the row over all datasets is missing")
    except (OSError, ValueError) as error:  # pandas' own are ValueErrors
        raise ConfigError(
            f"{path} cannot be read: {first_line(error)}; make it anew: ddlbench predict accuracy"
        ) from None
    if rates.empty or not rates["n"].iloc[-1] > 0:
        return []
    correct, within_noise, n = rates[_RATES].iloc[-1]
    return [
        f"Predictions ({DEFAULT_RECOMMENDER}) named the fastest strategy in {correct:g} of "
        f"{n:g} cases, within the noise in {within_noise * n:g}."
    ]
