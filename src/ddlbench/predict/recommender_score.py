"""Whether the recommended strategy is the fastest: Tables 8.1 and 8.2 of the thesis.

A case is everything of a cell but its strategy: same network, data, devices, fabric and global
batch. Sequential training is no candidate, and stale strategies are none. A recommender picks the
candidate with the least predicted time among those predicted to fit; a wrong pick costs
``extra_time`` = measured(pick) / measured(fastest) - 1.

Two rules keep the score fair. A recommender whose predictors learn from repeat 0 is judged by the
other repeats alone; where there are none, the case is no case of its own (not scored). A tie counts
as its expectation: each of k tied picks 1/k of a choice, whatever order they are written in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pandas as pd

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import BASE, known
from ddlbench.experiment.status import Status
from ddlbench.predict.accuracy import ALL
from ddlbench.predict.prediction import predictor_of
from ddlbench.predict.recommenders import UNLESS_OOM, predictor_for, recommenders_on

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


def judged(device: str) -> list[tuple[str, bool]]:
    """Names of all recommenders for "cpu" or "cuda", and whether each is a baseline."""
    alone = [name for name in known("ddlbench.predictors") if predictor_of(name).strategies is None]
    return [
        *((name, False) for name in recommenders_on(device)),
        *((name, predictor_of(name).baseline) for name in alone),
        (UNLESS_OOM, True),
    ]


def table_8_1(predictions: pd.DataFrame, device: str) -> pd.DataFrame:
    """Recommended, fastest and the cost of the wrong choice, a row a recommender and case.

    A case counts when at least two of its strategies were measured. ``correct``: the share of the
    pick that is the fastest, 1 or 0 but for ties. ``within_noise``: the share that is, or whose
    interval overlaps the fastest's, so that no difference is shown. ``not_run``: the share without
    a measurement. ``tied``: how many configurations are a tie, 0 without one; ``extra_time`` is
    their mean, over those that ran. What cannot be scored has no ``fastest``, and ``correct``,
    ``within_noise`` and ``extra_time`` are NaN.

    Args:
        predictions: the frame that :func:`ddlbench.predict.evaluate.predictions` makes.
        device: "cpu" or "cuda", as the site file says.
    """
    frame = predictions[(predictions["strategy"] != BASE) & predictions["synchronous"]]
    cases = frame["cell_id"].map({cell_id: _case(cell_id) for cell_id in frame["cell_id"].unique()})
    rows: list[dict[str, Any]] = []
    for case, group in frame.groupby(cases, sort=False):
        every = outcomes(group)
        if len(_strategies(_measured(every))) < 2:
            continue
        for recommender, baseline in judged(device):
            asked = asked_rows(recommender, group, device)
            chosen = pick(recommender, asked, every)
            rows.append(
                {
                    "recommender": recommender,
                    "baseline": baseline,
                    "case": case,
                    **_verdict(chosen, without_learnt(every, asked)),
                }
            )
    return pd.DataFrame(rows, columns=list(COLUMNS_8_1))


def table_8_2(table: pd.DataFrame) -> pd.DataFrame:
    """How often each recommender is right, by dataset and over all.

    ``n`` is the number of cases that can be scored, ``not_scored`` of those that cannot. ``top1``
    is over all n: a case without a recommendation is not right. ``mean_regret`` is over the cases
    whose pick was measured; ``no_measurement`` counts picks that did not run (out of memory,
    timeout). A tie of k counts 1/k each in all of them. Where one strategy is fastest in more than
    80 % of the cases, a rule that always names it scores as well as a model: ``verdict`` says so.

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

    A predictor that speaks of one strategy ranks nothing: as part of a recommender it is judged in
    Table 8.2.

    Args:
        errors: what :func:`ddlbench.predict.accuracy.errors` returns.
        table: what :func:`table_8_2` returns.
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


def _case(cell_id: str) -> str:
    """The cell's path without its strategy and that strategy's options."""
    cell = Cell.from_id(cell_id)
    return cell.with_(strategy="any", options=()).id.removesuffix("/rep0")


def _verdict(chosen: Pick, judges: Outcomes) -> dict[str, Any]:
    """Columns of Table 8.1 that tell of one pick."""
    ran = _measured(judges)
    some = next(iter(judges.values()))
    strategies = dict.fromkeys(str(judges[key]["strategy"]) for key in chosen.cell_ids)
    named = ("dataset", "network", "nodes", "devices_per_node", "batch_size", "fabric")
    verdict = {
        **{name: some[name] for name in named},
        "candidates": len(_strategies(ran)),
        "recommended": " or ".join(strategies),
        "tied": len(chosen.cell_ids) if len(chosen.cell_ids) > 1 else 0,
        "fastest": "",
        "extra_time": _NAN,
        "correct": _NAN,
        "within_noise": _NAN,
        "not_run": 0.0,
        "note": chosen.note,
    }
    # What ran, but in no repeat that may judge, is neither right nor wrong.
    learnt = {key for key, value in judges.items() if value["status"] == Status.OK} - ran.keys()
    if verdict["candidates"] < 2 or learnt & set(chosen.cell_ids):
        return {**verdict, "note": _joined(chosen.note, NOT_SCORED)}
    fastest = min(ran.values(), key=lambda value: float(value["measured_step_s"]))
    verdict |= {"fastest": fastest["strategy"], "correct": 0.0, "within_noise": 0.0}
    return verdict | _score(chosen, judges, ran, fastest) if chosen.cell_ids else verdict


def _score(
    chosen: Pick, judges: Outcomes, ran: Outcomes, fastest: dict[str, Any]
) -> dict[str, Any]:
    """What a pick is worth; of a tie, what it is worth on average."""
    count = len(chosen.cell_ids)
    picked = [ran[key] for key in chosen.cell_ids if key in ran]
    failed = [str(judges[key]["status"]) for key in chosen.cell_ids if key not in ran]
    extra = [value["measured_step_s"] / fastest["measured_step_s"] - 1 for value in picked]
    near = [  # False where an interval is unknown
        more == 0 or value["measured_low_s"] <= fastest["measured_high_s"]
        for more, value in zip(extra, picked, strict=True)
    ]
    remark = ""
    if failed:
        what = "the pick" if count == 1 else f"{len(failed)} of {count}"
        remark = f"{what} did not run: {', '.join(dict.fromkeys(failed))}"
    return {
        "extra_time": fmean(extra) if extra else _NAN,
        "correct": sum(more == 0 for more in extra) / count,
        "within_noise": sum(map(bool, near)) / count,
        "not_run": len(failed) / count,
        "note": _joined(chosen.note, remark),
    }


def _rates(told: pd.DataFrame) -> dict[str, Any]:
    """Columns of Table 8.2 over some cases of one recommender."""
    scored = told[told["correct"].notna()]
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
        "not_scored": len(told) - len(scored),
        "usual_winner": winner,
        "winner_share": share,
        "verdict": verdict,
    }


def _measured(judges: Outcomes) -> Outcomes:
    """Configurations with a step that was measured."""
    return {
        key: value
        for key, value in judges.items()
        if value["status"] == Status.OK and pd.notna(value["measured_step_s"])
    }


def _strategies(judges: Outcomes) -> set[str]:
    return {str(value["strategy"]) for value in judges.values()}


def _joined(*remarks: str) -> str:
    return "; ".join(filter(None, remarks))
