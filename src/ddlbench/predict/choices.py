"""Whether the recommended strategy is the fastest: Tables 8.1 and 8.2 of the thesis.

A case is everything of a cell but its strategy: same network, data, devices, fabric and global
batch. Sequential training is no candidate, and stale strategies are none. A recommender picks the
candidate with the least predicted time among those predicted to fit; a wrong pick costs
``extra_time`` = measured(pick) / measured(fastest) - 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pandas as pd

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import known
from ddlbench.predict.accuracy import ALL
from ddlbench.predict.prediction import predictor_of
from ddlbench.predict.recommenders import RECOMMENDERS, UNLESS_OOM, predictor_for

__all__ = ["NOT_DISCRIMINATING", "judged", "table_8_1", "table_8_2", "with_choices"]

NOT_DISCRIMINATING = "not discriminating"
_ONE_SIDED = 0.8
_TIE = 1e-9

COLUMNS_8_1 = (
    "recommender", "baseline", "dataset", "network", "nodes", "devices_per_node", "batch_size",
    "fabric", "case", "candidates", "recommended", "fastest", "extra_time", "correct",
    "within_noise", "note",
)  # fmt: skip
COLUMNS_8_2 = (
    "recommender", "baseline", "dataset", "n", "correct", "top1", "top1_within_noise",
    "mean_regret", "no_measurement", "no_recommendation", "usual_winner", "winner_share", "verdict",
)  # fmt: skip


def judged() -> list[tuple[str, bool]]:
    """Names of all recommenders, and whether each is a baseline."""
    alone = [name for name in known("ddlbench.predictors") if predictor_of(name).strategies is None]
    return [
        *((name, False) for name in RECOMMENDERS),
        *((name, predictor_of(name).baseline) for name in alone),
        (UNLESS_OOM, True),
    ]


def table_8_1(predictions: pd.DataFrame) -> pd.DataFrame:
    """Recommended, fastest and the cost of the wrong choice, a row a recommender and case.

    A case counts when at least two of its strategies were measured. ``correct``: the pick is the
    fastest. ``within_noise``: it is, or their intervals overlap, so that no difference is shown.

    Args:
        predictions: the frame that :func:`ddlbench.predict.table.predictions` makes.
    """
    frame = predictions[(predictions["strategy"] != "sequential") & predictions["synchronous"]]
    cases = frame["cell_id"].map({cell_id: _case(cell_id) for cell_id in frame["cell_id"].unique()})
    rows: list[dict[str, Any]] = []
    for case, group in frame.groupby(cases, sort=False):
        outcomes = _outcomes(group)
        ran = {key: value for key, value in outcomes.items() if value["status"] == "ok"}
        if len({value["strategy"] for value in ran.values()}) < 2:
            continue
        for recommender, baseline in judged():
            pick, note = _pick(recommender, group, outcomes)
            rows.append(
                {
                    "recommender": recommender,
                    "baseline": baseline,
                    "case": case,
                    **_verdict(pick, outcomes, ran, note),
                }
            )
    return pd.DataFrame(rows, columns=list(COLUMNS_8_1))


def table_8_2(table: pd.DataFrame) -> pd.DataFrame:
    """How often each recommender is right, by dataset and over all.

    ``top1`` is over all n cases: a case without a recommendation is not right. ``mean_regret`` is
    over the cases whose pick was measured; ``no_measurement`` counts picks that did not run (out of
    memory, timeout). Where one strategy is fastest in more than 80 % of the cases, a rule that
    always names it scores as well as a model: ``verdict`` says so.

    Args:
        table: what :func:`table_8_1` returns.
    """
    rows = []
    for (recommender, baseline), told in table.groupby(["recommender", "baseline"], sort=False):
        groups: list[tuple[str, pd.DataFrame]] = [
            (str(name), group) for name, group in told.groupby("dataset", sort=False)
        ]
        if len(groups) != 1:
            groups.append((ALL, told))
        for dataset, group in groups:
            winner, wins = Counter(group["fastest"]).most_common(1)[0]
            share = wins / len(group)
            verdict = ""
            if share > _ONE_SIDED:
                verdict = f"{NOT_DISCRIMINATING}: {winner} is fastest in {share:.0%}"
            rows.append(
                {
                    "recommender": recommender,
                    "baseline": bool(baseline),
                    "dataset": dataset,
                    "n": len(group),
                    "correct": int(group["correct"].sum()),
                    "top1": group["correct"].mean(),
                    "top1_within_noise": group["within_noise"].mean(),
                    "mean_regret": group["extra_time"].mean(),
                    "no_measurement": int(
                        ((group["recommended"] != "") & group["extra_time"].isna()).sum()
                    ),
                    "no_recommendation": int((group["recommended"] == "").sum()),
                    "usual_winner": winner,
                    "winner_share": share,
                    "verdict": verdict,
                }
            )
    return pd.DataFrame(rows, columns=list(COLUMNS_8_2))


def with_choices(errors: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Add ``top1`` and ``mean_regret`` to the errors of predictors that rank strategies alone.

    A predictor that speaks of one strategy ranks nothing: as part of a recommender it is judged in
    Table 8.2.

    Args:
        errors: what :func:`ddlbench.predict.accuracy.errors` returns.
        table: what :func:`table_8_2` returns.
    """
    overall = table.groupby("recommender").last()  # the row over all datasets is the last
    alone = errors["strategy"].eq(ALL)
    return errors.assign(
        **{
            name: errors["predictor"].map(overall[name].astype(float)).where(alone)
            for name in ("top1", "mean_regret")
        }
    )


def _case(cell_id: str) -> str:
    """The cell's path without its strategy and that strategy's options."""
    cell = Cell.from_id(cell_id)
    return cell.with_(strategy="any", options=()).id.removesuffix("/rep0")


def _outcomes(group: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """What each configuration took, whoever predicted it: all repeats, where some row has them."""
    ordered = group.sort_values("repeats", ascending=False, kind="stable")
    return {
        record["cell_id"]: {str(key): value for key, value in record.items()}
        for record in reversed(ordered.to_dict("records"))
    }


def _pick(
    recommender: str, group: pd.DataFrame, outcomes: dict[str, dict[str, Any]]
) -> tuple[str | None, str]:
    """The configuration that a recommender names, and a remark."""
    if recommender == UNLESS_OOM:
        return _unless_oom(outcomes)
    told = [
        record
        for record in group.to_dict("records")
        if record["predictor"] == predictor_for(recommender, record["strategy"])
        and pd.notna(record["predicted_step_s"])
        and record["fits"] not in (False,)  # unknown is no refusal
    ]
    if not told:
        return None, "no prediction"
    least = min(record["predicted_step_s"] for record in told)
    best = [record for record in told if record["predicted_step_s"] <= least * (1 + _TIE)]
    note = f"a tie of {len(best)}: the first is taken" if len(best) > 1 else ""
    return str(best[0]["cell_id"]), note


def _unless_oom(outcomes: dict[str, dict[str, Any]]) -> tuple[str | None, str]:
    """Horovod; GPipe where Horovod's run ended out of memory, as who tries it would see."""
    horovod = _of(outcomes, "horovod")
    if horovod is not None and outcomes[horovod]["status"] != "out_of_memory":
        return horovod, ""
    gpipe = _of(outcomes, "gpipe")
    if horovod is None or gpipe is None:
        return None, "Horovod or GPipe is not in the experiment"
    return gpipe, "Horovod ran out of memory"


def _of(outcomes: dict[str, dict[str, Any]], strategy: str) -> str | None:
    """The first configuration of a strategy that ran; else the first at all."""
    names = [key for key, value in outcomes.items() if value["strategy"] == strategy]
    return next((n for n in names if outcomes[n]["status"] == "ok"), names[0] if names else None)


def _verdict(
    pick: str | None,
    outcomes: dict[str, dict[str, Any]],
    ran: dict[str, dict[str, Any]],
    note: str,
) -> dict[str, Any]:
    fastest = min(ran.values(), key=lambda value: float(value["measured_step_s"]))
    chosen = outcomes[pick] if pick else None
    named = ("dataset", "network", "nodes", "devices_per_node", "batch_size", "fabric")
    verdict = {
        **{name: fastest[name] for name in named},
        "candidates": len(_names(ran.values())),
        "recommended": chosen["strategy"] if chosen else "",
        "fastest": fastest["strategy"],
        "extra_time": float("nan"),
        "correct": False,
        "within_noise": False,
        "note": note,
    }
    if chosen is None:
        return verdict
    if pick not in ran:
        remark = f"the pick did not run: {chosen['status']}"
        return {**verdict, "note": f"{note}; {remark}" if note else remark}
    extra = chosen["measured_step_s"] / fastest["measured_step_s"] - 1
    correct = pick == fastest["cell_id"] or extra == 0
    overlap = bool(chosen["measured_low_s"] <= fastest["measured_high_s"])  # False where unknown
    return {
        **verdict, "extra_time": extra, "correct": correct, "within_noise": correct or overlap
    }  # fmt: skip


def _names(values: Iterable[dict[str, Any]]) -> set[str]:
    return {str(value["strategy"]) for value in values}
