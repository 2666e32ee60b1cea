"""The footer of every figure: intervals, marks, site, date, commit, repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.common.schema import read_yaml
from ddlbench.common.statistics import CONFIDENCE
from ddlbench.experiment.config import Paper
from ddlbench.experiment.links import Links
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.status import Status
from ddlbench.report import comparability
from ddlbench.report.comparability import NOTE_BREAK
from ddlbench.report.labels import OUT_OF_MEMORY

STALE = "†"
NOISY = "~"
UNSTEADY = "≈"
DISTURBED = "!"
DEPARTS = "≠"
OLD_WEIGHTS = "‡"
SIGNS = STALE + NOISY + UNSTEADY + DISTURBED + DEPARTS + OLD_WEIGHTS
_SHORT_COMMIT = 7
_ENOUGH = 6  # the range of fewer repeats holds the median with less than 95 %


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
    """The figure's own sentences, then marks, then the origin of the numbers."""
    return [*sentences, *marks(shown), origin(shown, context)]


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
    if not len(good):
        return ""
    parts = []
    if (good["interval_of"] == "steps").any():
        bounds = ", as a bound for the ratio" if ratio else ""
        parts.append(f"95 % interval over the steps of the single run{bounds}")
    repeated = good[good["interval_of"] == "repeats"]
    if len(repeated):
        parts.append(_over_repeats(repeated, ratio))
    return "; ".join(parts)


def _over_repeats(repeated: pd.DataFrame, ratio: bool) -> str:
    counts = repeated["speedup_n"] if ratio else repeated["n"]
    counts = counts.dropna()
    counts = counts[counts > 0]
    if not len(counts):
        counts = repeated["n"]
    number = _span(int(counts.min()), int(counts.max()))
    if ratio and counts.min() > 2:
        few = counts.min() < _ENOUGH
        held = ", nominally: so few repeats hold the ratio less often" if few else ""
        return f"95 % paired bootstrap interval over {number} repeats{held}"
    coverage = repeated["coverage"].min()
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
    each = (
        (STALE, row.stale),
        (NOISY, row.noisy),
        (UNSTEADY, getattr(row, "unsteady", False)),
        (DISTURBED, getattr(row, "disturbed", "")),
        (DEPARTS, getattr(row, "departure", "")),
        (OLD_WEIGHTS, _STALE_WEIGHTS in str(getattr(row, "update_semantics", ""))),
    )
    return "".join(sign for sign, flag in each if is_set(flag) and sign not in without)


def sign_of_all(rows: pd.DataFrame) -> str:
    """The sign of older weights if every measured row has it, to stand at their strategy's name."""
    measured = rows[rows["status"] == Status.OK]
    old = measured["update_semantics"].astype(str).str.contains(_STALE_WEIGHTS)
    return OLD_WEIGHTS if len(measured) and old.all() else ""


def is_set(flag: Any) -> bool:
    """Whether a flag of a table is known and true."""
    return bool(pd.notna(flag) and flag)


_STALE_WEIGHTS = "stale"  # of the column update_semantics


def without_signs(shown: pd.DataFrame) -> pd.DataFrame:
    """The rows of a figure that draws no sign, so that its footer explains none."""
    flags = dict.fromkeys(("stale", "noisy", "unsteady"), False)
    texts = dict.fromkeys(("disturbed", "departure", "update_semantics"), "")
    return shown.assign(**flags, **texts)


def marks(shown: pd.DataFrame) -> list[str]:
    """Explain the marks of the figure, and name differing processors."""
    there = {
        OUT_OF_MEMORY: (shown["status"] == Status.OUT_OF_MEMORY).any(),
        STALE: shown["stale"].any(),
        NOISY: shown["noisy"].map(is_set).any(),
        UNSTEADY: shown["unsteady"].any(),
        DISTURBED: (shown["disturbed"] != "").any(),
        DEPARTS: (shown["departure"] != "").any(),
        OLD_WEIGHTS: shown["update_semantics"].str.contains(_STALE_WEIGHTS).any(),
    }
    limit = comparability.UNSTEADY_LIMIT
    parts = [sentence(f"mark {mark}", limit=limit) for mark, shows in there.items() if shows]
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
    repeats = shown["repeats"]
    number = _span(int(repeats.min()), int(repeats.max()))
    parts.append(f"{number} repeat{'' if number == '1' else 's'}")
    return f"{'; '.join(parts)}."


def days_of(shown: pd.DataFrame) -> str:
    """The first and the last day on which cells were measured."""
    days = sorted({text[:10] for text in shown["created"] if text})
    return " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "not measured yet"


def commits_of(shown: pd.DataFrame) -> list[str]:
    """The commits that measured, shortened."""
    return sorted({_short(commit) for text in shown["commit"] for commit in text.split()})


def _short(commit: str) -> str:
    name, _, dirty = commit.partition("-")
    return f"{name[:_SHORT_COMMIT]}{'-' if dirty else ''}{dirty}"


def _span(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def links_origin(links: Links) -> list[str]:
    """Site, fabric, date and commit of measured links."""
    provenance = links.provenance
    parts = [f"Site {links.site} ({links.device_kind})", f"fabric {links.fabric}"]
    if provenance.get("created"):
        parts.append(str(provenance["created"])[:10])
    if provenance.get("git_commit"):
        dirty = "-dirty" if provenance.get("git_dirty") else ""
        parts.append(f"commit {provenance['git_commit'][:_SHORT_COMMIT]}{dirty}")
    return [f"{'; '.join(parts)}."]
