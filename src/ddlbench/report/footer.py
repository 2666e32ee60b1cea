"""The footer of every figure: intervals, marks, site, date, commit, repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.common.schema import read_yaml
from ddlbench.common.statistics import CONFIDENCE, ratio_coverage
from ddlbench.experiment.config import Paper
from ddlbench.experiment.links import Links
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.result import DIVERGED
from ddlbench.experiment.status import Status
from ddlbench.report import comparability
from ddlbench.report.comparability import NOTE_BREAK, short_commit
from ddlbench.report.labels import OUT_OF_MEMORY, span_text

STALE = "†"
OLD_WEIGHTS = "‡"
NO_LOSS = "∞"
_COLUMNS = {
    STALE: "stale", "~": "noisy", "≈": "unsteady", "!": "disturbed", "≠": "departure",
    NO_LOSS: "notes", OLD_WEIGHTS: "update_semantics",
}  # fmt: skip
"""Each sign, and the column of the summary that tells of it."""
SIGNS = "".join(_COLUMNS)


@dataclass(frozen=True)
class Context:
    """Inputs of a figure that are not in the tables.

    Args:
        site_description: of the site file.
        results: the folder that holds ``<site>/cells``.
        paper: the published figure that the cells are of; None if of no one.
    """

    site_description: str
    results: Path = RESULTS
    paper: Paper | None = None


@cache
def _sentences() -> dict[str, str]:
    return read_yaml(Path(__file__).with_name("sentences.yaml"))


def sentence(name: str, **values: Any) -> str:
    """A sentence of ``sentences.yaml``, with these values filled in."""
    return _sentences()[name].format(**values)


def footer(shown: pd.DataFrame, context: Context, sentences: Sequence[str]) -> list[str]:
    """The figure's own sentences but empty ones, then marks, then the origin of the numbers."""
    return [*filter(None, sentences), *marks(shown), origin(shown, context)]


def note_sentences(shown: pd.DataFrame) -> list[str]:
    """The notes that all cells share, as sentences."""
    return [as_sentence(note) for note in common_notes(shown)]


def as_sentence(note: str) -> str:
    """A note with a capital and a full stop."""
    return f"{note[0].upper()}{note[1:].rstrip('.')}."


def interval_sentence(shown: pd.DataFrame, ratio: bool) -> str:
    """Explain the whiskers; empty without any."""
    words = interval_words(shown, ratio)
    return f"Whiskers: {words}." if words else ""


def interval_words(shown: pd.DataFrame, ratio: bool) -> str:
    """Name the intervals of measured cells; empty without any."""
    good = shown[(shown["status"] == Status.OK) & (shown["interval_of"] != "")]
    if ratio:  # that of the base is 1, without an interval
        good = good[(good["strategy"] != BASE) & good["speedup_low"].notna()]
    if not len(good):
        return ""
    runs = good["speedup_n"] if ratio else good["n"]
    alone = (good["interval_of"] == "steps") | (runs == 1)
    parts = []
    if alone.any():
        bounds = ", as a bound for the ratio" if ratio else ""
        parts.append(f"95 % interval over the steps of the single run{bounds}")
    few = ~alone & ((runs <= _MOST_IN_A_RANGE) if ratio else (good["coverage"] < CONFIDENCE))
    for these in (few, ~alone & ~few):
        if these.any():
            parts.append(_over_repeats(good[these], runs[these], ratio))
    return "; ".join(parts)


_MOST_IN_A_RANGE = 2
"""Of more repeats the interval of a ratio is from a bootstrap."""


def _over_repeats(rows: pd.DataFrame, runs: pd.Series, ratio: bool) -> str:
    number = span_text(runs.astype(int))
    if ratio and runs.min() > _MOST_IN_A_RANGE:
        coverage = ratio_coverage(int(runs.min()))
        if coverage < CONFIDENCE:
            held = f"holds the ratio with {coverage:.0%}"
            return f"paired bootstrap interval over {number} repeats ({held})"
        return f"95 % paired bootstrap interval over {number} repeats"
    coverage = rows["coverage"].min()
    if coverage < CONFIDENCE:
        return f"range of {number} repeats (holds the median with {coverage:.0%})"
    return f"95 % interval over {number} repeats"


def common_notes(shown: pd.DataFrame) -> list[str]:
    """The notes that all measured cells share."""
    good = shown[shown["status"] == Status.OK]
    if not len(good):
        return []
    sets = [text.split(NOTE_BREAK) for text in good["notes"]]
    return [note for note in sets[0] if note and all(note in other for other in sets)]


def signs(row: Any, without: str = "") -> str:
    """The signs that stand at the number of a row; :func:`marks` explains them.

    Signs of ``without`` stand elsewhere, such as at the name of their strategy.
    """
    return "".join(
        sign
        for sign, column in _COLUMNS.items()
        if sign not in without and _has(sign, getattr(row, column, ""))
    )


def _has(sign: str, value: Any) -> bool:
    word = _WORDS.get(sign)
    return is_set(value) if word is None else word in str(value)


def sign_of_all(rows: pd.DataFrame) -> str:
    """The sign of older weights if every measured row has it, to stand at their strategy's name."""
    measured = rows[rows["status"] == Status.OK]
    old = measured["update_semantics"].astype(str).str.contains(_STALE_WEIGHTS)
    return OLD_WEIGHTS if len(measured) and old.all() else ""


def is_set(flag: Any) -> bool:
    """Whether a flag of a table is known and true."""
    return bool(pd.notna(flag) and flag)


_STALE_WEIGHTS = "stale"  # of the column update_semantics
_WORDS = {OLD_WEIGHTS: _STALE_WEIGHTS, NO_LOSS: DIVERGED}
"""Signs of which a word in the column tells."""


def without_signs(shown: pd.DataFrame) -> pd.DataFrame:
    """The rows of a figure that draws no sign, so that its footer explains none."""
    none: dict[str, Any] = dict.fromkeys(_COLUMNS.values(), "")
    none |= dict.fromkeys(("stale", "noisy", "unsteady"), False)
    none["notes"] = [
        NOTE_BREAK.join(note for note in text.split(NOTE_BREAK) if DIVERGED not in note)
        for text in shown["notes"]
    ]
    return shown.assign(**none)


def reasons_by_mark(shown: pd.DataFrame, named: Callable[[str, pd.DataFrame], str]) -> str:
    """``OOM: DDP; timeout: GPipe, DDP``: whose cells have no number; empty if all have one.

    Args:
        shown: rows with ``mark``.
        named: names a strategy's rows of one mark.
    """
    return "; ".join(
        f"{mark}: "
        + ", ".join(named(str(name), rows) for name, rows in part.groupby("strategy", sort=False))
        for mark, part in shown[shown["mark"] != ""].groupby("mark", sort=False)
    )


def marks(shown: pd.DataFrame) -> list[str]:
    """Explain the marks of the figure, and name differing processors."""
    there = [OUT_OF_MEMORY] if (shown["status"] == Status.OUT_OF_MEMORY).any() else []
    for sign, column in _COLUMNS.items():
        if any(_has(sign, value) for value in shown[column]):
            there.append(sign)
    limit = comparability.UNSTEADY_LIMIT
    parts = [sentence(f"mark {mark}", limit=limit) for mark in there]
    partial = int(((shown["status"] == Status.OK) & (shown["n"] < shown["repeats"])).sum())
    if partial:
        parts.append(f"{partial} of {len(shown)} cells lack repeats (see summary.csv)")
    parts += comparability.sentences(shown)
    return [f"{'. '.join(parts)}."] if parts else []


def origin(shown: pd.DataFrame, context: Context) -> str:
    """Site, dates, commits and repeats of the numbers of one site."""
    site = str(shown["site"].iloc[0])
    where = f"Site {site}: {context.site_description}" if context.site_description else site
    commits = commits_of(shown)
    parts = [where.rstrip("."), days_of(shown)]
    if commits:
        several = len(commits) > 3
        names = f"{len(commits)} commits" if several else ", ".join(commits)
        parts.append(names if several else f"commit {names}")
    number = span_text(shown["repeats"])
    parts.append(f"{number} repeat{'' if number == '1' else 's'}")
    return f"{'; '.join(parts)}."


def days_of(shown: pd.DataFrame) -> str:
    """The first and the last day on which cells were measured."""
    days = sorted({text[:10] for text in shown["created"] if text})
    return " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "not measured yet"


def commits_of(shown: pd.DataFrame) -> list[str]:
    """The commits that measured, shortened."""
    return sorted({short_commit(commit) for text in shown["commit"] for commit in text.split()})


def links_origin(links: Links) -> str:
    """Site, fabric, date and commit of measured links."""
    provenance, commit = links.provenance, links.provenance.get("git_commit")
    dirty = "-dirty" if commit and provenance.get("git_dirty") else ""
    where = (f"Site {links.site} ({links.device_kind})", f"fabric {links.fabric}")
    return place_and_time(
        *where, created=provenance.get("created"), commit=f"{commit or ''}{dirty}"
    )


def place_and_time(*where: str, created: str | None, commit: str | None) -> str:
    """``Site local; 2026-11-26; commit 1a2b3c4-dirty.``: where, when and by what, if known."""
    day = str(created)[:10] if created else ""
    by = f"commit {short_commit(commit)}" if commit else ""
    return f"{'; '.join(filter(None, [*where, day, by]))}."
