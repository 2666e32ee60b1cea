"""Which configuration a recommender names in a case, and which measurements may judge it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from ddlbench.experiment.status import Status
from ddlbench.predict.prediction import predictor_of
from ddlbench.predict.recommenders import UNLESS_OOM, predictor_for

__all__ = ["Outcomes", "Pick", "asked_rows", "outcomes", "pick", "without_learnt"]

_TIE = 1e-9

Outcomes = dict[str, dict[str, Any]]
"""Cell id -> a row of the predictions, of which what was measured counts."""


@dataclass(frozen=True)
class Pick:
    """What a recommender names.

    Args:
        cell_ids: configurations that it predicts to be fastest; several are a tie.
        note: a remark.
    """

    cell_ids: tuple[str, ...]
    note: str = ""


def asked_rows(recommender: str, case: pd.DataFrame, device: str) -> pd.DataFrame:
    """Rows of a case by the predictors that a recommender asks; the rule of thumb asks none."""
    if recommender == UNLESS_OOM:
        return case.iloc[:0]
    named = case["strategy"].map(
        {name: predictor_for(recommender, name, device) for name in case["strategy"].unique()}
    )
    return case[case["predictor"] == named]


def outcomes(rows: pd.DataFrame) -> Outcomes:
    """What each configuration took, whoever predicted it: all repeats, where some row has them."""
    fullest = rows.sort_values("repeats", ascending=False, kind="stable")
    told = fullest.drop_duplicates("cell_id").sort_index()  # back in the order of the matrix
    return {
        str(record["cell_id"]): {str(key): value for key, value in record.items()}
        for record in told.to_dict("records")
    }


def without_learnt(every: Outcomes, asked: pd.DataFrame) -> Outcomes:
    """Outcomes that may judge a recommender: none of a repeat that its predictors learnt from.

    Rows of a predictor that learns from repeat 0 hold what the other repeats took.
    """
    learns = {name: predictor_of(name).uses_first_repeat for name in asked["predictor"].unique()}
    return every | outcomes(asked[asked["predictor"].map(learns).eq(True)])


def pick(recommender: str, asked: pd.DataFrame, every: Outcomes) -> Pick:
    """The configurations with the least predicted time among those not predicted to be too large.

    Args:
        recommender: its name.
        asked: what :func:`asked_rows` returns.
        every: the case's outcomes; the rule of thumb looks at how runs ended.
    """
    if recommender == UNLESS_OOM:
        return _unless_oom(every)
    told = [
        record
        for record in asked.to_dict("records")
        if pd.notna(record["predicted_step_s"])
        and record["fits"] not in (False,)  # unknown is no refusal
    ]
    if not told:
        return Pick((), "no prediction")
    least = min(record["predicted_step_s"] for record in told)
    best = [record for record in told if record["predicted_step_s"] <= least * (1 + _TIE)]
    note = f"a tie of {len(best)}: each counts 1/{len(best)}" if len(best) > 1 else ""
    return Pick(tuple(str(record["cell_id"]) for record in best), note)


def _unless_oom(every: Outcomes) -> Pick:
    """Horovod; GPipe where Horovod's run ended out of memory, as who tries it would see."""
    horovod = _of(every, "horovod")
    if horovod is not None and every[horovod]["status"] != Status.OUT_OF_MEMORY:
        return Pick((horovod,))
    gpipe = _of(every, "gpipe")
    if horovod is None or gpipe is None:
        return Pick((), "Horovod or GPipe is not in the experiment")
    return Pick((gpipe,), "Horovod ran out of memory")


def _of(every: Outcomes, strategy: str) -> str | None:
    """The first configuration of a strategy that ran; else the first at all."""
    names = [key for key, value in every.items() if value["strategy"] == strategy]
    return next((n for n in names if every[n]["status"] == Status.OK), names[0] if names else None)
