"""Score recommenders: is the recommended strategy the fastest? Tables 8.1 and 8.2 of the thesis.

A case has the same network, data, devices, fabric and global batch for several strategies, and
compares their steps. In a case of epochs, as the thesis has them, each strategy has a batch of its
own, and seconds a sample are compared. The thesis' own candidates are Horovod and GPipe; what it
says of them is judged among these two, and among all. Sequential training and stale strategies are
no candidates. A recommender picks the candidate with the least predicted time among those predicted
to fit. A wrong pick costs ``extra_time`` = measured(pick) / measured(fastest) - 1.

Two rules keep the score fair. A recommender whose predictors learn from repeat 0 is scored by the
other repeats alone; a case without other repeats is not scored. A tie counts as its expectation:
each of k tied picks counts 1/k, so their order does not matter.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pandas as pd

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.site import ComputeKind
from ddlbench.experiment.status import Status
from ddlbench.predict.accuracy import ALL
from ddlbench.predict.prediction import (
    UNLESS_OOM,
    predictor_for,
    predictor_of,
    recommenders_on,
    usable_predictors,
)

_TIE = 1e-9

Outcomes = dict[str, dict[str, Any]]
"""Cell id -> a row of the predictions; only its measured columns are used."""


@dataclass(frozen=True)
class CaseKind:
    """What makes strategies candidates of one case.

    Args:
        title: for readers.
        by_epoch: each strategy has its own batch; seconds a sample are compared, not of a step.
        among: names of the candidates; empty for all.
    """

    title: str
    by_epoch: bool = False
    among: tuple[str, ...] = ()


_THESIS = ("horovod", "gpipe")
ONE_BATCH = CaseKind("one global batch, all strategies")
PUBLISHED_KINDS = (
    CaseKind("one global batch, Horovod or GPipe", among=_THESIS),
    CaseKind("epochs, each at its own batch, all strategies", by_epoch=True),
    CaseKind("epochs, each at its own batch, Horovod or GPipe", by_epoch=True, among=_THESIS),
)
_SECONDS = ["predicted_step_s", "measured_step_s", "measured_low_s", "measured_high_s"]


@dataclass(frozen=True)
class Pick:
    """The configurations that a recommender predicts to be fastest (several are a tie)."""

    cell_ids: tuple[str, ...]
    note: str = ""


def predicted_rows(recommender: str, case: pd.DataFrame, compute_kind: ComputeKind) -> pd.DataFrame:
    """Rows of a case by the predictors that a recommender uses; the rule of thumb uses none."""
    if recommender == UNLESS_OOM:
        return case.iloc[:0]
    named = case["strategy"].map(
        {name: predictor_for(recommender, name, compute_kind) for name in case["strategy"].unique()}
    )
    return case[case["predictor"] == named]


def outcomes(rows: pd.DataFrame) -> Outcomes:
    """The measurements of each configuration: of its rows, that with the most repeats."""
    fullest = rows.sort_values("repeats", ascending=False, kind="stable")
    one_each = fullest.drop_duplicates("cell_id").sort_index()  # back in the order of the matrix
    return {
        str(record["cell_id"]): {str(key): value for key, value in record.items()}
        for record in one_each.to_dict("records")
    }


def without_learnt(every: Outcomes, rows: pd.DataFrame) -> Outcomes:
    """Outcomes that may score a recommender: without repeats that its predictors learnt from.

    Rows of a predictor that learns from repeat 0 hold the measurements of the other repeats.
    """
    learns = {name: predictor_of(name).uses_first_repeat for name in rows["predictor"].unique()}
    return every | outcomes(rows[rows["predictor"].map(learns).eq(True)])


def pick(recommender: str, rows: pd.DataFrame, every: Outcomes) -> Pick:
    """The configurations with the least predicted time among those not predicted to be too large.

    The rule of thumb needs to know how runs ended.
    """
    if recommender == UNLESS_OOM:
        return _unless_oom(every)
    candidates = [
        record
        for record in rows.to_dict("records")
        if pd.notna(record["predicted_step_s"])
        and record["fits"] not in (False,)  # unknown (None, NaN) may fit
    ]
    if not candidates:
        return Pick((), "no prediction")
    least = min(record["predicted_step_s"] for record in candidates)
    best = [record for record in candidates if record["predicted_step_s"] <= least * (1 + _TIE)]
    note = f"a tie of {len(best)}: each counts 1/{len(best)}" if len(best) > 1 else ""
    return Pick(tuple(str(record["cell_id"]) for record in best), note)


def _unless_oom(every: Outcomes) -> Pick:
    horovod = _first_of(every, "horovod")
    if horovod is not None and every[horovod]["status"] != Status.OUT_OF_MEMORY:
        return Pick((horovod,))
    gpipe = _first_of(every, "gpipe")
    if horovod is None or gpipe is None:
        return Pick((), "Horovod or GPipe is not in the experiment")
    return Pick((gpipe,), "Horovod ran out of memory")


def _first_of(every: Outcomes, strategy: str) -> str | None:
    """The first configuration of a strategy that ran; if none ran, its first."""
    cell_ids = [cell_id for cell_id, value in every.items() if value["strategy"] == strategy]
    ran = (cell_id for cell_id in cell_ids if every[cell_id]["status"] == Status.OK)
    return next(ran, cell_ids[0] if cell_ids else None)


NOT_DISCRIMINATING = "not discriminating"
NOT_SCORED = "not scored: it learnt from the only repeat"
_ONE_SIDED = 0.8
_NAN = float("nan")

COLUMNS_8_1 = (
    "recommender", "baseline", "dataset", "network", "nodes", "devices_per_node", "batch_size",
    "fabric", "case", "candidates", "recommended", "tied", "fastest", "extra_time", "correct",
    "within_noise", "not_run", "note",
)  # fmt: skip
COLUMNS_8_2 = (
    "recommender", "baseline", "dataset", "n", "correct", "top1", "top1_within_noise",
    "mean_regret", "ties", "no_measurement", "no_recommendation", "not_scored", "usual_winner",
    "winner_share", "verdict",
)  # fmt: skip


def judged(compute_kind: ComputeKind) -> list[tuple[str, bool]]:
    """Names of all recommenders on such devices, and whether each is a baseline."""
    alone = [name for name in usable_predictors() if predictor_of(name).strategies is None]
    return [
        *((name, False) for name in recommenders_on(compute_kind)),
        *((name, predictor_of(name).baseline) for name in alone),
        (UNLESS_OOM, True),
    ]


def table_8_1(
    predictions: pd.DataFrame, compute_kind: ComputeKind, kind: CaseKind = ONE_BATCH
) -> pd.DataFrame:
    """Recommended strategy, fastest strategy and extra time, one row per recommender and case.

    A case counts if at least two of its strategies were measured. ``tied`` is the number of
    configurations of a tie, 0 without one. Of the pick, ``correct`` is the share that is fastest
    (1 or 0 without a tie), ``within_noise`` the share that is fastest or whose interval overlaps
    the fastest's, ``not_run`` the share without a measurement, and ``extra_time`` the mean over
    those that ran. A row that cannot be scored has no ``fastest``; its ``correct``,
    ``within_noise`` and ``extra_time`` are NaN.
    """
    frame = predictions[(predictions["strategy"] != BASE) & predictions["synchronous"]]
    if kind.among:
        frame = frame[frame["strategy"].isin(kind.among)]
    if kind.by_epoch:
        frame = frame.assign(**{name: frame[name] / frame["batch_size"] for name in _SECONDS})
    names = {cell_id: _case(cell_id, kind) for cell_id in frame["cell_id"].unique()}
    cases = frame["cell_id"].map(names)
    rows: list[dict[str, Any]] = []
    for case, group in frame.groupby(cases, sort=False):
        if kind.by_epoch and group["batch_size"].nunique() < 2:
            continue  # a case of one global batch
        every = outcomes(group)
        if len(_strategies(_measured(every))) < 2:
            continue
        for recommender, baseline in judged(compute_kind):
            used = predicted_rows(recommender, group, compute_kind)
            picked = pick(recommender, used, every)
            rows.append(
                {
                    "recommender": recommender,
                    "baseline": baseline,
                    "case": case,
                    **_pick_columns(picked, without_learnt(every, used)),
                }
            )
    return pd.DataFrame(rows, columns=list(COLUMNS_8_1))


def table_8_2(table: pd.DataFrame) -> pd.DataFrame:
    """How often each recommender is right, by dataset and over all.

    ``n`` counts cases that can be scored, ``not_scored`` the others. ``top1`` is over all n: a case
    without a recommendation is not right. ``mean_regret`` is over the cases whose pick was
    measured. ``no_measurement`` counts picks that did not run (out of memory, timeout). In all of
    them a tie of k counts 1/k each. If one strategy is fastest in more than 80 % of the cases, a
    rule that always names it scores as well as a model: then ``verdict`` is "not discriminating".
    """
    rows = []
    for (recommender, baseline), cases in table.groupby(["recommender", "baseline"], sort=False):
        groups: list[tuple[str, pd.DataFrame]] = [
            (str(name), group) for name, group in cases.groupby("dataset", sort=False)
        ]
        if len(groups) != 1:
            groups.append((ALL, cases))
        rows += [
            {
                "recommender": recommender,
                "baseline": bool(baseline),
                "dataset": dataset,
                **_rates(group),
            }
            for dataset, group in groups
        ]
    return pd.DataFrame(rows, columns=list(COLUMNS_8_2))


def with_choices(errors: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Add ``top1`` and ``mean_regret`` to the errors of predictors that rank strategies alone.

    A predictor of one strategy ranks nothing; Table 8.2 scores it as part of a recommender.
    """
    # The row over all datasets is the last.
    overall = table.drop_duplicates("recommender", keep="last").set_index("recommender")
    alone = errors["strategy"].eq(ALL)
    return errors.assign(
        **{
            name: errors["predictor"].map(overall[name].astype(float)).where(alone)
            for name in ("top1", "mean_regret")
        }
    )


def published_cases(
    predictions: pd.DataFrame, compute_kind: ComputeKind
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables 8.1 and 8.2 of the kinds that the thesis has; their column ``kind`` says which."""
    cases = [
        table_8_1(predictions, compute_kind, kind).assign(kind=kind.title)
        for kind in PUBLISHED_KINDS
    ]
    rates = [
        table_8_2(table).assign(kind=kind.title)
        for table, kind in zip(cases, PUBLISHED_KINDS, strict=True)
    ]
    return _stacked(cases), _stacked(rates)


def _stacked(tables: list[pd.DataFrame]) -> pd.DataFrame:
    filled = [table for table in tables if len(table)]
    return pd.concat(filled, ignore_index=True) if filled else tables[0]


def _case(cell_id: str, kind: CaseKind) -> str:
    """The cell's path without its strategy, that strategy's options and, of epochs, its batch."""
    cell = Cell.from_id(cell_id).with_(strategy="any", options=())
    if kind.by_epoch:
        cell = cell.with_(batch_size=1)
    return cell.id.removesuffix("/rep0")


def _pick_columns(picked: Pick, outcomes: Outcomes) -> dict[str, Any]:
    ran = _measured(outcomes)
    first = next(iter(outcomes.values()))
    strategies = dict.fromkeys(str(outcomes[cell_id]["strategy"]) for cell_id in picked.cell_ids)
    case = ("dataset", "network", "nodes", "devices_per_node", "batch_size", "fabric")
    columns = {
        **{name: first[name] for name in case},
        "candidates": len(_strategies(ran)),
        "recommended": " or ".join(strategies),
        "tied": len(picked.cell_ids) if len(picked.cell_ids) > 1 else 0,
        "fastest": "",
        "extra_time": _NAN,
        "correct": _NAN,
        "within_noise": _NAN,
        "not_run": 0.0,
        "note": picked.note,
    }
    # Configurations that ran only in the repeat that was learnt from are neither right nor wrong.
    learnt = {key for key, value in outcomes.items() if value["status"] == Status.OK} - ran.keys()
    if columns["candidates"] < 2 or learnt & set(picked.cell_ids):
        return {**columns, "note": _joined(picked.note, NOT_SCORED)}
    fastest = min(ran.values(), key=lambda value: float(value["measured_step_s"]))
    columns |= {"fastest": fastest["strategy"], "correct": 0.0, "within_noise": 0.0}
    return columns | _score(picked, outcomes, ran, fastest) if picked.cell_ids else columns


def _score(
    picked: Pick, outcomes: Outcomes, ran: Outcomes, fastest: dict[str, Any]
) -> dict[str, Any]:
    count = len(picked.cell_ids)
    measured = [ran[cell_id] for cell_id in picked.cell_ids if cell_id in ran]
    failed = [str(outcomes[cell_id]["status"]) for cell_id in picked.cell_ids if cell_id not in ran]
    extra = [value["measured_step_s"] / fastest["measured_step_s"] - 1 for value in measured]
    near = [  # False if an interval is unknown
        more == 0 or value["measured_low_s"] <= fastest["measured_high_s"]
        for more, value in zip(extra, measured, strict=True)
    ]
    remark = ""
    if failed:
        subject = "the pick" if count == 1 else f"{len(failed)} of {count}"
        remark = f"{subject} did not run: {', '.join(dict.fromkeys(failed))}"
    return {
        "extra_time": fmean(extra) if extra else _NAN,
        "correct": sum(more == 0 for more in extra) / count,
        "within_noise": sum(map(bool, near)) / count,
        "not_run": len(failed) / count,
        "note": _joined(picked.note, remark),
    }


def _rates(cases: pd.DataFrame) -> dict[str, Any]:
    scored = cases[cases["correct"].notna()]
    winner, share, verdict = "", _NAN, NOT_SCORED
    if len(scored):
        winner, wins = Counter(scored["fastest"]).most_common(1)[0]
        share, verdict = wins / len(scored), ""
        if share > _ONE_SIDED:
            verdict = f"{NOT_DISCRIMINATING}: {winner} is fastest in {share:.0%}"
    return {
        "n": len(scored),
        "correct": round(float(scored["correct"].sum()), 9),
        "top1": scored["correct"].mean(),
        "top1_within_noise": scored["within_noise"].mean(),
        "mean_regret": scored["extra_time"].mean(),
        "ties": int((scored["tied"] > 0).sum()),
        "no_measurement": round(float(scored["not_run"].sum()), 9),
        "no_recommendation": int((scored["recommended"] == "").sum()),
        "not_scored": len(cases) - len(scored),
        "usual_winner": winner,
        "winner_share": share,
        "verdict": verdict,
    }


def _measured(outcomes: Outcomes) -> Outcomes:
    return {
        key: value
        for key, value in outcomes.items()
        if value["status"] == Status.OK and pd.notna(value["measured_step_s"])
    }


def _strategies(outcomes: Outcomes) -> set[str]:
    return {str(value["strategy"]) for value in outcomes.values()}


def _joined(*remarks: str) -> str:
    return "; ".join(filter(None, remarks))
