"""Predicates over tidy rows: data, never code.

::

    compare   metric of left rows over that of right rows, pair by pair     < 1, > 1, in a range
    bound     metric of each row, or its mean, median or maximum            in a range
    trend     metric at one value of a column over that at another          falls, rises, in a range
    best      the greatest metric of each case is of one of these           yes, no
    ends      how each row ended                                            one of these statuses

Each unit (a pair, a row, a case) is true, false, or within the noise: both ends of its interval
decide. A value without an interval counts as known to 5 %. With n units of which at least a share
must be
true::

    surely true >= share n                holds
    surely true + within the noise < share n    refuted
    else                                  undecided
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

import pandas as pd

from ddlbench.experiment.json_form import JsonForm

Verdict = Literal["holds", "refuted", "undecided", "not measured"]
Where = Mapping[str, Any]

_UNKNOWN = 0.05  # of a value without an interval
_ALL = 1.0


@dataclass(frozen=True)
class Interval:
    """A value, and between what it lies."""

    value: float
    low: float
    high: float

    def over(self, other: Interval) -> Interval:
        """The ratio of two; its ends are the furthest."""
        return Interval(self.value / other.value, self.low / other.high, self.high / other.low)

    def inside(self, least: float, most: float) -> bool | None:
        """Whether it lies in a range; None if its ends disagree."""
        if least <= self.low and self.high <= most:
            return True
        return False if self.high < least or self.low > most else None


@dataclass(frozen=True)
class Found:
    """What the rows say.

    Args:
        verdict: of the claim.
        n: units.
        share: of units that are surely true.
        unsure: of units within the noise.
        value: median over units of the tested number; None where there is none.
        low, high: least and greatest of it.
    """

    verdict: Verdict
    n: int = 0
    share: float = 0.0
    unsure: float = 0.0
    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Predicate(JsonForm):
    """One test; which fields count depends on ``kind``, see the module.

    Args:
        kind: compare, bound, trend, best or ends.
        metric: a column of the rows.
        where: values of columns that select rows; a list is any of them.
        left, right: of compare: further values of either side.
        by: columns that pairs and cases share.
        along, start, end: of trend: a column, and two of its values.
        least, most: the range of the number: of a ratio, or of the metric.
        of: of bound: each, mean, median or max.
        among: of best: the column whose value wins.
        is_: of best and ends: the values that the claim names.
        share: part of the units in which it must be true.
        fewest: units below which nothing is decided.
    """

    kind: Literal["compare", "bound", "trend", "best", "ends"]
    metric: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    left: Mapping[str, Any] = field(default_factory=dict)
    right: Mapping[str, Any] = field(default_factory=dict)
    by: tuple[str, ...] = ()
    along: str = ""
    start: Any = None
    end: Any = None
    least: float = -math.inf
    most: float = math.inf
    of: Literal["each", "mean", "median", "max"] = "each"
    among: str = "strategy"
    is_: tuple[str, ...] = field(default=(), metadata={"key": "is"})
    share: float = _ALL
    fewest: int = 1

    def test(self, rows: pd.DataFrame) -> Found:
        """The verdict of the rows of a site."""
        chosen = select(rows, self.where)
        units = list(_UNITS[self.kind](self, chosen))
        if len(units) < self.fewest:
            return Found("not measured", len(units))
        sure = sum(truth is True for truth, _ in units)
        unsure = sum(truth is None for truth, _ in units)
        values = [value for _, value in units if value is not None and math.isfinite(value)]
        return Found(
            _verdict(sure, unsure, len(units), self.share),
            len(units),
            sure / len(units),
            unsure / len(units),
            *((median(values), min(values), max(values)) if values else (None, None, None)),
        )


def _verdict(sure: int, unsure: int, count: int, share: float) -> Verdict:
    needed = share * count - 1e-9
    if sure >= needed:
        return "holds"
    return "refuted" if sure + unsure < needed else "undecided"


def select(rows: pd.DataFrame, where: Where) -> pd.DataFrame:
    """Rows with these values; a list is any of them."""
    for name, wanted in where.items():
        values = wanted if isinstance(wanted, list) else [wanted]
        column = rows[name]
        if all(isinstance(value, int | float) for value in values):
            numbers = pd.to_numeric(column, errors="coerce")
            near = [(numbers - value).abs() <= 1e-6 * max(1.0, abs(value)) for value in values]
            rows = rows[pd.concat(near, axis=1).any(axis=1)]
        else:
            rows = rows[column.isin(values)]
    return rows


def _interval(row: Mapping[Any, Any], metric: str) -> Interval:
    value = float(row[metric])
    ends = (row.get(f"{metric}_{end}") for end in ("low", "high"))
    low, high = (math.nan if end is None else float(end) for end in ends)
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = sorted((value * (1 - _UNKNOWN), value * (1 + _UNKNOWN)))
    return Interval(value, min(low, value), max(high, value))


def _known(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    return rows[rows[metric].notna()]


Units = Iterator[tuple[bool | None, float | None]]


def _compare(one: Predicate, rows: pd.DataFrame) -> Units:
    rows = _known(rows, one.metric)
    left, right = select(rows, one.left), select(rows, one.right)
    for mine, theirs in _pairs(left, right, one.by):
        ratio = _interval(mine, one.metric).over(_interval(theirs, one.metric))
        yield ratio.inside(one.least, one.most), ratio.value


def _trend(one: Predicate, rows: pd.DataFrame) -> Units:
    rows = _known(rows, one.metric)
    first, last = select(rows, {one.along: one.start}), select(rows, {one.along: one.end})
    for before, after in _pairs(first, last, one.by):
        ratio = _interval(after, one.metric).over(_interval(before, one.metric))
        yield ratio.inside(one.least, one.most), ratio.value


def _bound(one: Predicate, rows: pd.DataFrame) -> Units:
    found = [_interval(row, one.metric) for row in _known(rows, one.metric).to_dict("records")]
    if one.of == "each" or not found:
        for each in found:
            yield each.inside(one.least, one.most), each.value
        return
    combine = _COMBINE[one.of]
    whole = Interval(
        float(combine([each.value for each in found])),
        float(combine([each.low for each in found])),
        float(combine([each.high for each in found])),
    )
    yield whole.inside(one.least, one.most), whole.value


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _best(one: Predicate, rows: pd.DataFrame) -> Units:
    """A case is true if a named one is above all others, false if another is above all named."""
    rows = _known(rows, one.metric)
    for _, case in rows.groupby(list(one.by), sort=False, dropna=False):
        if case[one.among].nunique() < 2:
            continue
        named = [
            _interval(row, one.metric)
            for row in select(case, {one.among: list(one.is_)}).to_dict("records")
        ]
        others = [
            _interval(row, one.metric)
            for row in case[~case[one.among].isin(one.is_)].to_dict("records")
        ]
        if not named or not others:
            continue
        best = max(named, key=lambda each: each.value)
        rival = max(others, key=lambda each: each.value)
        ratio = best.over(rival)
        yield ratio.inside(1.0, math.inf), ratio.value


def _ends(one: Predicate, rows: pd.DataFrame) -> Units:
    for status in rows["status"]:
        yield str(status) in one.is_, None


def _pairs(
    left: pd.DataFrame, right: pd.DataFrame, by: Sequence[str]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Rows of both sides with the same values; of several the first of each side."""
    keys = list(by)
    theirs: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in right.to_dict("records"):
        theirs.setdefault(tuple(str(row[key]) for key in keys), _named(row))
    seen = set()
    for row in left.to_dict("records"):
        key = tuple(str(row[name]) for name in keys)
        if key in theirs and key not in seen:
            seen.add(key)
            yield _named(row), theirs[key]


def _named(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in row.items()}


_COMBINE: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": _mean,
    "median": median,
    "max": max,
}
_UNITS = {
    "compare": _compare,
    "trend": _trend,
    "bound": _bound,
    "best": _best,
    "ends": _ends,
}
