"""One row per configuration: its runs pooled, and between what each metric is known to lie.

::

    several runs   their mean; from the least to the greatest of what they say
    one run        its value; the interval over its steps
    both           no closer than the bed's known share over the root of the runs

The order of rows does not matter, and a run that several tables keep counts once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from ddlbench.report.kept_verdicts import KNOWN_TO
from ddlbench_claims.evidence import COLUMNS, CONFIGURATION, MEASURED, OF_CONFIGURATION
from ddlbench_claims.predicate import value_text

Ends = tuple[float, float]
Row = Mapping[Any, Any]
_DIGITS = 5  # of a value that two tables keep of the same run


def pooled(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of :mod:`ddlbench_claims.evidence`, one a configuration."""
    if rows.empty:
        return rows.reindex(columns=list(COLUMNS))
    groups: dict[tuple[str, ...], dict[tuple[str, ...], list[Row]]] = defaultdict(
        lambda: defaultdict(list)
    )
    # Tables of one run may differ in a late digit or in what they leave out: the order is total.
    ordered = sorted(rows.to_dict("records"), key=lambda row: [value_text(row[k]) for k in COLUMNS])
    for row in ordered:
        groups[tuple(value_text(row[name]) for name in CONFIGURATION)][_fingerprint(row)].append(
            row
        )
    made = [_configuration(list(groups[key].values())) for key in sorted(groups)]
    whole = pd.DataFrame(made).reindex(columns=list(COLUMNS))
    for end in ("", "_low", "_high"):
        whole[f"samples_per_device_s{end}"] = whole[f"samples_per_s{end}"] / whole["devices"]
        whole[f"efficiency{end}"] = whole[f"speedup{end}"] / whole["devices"]
        # p m / (m + p - 1): Huang et al. 2019, section 2.
        idle = (whole["chunks"] + whole["devices"] - 1) / whole["chunks"]
        whole[f"share_of_bubble{end}"] = whole[f"efficiency{end}"] * idle
    signed = whole[["signed_error_low", "signed_error_high"]]
    crosses = (signed["signed_error_low"] <= 0) & (signed["signed_error_high"] >= 0)
    whole["absolute_error"] = whole["signed_error"].abs()
    whole["absolute_error_low"] = signed.abs().min(axis=1).mask(crosses, 0.0)
    whole["absolute_error_high"] = signed.abs().max(axis=1)
    return whole


def _fingerprint(row: Row) -> tuple[str, ...]:
    """A row's values: rows of one run have the same in all tables."""
    values = (row[name] for name in (*MEASURED, "runs"))
    return tuple("" if pd.isna(value) else f"{float(value):.{_DIGITS}g}" for value in values)


def _configuration(kept: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """One row of the rows of each run, which several tables may keep."""
    runs, rows = [of_run[0] for of_run in kept], [row for of_run in kept for row in of_run]
    count = math.fsum(float(run["runs"]) for run in runs)
    made: dict[str, Any] = {name: rows[0][name] for name in CONFIGURATION}
    for name in OF_CONFIGURATION:  # the least that is known: a table of one run may leave some out
        known = [row[name] for row in rows if pd.notna(row[name])]
        made[name] = min(known, default=math.nan)
    made["base_s"] = _mean([(run["base_s"], float(run["runs"])) for run in runs])
    made["runs"] = count
    share = KNOWN_TO[made["bed"]] / math.sqrt(count)
    for metric in MEASURED:
        measured = [run for run in runs if pd.notna(run[metric])]
        if not measured:
            continue
        value = _mean([(run[metric], float(run["runs"])) for run in measured])
        ends = [
            float(run[f"{metric}{end}"])
            for run in rows
            for end in ("", "_low", "_high")
            if pd.notna(run[metric]) and pd.notna(run[f"{metric}{end}"])
        ]
        least, most = _WIDENED[metric](value, share)
        made |= {
            metric: value,
            f"{metric}_low": min(*ends, least),
            f"{metric}_high": max(*ends, most),
        }
    return made


def _mean(values: list[tuple[Any, float]]) -> float:
    known = [(float(value), weight) for value, weight in values if pd.notna(value)]
    if not known:
        return math.nan
    # fsum, so that the order of rows changes no digit.
    return math.fsum(value * weight for value, weight in known) / math.fsum(w for _, w in known)


def _of_a_time(value: float, share: float) -> Ends:
    return value * (1 - share), value * (1 + share)


def _of_a_ratio(value: float, share: float) -> Ends:
    """The ends of a ratio of two runs, each known to that share."""
    return value * (1 - share) / (1 + share), value * (1 + share) / (1 - share)


def _of_an_error(value: float, share: float) -> Ends:
    """The ends of a prediction's error, whose measured step is known to that share."""
    return (1 + value) / (1 + share) - 1, (1 + value) / (1 - share) - 1


_WIDENED: Mapping[str, Callable[[float, float], Ends]] = {
    "speedup": _of_a_ratio,
    "samples_per_s": _of_a_time,
    "step_s": _of_a_time,
    "signed_error": _of_an_error,
    "right": lambda value, _: (value, value),
    "device_share": _of_a_time,
    "forward_over_backward": _of_a_time,
    "gap_over_compute": _of_a_time,
}
