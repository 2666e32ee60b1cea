"""How the answers of ParaDL's oracle look in a terminal and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted, duration_text, few, size_text
from ddlbench.common.screen import left_out, paragraph, ranking, table
from ddlbench.common.statistics import grouped
from ddlbench.experiment.cell import Cell, short_names

if TYPE_CHECKING:
    import pandas as pd

    from ddlbench.predict.paradl.oracle import Answer, Question, Reach

ACCURACIES = ("accuracy", "compute_accuracy", "communication_accuracy", "worst_cell_accuracy")


def answer_dict(answer: Answer) -> dict[str, Any]:
    """A strategy on some devices as JSON values."""
    projection = answer.projection
    return {
        "strategy": answer.strategy,
        "devices": answer.devices,
        "batch_size": projection.configuration.batch,
        "iteration_s": projection.iteration_s,
        "computation_s": dict(projection.computation),
        "communication_s": dict(projection.communication),
        "epoch_s": answer.epoch_s,
        "memory_bytes": projection.memory_bytes,
        "max_devices": projection.max_devices,
        "limiting_layer": projection.limiting_layer,
        "bottleneck": projection.bottleneck,
        "runs": not answer.why,
        "why": answer.why,
    }


def reach_dict(reach: Reach) -> dict[str, Any]:
    """How a strategy scales, as JSON values."""
    return {
        "strategy": reach.strategy,
        "sizes": [answer_dict(size) for size in reach.sizes],
        "regimes": [{"from_devices": devices, "term": term} for devices, term in reach.regimes],
        "communication_outweighs_from": reach.communication_from,
        "stops": reach.stops,
    }


def accuracy_lines(values: Mapping[str, Any]) -> list[str]:
    """Accuracies of every campaign with the baselines, and what the projections miss most."""
    headings = "of | > accuracy | > computation | > communication | > worst cell | > cells"
    lines = paragraph(f"{values['predictor']} on {values['platform']}")
    for campaign, score in {values["campaign"]: values, **values["campaigns"]}.items():
        known = {name: value for name, value in score["baselines"].items() if value is not None}
        beside = ", ".join(f"{name} {_percent(known[name])}" for name in _highest_first(known))
        lines += paragraph(
            f"campaign {campaign}: {_percent(score['mean_accuracy'])} right, the mean of its "
            f"strategies; baselines: {beside}",
            hanging="  ",
        )
        rows = []
        for groups in (score["strategies"], score["networks"]):
            for name in _highest_first({name: group["accuracy"] for name, group in groups.items()}):
                numbers = (_percent(groups[name][key]) for key in ACCURACIES)
                rows.append((name, *numbers, str(groups[name]["cells"])))
        lines += table(headings, rows)
    lines += paragraph("accuracy: 1 - |projected / measured - 1|, the mean over cells.")
    return lines + _grouped("left out", [(row["cell"], row["why"]) for row in values["left_out"]])


def _highest_first(values: Mapping[str, float | None]) -> list[str]:
    return sorted(values, key=lambda name: -(values[name] or 0.0))


def _grouped(what: str, pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Names that share a reason, on one line: ``not judged, 6: a, b and 4 more: the reason``."""
    lines = []
    for why, names in grouped((why, name) for name, why in pairs).items():
        lines += paragraph(f"{what}, {len(names)}: {few(names)}: {why}", hanging="  ")
    return lines


def departure_lines(judged: pd.DataFrame, limit: float, source: str) -> list[str]:
    """Runs that depart from their projection, the farthest first; then those not judged.

    Args:
        judged: what :func:`ddlbench.predict.accuracy.anomalies` returns.
        limit: share from which a run departs.
        source: of the projections, with its machine.
    """
    names = dict(zip(judged["run"], _run_names(judged["run"].tolist()), strict=True))
    departing = judged[judged["departs"] != ""].to_dict("records")
    departing.sort(key=lambda row: -abs(math.log(row["ratio"])))
    headings = "run | > measured | > projected | > ratio | is | mostly in /1"
    rows = (
        (
            names[row["run"]], duration_text(row["measured_s"]),
            duration_text(row["projected_s"]), f"{row['ratio']:.2f}", row["departs"],
            _departing_part(row),
        )
        for row in departing
    )  # fmt: skip
    unknown = judged[judged["why_unknown"] != ""].to_dict("records")
    count = len(judged) - len(unknown)
    lines = paragraph(
        f"{len(departing)} of {counted(count, 'run')} depart over {limit:.0%} from the projection "
        f"by {source}"
    )
    lines += table(headings, rows)
    return lines + _grouped(
        "not judged", [(names[row["run"]], row["why_unknown"]) for row in unknown]
    )


def _run_names(runs: Sequence[str]) -> list[str]:
    """Short names where runs are cells; a table of others keeps its own."""
    try:
        return short_names([Cell.from_id(f"{run}/rep0") for run in runs])
    except ConfigError:
        return list(runs)


def _departing_part(row: Mapping[Any, Any]) -> str:
    if not row["part"]:
        return ""
    measured, projected = row["part_measured_s"], row["part_projected_s"]
    return f"{row['part']}: {duration_text(measured)} for {duration_text(projected)}"


def _machine(question: Question) -> str:
    """Network and platform of an answer."""
    platform = question.platform
    return (
        f"{question.network} on {platform.description}: "
        f"{counted(platform.devices_per_node, 'device')} a node, "
        f"{size_text(platform.device.memory_bytes)} a device"
    )


_HEADINGS = (
    "strategy | > devices | > iteration | > computing /2 | > sending /1 | > epoch | > memory "
    "| bound by"
)


def best_lines(answers: Sequence[Answer], question: Question, devices: int) -> list[str]:
    """A ranking of what can run, fastest first; below it what cannot, with the reason."""
    lines = paragraph(
        f"{_machine(question)}; {counted(devices, 'device')}, batch {question.batch_size:,.0f}"
    )
    able = [answer for answer in answers if not answer.why]
    lines += ranking(_HEADINGS, _rows(able, with_devices=False))
    lines.append(f"best: {able[0].strategy}" if able else "no strategy can run like this")
    pairs = [(answer.strategy, answer.why) for answer in answers if answer.why]
    return lines + left_out("Cannot run", pairs)


def limits_lines(reaches: Iterable[Reach], question: Question) -> list[str]:
    """What bounds each strategy from where on, and what ends it."""
    headings = "strategy | longest term | > mostly sending from /1 | ends at"
    rows = []
    for reach in reaches:
        regimes = ", ".join(
            f"from {devices:,} {term}" if at else str(term)
            for at, (devices, term) in enumerate(reach.regimes)
        )
        outweighs = f"{reach.communication_from:,}" if reach.communication_from else ""
        rows.append((reach.strategy, regimes or "never runs", outweighs, reach.end))
    return [*paragraph(_machine(question)), *table(headings, rows)]


def target_lines(
    answers: Mapping[str, Answer | str], question: Question, epoch_s: float
) -> list[str]:
    """The fewest devices of each strategy that keep the time."""
    lines = paragraph(f"{_machine(question)}; an epoch in {duration_text(epoch_s)}")
    able = [answer for answer in answers.values() if not isinstance(answer, str)]
    if able:
        lines += table(_HEADINGS, _rows(able, with_devices=True))
    missed = [(name, why) for name, why in answers.items() if isinstance(why, str)]
    return lines + left_out(
        f"Not in time on up to {counted(question.most_devices, 'device')}", missed
    )


def _rows(answers: Sequence[Answer], *, with_devices: bool) -> list[tuple[str, ...]]:
    return [
        (
            answer.strategy,
            f"{answer.devices:,}" if with_devices else "",
            duration_text(answer.projection.iteration_s),
            duration_text(answer.projection.compute_s),
            duration_text(answer.projection.communication_s),
            duration_text(answer.epoch_s),
            size_text(answer.projection.memory_bytes),
            answer.projection.bottleneck,
        )
        for answer in answers
    ]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
