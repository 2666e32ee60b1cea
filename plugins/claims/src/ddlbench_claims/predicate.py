"""Predicates over tidy rows: data, never code.

::

    compare   metric of left rows over that of right rows                  in a range
    trend     metric at each value of a column over that at the one before in a range; or, with
              ``among``, greatest for one of these
    bound     metric of each row, or its mean, least or greatest           in a range
    best      the greatest metric of each case is of one of these          yes, no
    ends      how each row ended, or how the rows of both sides ended      one of these statuses

A case is the rows of one set of devices that have equal values of ``by``. It is true, false, or
within the noise, by both ends of its interval. A case with several configurations a side is true or
false only if all pairs of them are. With n cases of which at least a share must be true::

    surely true >= share n                      holds
    surely true + within the noise < share n    refuted
    else                                        undecided
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Annotated, Any, Literal

import pandas as pd
from annotated_types import Ge, Gt, Le, MinLen

from ddlbench.common.form import Count, Form
from ddlbench.experiment.status import Status

Verdict = Literal["holds", "refuted", "undecided", "not testable here", "not measured"]
Where = Mapping[str, Any]
Row = Mapping[Any, Any]

_ALL = 1.0
_PLACE = ("site", "device")  # rows of a case share them
ENDED = (Status.OK, Status.OUT_OF_MEMORY, Status.TIMEOUT, Status.FAILED)
"""How a run can end, so that ``ends`` looks at it."""
LEAST, MOST = "least", "most"
"""As values of ``order``: the ends of what a case has."""


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, row: Row, metric: str) -> Interval:
        value = float(row[metric])
        low, high = (row.get(f"{metric}_{end}", value) for end in ("low", "high"))
        low, high = (value if pd.isna(end) else float(end) for end in (low, high))
        return cls(value, min(low, value), max(high, value))

    def over(self, other: Interval) -> Interval:
        """The ratio of two; its ends are the furthest."""
        return Interval(self.value / other.value, self.low / other.high, self.high / other.low)

    def inside(self, least: float, most: float) -> bool | None:
        """Whether it lies in a range; None if its ends disagree."""
        if least <= self.low and self.high <= most:
            return True
        return False if self.high < least or self.low > most else None


@dataclass(frozen=True)
class Outcome:
    """One case.

    Args:
        truth: None within the noise.
        number: what is tested, the middle of several; None of statuses.
        runs: of each configuration that it rests on.
        several: whether several configurations stand against each other.
    """

    truth: bool | None
    number: Interval | None
    runs: tuple[float, ...]
    several: bool = False


@dataclass(frozen=True)
class Finding:
    """What the rows say.

    Args:
        verdict: of the claim.
        n: cases.
        share: of cases that are surely true.
        unsure: of cases within the noise.
        value: median of the tested numbers; None where there is none.
        low, high: least and greatest of them.
        runs_least, runs_most: of the configurations that it rests on.
        ambiguous: cases in which several configurations stand against each other.
    """

    verdict: Verdict
    n: int = 0
    share: float = 0.0
    unsure: float = 0.0
    value: float | None = None
    low: float | None = None
    high: float | None = None
    runs_least: int = 0
    runs_most: int = 0
    ambiguous: int = 0


@dataclass(frozen=True)
class Predicate(Form):
    """One test; which fields count depends on ``kind``, see the module."""

    kind: Literal["compare", "trend", "bound", "best", "ends"]
    """What is tested."""
    metric: str = ""
    """A column of the rows that holds a number."""
    where: Where = field(default_factory=dict)
    """Values of columns that select rows; a list is any of them."""
    left: Where = field(default_factory=dict)
    """Of compare and ends: further values of the first side; of ends with a status."""
    right: Where = field(default_factory=dict)
    """Of compare and ends: further values of the second side; of ends with a status."""
    by: tuple[str, ...] = ()
    """Columns that the rows of a case share, beside their devices."""
    along: str = ""
    """Of trend: a column."""
    order: Annotated[tuple[str | float, ...], MinLen(2)] = ()
    """Of trend: its values in their order; [least, most] are the ends of what a case has."""
    apart: Annotated[float, Ge(1)] = 1.0
    """Of trend along numbers: by which factor least and most must differ."""
    least: float = -math.inf
    """Least value of the number: of a ratio, or of the metric."""
    most: float = math.inf
    """Greatest value of the number."""
    of: Literal["each", "mean", "min", "max"] = "each"
    """Of bound: the number of each row, or one of all."""
    among: str = ""
    """Of best and trend: the column whose value wins; of best the strategy by default."""
    values: Annotated[tuple[str | float, ...], MinLen(1)] = ()
    """Of best, trend and ends: the values that the claim names."""
    share: Annotated[float, Gt(0), Le(1)] = _ALL
    """Part of the cases in which it must be true."""
    fewest: Count = 1
    """Cases below which nothing is decided."""

    def select(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows that the test looks at."""
        rows = selected(rows, self.where)
        if self.metric:
            rows = rows[rows[self.metric].notna()]
        if self.left or self.right:
            sides = [
                selected(rows, _without_status(side)).index for side in (self.left, self.right)
            ]
            rows = rows.loc[rows.index.isin(sides[0].union(sides[1]))]
        return rows

    def test(self, rows: pd.DataFrame) -> Finding:
        """The verdict of the rows of one bed.

        Args:
            rows: one per configuration, see :mod:`ddlbench_claims.pooling`.
        """
        cases = list(_CASES[self.kind](self, self.select(rows)))
        if len(cases) < self.fewest:
            return Finding("not measured", len(cases))
        numbers = [case.number for case in cases if case.number is not None]
        values = [number.value for number in numbers]
        if self.of == "each":
            truths = [case.truth for case in cases]
            value = median(values) if values else None
        else:
            whole = _COMBINED[self.of](numbers)
            truths, value = [whole.inside(self.least, self.most)], whole.value
        sure, unsure = truths.count(True), truths.count(None)
        runs = [count for case in cases for count in case.runs]
        return Finding(
            verdict=_verdict(sure, unsure, len(truths), self.share),
            n=len(cases),
            share=sure / len(truths),
            unsure=unsure / len(truths),
            value=value,
            low=min(values, default=None),
            high=max(values, default=None),
            runs_least=round(min(runs)),
            runs_most=round(max(runs)),
            ambiguous=sum(case.several for case in cases),
        )


def _verdict(sure: int, unsure: int, count: int, share: float) -> Verdict:
    needed = share * count - 1e-9
    if sure >= needed:
        return "holds"
    return "refuted" if sure + unsure < needed else "undecided"


def selected(rows: pd.DataFrame, where: Where) -> pd.DataFrame:
    """Rows with these values; a list is any of them."""
    for name, wanted in where.items():
        values = wanted if isinstance(wanted, list | tuple) else [wanted]
        column = rows[name]
        if all(isinstance(value, int | float) for value in values):
            numbers = pd.to_numeric(column, errors="coerce")
            near = [(numbers - value).abs() <= 1e-6 * max(1.0, abs(value)) for value in values]
            rows = rows[pd.concat(near, axis=1).any(axis=1)]
        else:
            rows = rows[column.isin(values)]
    return rows


def _without_status(side: Where) -> Where:
    return {name: value for name, value in side.items() if name != "status"}


def _cases_of(rows: pd.DataFrame, by: Sequence[str]) -> dict[tuple[str, ...], list[Row]]:
    """Rows with equal values of these columns; what is unknown equals what is unknown."""
    cases: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows.to_dict("records"):
        cases[tuple(value_text(row[name]) for name in by)].append(row)
    return cases


def value_text(value: Any) -> str:
    """24, 24.0 and ``24`` are one value."""
    if pd.isna(value):
        return ""
    try:
        return repr(float(value))
    except (TypeError, ValueError):
        return str(value)


def _ratio_case(pairs: Iterable[tuple[Row, Row]], metric: str, truth_of: Truth) -> Outcome:
    """The case of pairs of rows, by the ratio of the first row to the second."""
    rows = list(pairs)
    ratios = [Interval.of(first, metric).over(Interval.of(other, metric)) for first, other in rows]
    truths = {truth_of(ratio) for ratio in ratios}
    return Outcome(
        truths.pop() if len(truths) == 1 else None,
        sorted(ratios, key=lambda ratio: ratio.value)[len(ratios) // 2],
        tuple(float(row["runs"]) for pair in rows for row in pair),
        len(ratios) > 1,
    )


Truth = Callable[[Interval], bool | None]


def _compare(predicate: Predicate, rows: pd.DataFrame) -> Iterator[Outcome]:
    by = [*_PLACE, *predicate.by]
    left, right = (
        _cases_of(selected(rows, side), by) for side in (predicate.left, predicate.right)
    )
    for key in sorted(left.keys() & right.keys()):
        pairs = [(mine, theirs) for mine in left[key] for theirs in right[key]]
        yield _ratio_case(
            pairs, predicate.metric, lambda ratio: ratio.inside(predicate.least, predicate.most)
        )


def _trend(predicate: Predicate, rows: pd.DataFrame) -> Iterator[Outcome]:
    # Devices of several speeds are compared along their speed, so they may differ in a case.
    place = () if set(predicate.order) == {LEAST, MOST} else _PLACE
    by = [*place, *predicate.by, *([predicate.among] if predicate.among else [])]
    steps: list[tuple[tuple[str, ...], list[tuple[Row, Row]]]] = []
    for key, case in sorted(_cases_of(rows, by).items()):
        values = _in_order(predicate, case)
        for before, after in pairwise(values):
            starts, ends = (
                [row for row in case if row[predicate.along] == at] for at in (before, after)
            )
            pairs = [(last, first) for last in ends for first in starts]
            if pairs:
                steps.append((key, pairs))
    if predicate.among:
        yield from _greatest_steps(predicate, steps)
        return
    for _, pairs in steps:
        yield _ratio_case(
            pairs, predicate.metric, lambda ratio: ratio.inside(predicate.least, predicate.most)
        )


def _in_order(predicate: Predicate, case: Sequence[Row]) -> list[Any]:
    """The values of ``along`` that a case has, in the claim's order."""
    values = {row[predicate.along] for row in case if pd.notna(row[predicate.along])}
    there = sorted(values, key=lambda value: (isinstance(value, str), value))
    if set(predicate.order) == {LEAST, MOST}:
        if len(there) < 2 or there[-1] < predicate.apart * there[0]:
            return []
        return [there[0], there[-1]] if predicate.order[0] == LEAST else [there[-1], there[0]]
    texts = {value_text(value): value for value in there}
    return [texts[value_text(value)] for value in predicate.order if value_text(value) in texts]


def _greatest_steps(
    predicate: Predicate, steps: Sequence[tuple[tuple[str, ...], list[tuple[Row, Row]]]]
) -> Iterator[Outcome]:
    """A case is true if a named value changes by a greater factor than all others."""
    cases: dict[tuple[str, ...], list[tuple[bool, Interval, list[float]]]] = defaultdict(list)
    for key, pairs in steps:
        last, first = pairs[0]
        ratio = Interval.of(last, predicate.metric).over(Interval.of(first, predicate.metric))
        runs = [float(row["runs"]) for row in (last, first)]
        cases[key[:-1]].append((key[-1] in predicate.values, ratio, runs))
    for case in cases.values():
        named, others = ([each for each in case if each[0] is named] for named in (True, False))
        if named and others:
            best, rival = (max(part, key=lambda each: each[1].value) for part in (named, others))
            ratio = best[1].over(rival[1])
            yield Outcome(ratio.inside(1.0, math.inf), ratio, (*best[2], *rival[2]))


def _bound(predicate: Predicate, rows: pd.DataFrame) -> Iterator[Outcome]:
    for row in rows.to_dict("records"):
        each = Interval.of(row, predicate.metric)
        yield Outcome(each.inside(predicate.least, predicate.most), each, (float(row["runs"]),))


def _mean(numbers: Sequence[Interval]) -> Interval:
    """The mean; its interval is that of the mean of independent runs."""
    count = len(numbers)
    value = math.fsum(each.value for each in numbers) / count
    below, above = (
        math.sqrt(math.fsum((getattr(each, end) - each.value) ** 2 for each in numbers)) / count
        for end in ("low", "high")
    )
    return Interval(value, value - below, value + above)


def _extreme(pick: Callable[[Iterable[float]], float], numbers: Sequence[Interval]) -> Interval:
    parts = ((each.value, each.low, each.high) for each in numbers)
    return Interval(*(pick(values) for values in zip(*parts, strict=True)))


_COMBINED: Mapping[str, Callable[[Sequence[Interval]], Interval]] = {
    "mean": _mean,
    "min": partial(_extreme, min),
    "max": partial(_extreme, max),
}


def _best(predicate: Predicate, rows: pd.DataFrame) -> Iterator[Outcome]:
    """A case is true if a named value is above all others, false if another is above all named."""
    among, winners = predicate.among or "strategy", set(map(value_text, predicate.values))
    for _, case in sorted(_cases_of(rows, [*_PLACE, *predicate.by]).items()):
        named = [row for row in case if value_text(row[among]) in winners]
        others = [row for row in case if value_text(row[among]) not in winners]
        if not named or not others:
            continue
        best, rival = (max(part, key=lambda row: row[predicate.metric]) for part in (named, others))
        ratio = Interval.of(best, predicate.metric).over(Interval.of(rival, predicate.metric))
        runs = (float(best["runs"]), float(rival["runs"]))
        yield Outcome(ratio.inside(1.0, math.inf), ratio, runs)


def _ends(predicate: Predicate, rows: pd.DataFrame) -> Iterator[Outcome]:
    rows = rows[rows["status"].isin(ENDED)]
    if not predicate.left:
        for row in rows.to_dict("records"):
            yield Outcome(row["status"] in predicate.values, None, (float(row["runs"]),))
        return
    by = [*_PLACE, *predicate.by]
    sides = [(side["status"], _cases_of(selected(rows, _without_status(side)), by))
             for side in (predicate.left, predicate.right)]  # fmt: skip
    for key in sorted(sides[0][1].keys() & sides[1][1].keys()):
        ended = [(row["status"] == status, row) for status, cases in sides for row in cases[key]]
        runs = tuple(float(row["runs"]) for _, row in ended)
        yield Outcome(all(right for right, _ in ended), None, runs)


_CASES: Mapping[str, Callable[[Predicate, pd.DataFrame], Iterator[Outcome]]] = {
    "compare": _compare,
    "trend": _trend,
    "bound": _bound,
    "best": _best,
    "ends": _ends,
}
