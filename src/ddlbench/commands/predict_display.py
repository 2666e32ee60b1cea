"""How predictions, recommendations and their errors look in a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import tables_dir
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.screen import (
    Column,
    duration_text,
    in_one_unit,
    named_lines,
    paragraph,
    table,
)
from ddlbench.experiment.units import BYTES, TIMES
from ddlbench.planning.strategy import can_gain
from ddlbench.predict.prediction import steps_measured
from ddlbench.report.choice_tables import choice_lines
from ddlbench.report.labels import dataset_label, network_label, strategy_label

if TYPE_CHECKING:
    import pandas as pd

    from ddlbench.experiment.site import Site
    from ddlbench.predict.accuracy import SignedErrors
    from ddlbench.predict.prediction import History, Prediction
    from ddlbench.predict.recommend import Candidate, PredictionRequest, Recommendation
    from ddlbench.workflow import PredictionTables

_DISAGREE = 0.2
_NOISY = 0.25


def _noisy_profile(alone: Prediction | None) -> list[str]:
    """A warning where the profile's own steps lie far apart, on which all predictions rest."""
    interval = alone.interval_s if alone else None
    if alone is None or interval is None or interval[1] - interval[0] <= _NOISY * alone.step_s:
        return []
    return paragraph(
        f"The profile is noisy: one device's step lies between {_range(*interval)}. Profile again "
        "on a quiet machine."
    )


def _header(request: PredictionRequest, site: Site, strategy: str = "") -> str:
    devices = request.nodes * request.devices_per_node
    kind = "CPU worker" if site.device == "cpu" else "GPU"
    what = f"{strategy} on " if strategy else ""
    batch = f"{request.batch_size} samples a step"
    places = f"{request.nodes}x{request.devices_per_node}"
    return (
        f"{network_label(request.network)}, {dataset_label(request.dataset)}, {what}{places} "
        f"({devices} {kind}{'s' * (devices > 1)}), {batch}, site {site.name}"
    )


def _off(errors: Sequence[float]) -> str:
    """How far predictions were off, in words."""
    middle = median(errors)
    cells = f"{len(errors)} cell{'s' * (len(errors) > 1)}"
    direction = "long" if middle > 0 else "short"
    return f"{abs(middle):.0%} too {direction} on {cells} here"


def prediction_lines(
    request: PredictionRequest,
    site: Site,
    predictions: Sequence[Prediction],
    *,
    cell: Cell,
    used: str,
    alone: Prediction | None,
    history: History,
    errors: SignedErrors,
    calibrated: bool,
    why: bool,
) -> list[str]:
    """What predictors say of one cell, the one that ``recommend`` asks first.

    Args:
        request: what is to be trained.
        site: where.
        predictions: of the cell.
        cell: of the strategy.
        used: name of the predictor that ``recommend`` asks.
        alone: the prediction of one device.
        history: measured cells of the site.
        errors: see :func:`ddlbench.predict.accuracy.errors_at`.
        calibrated: the first prediction has the constants of a calibration.
        why: print the assumptions of every predictor.
    """
    from ddlbench.predict.prediction import predictor_of  # noqa: PLC0415 - slow to import

    baselines = {p.predictor for p in predictions if predictor_of(p.predictor).baseline}
    ordered = sorted(predictions, key=lambda p: (p.predictor != used, p.predictor in baselines))
    remarks = dict.fromkeys(baselines, "baseline")
    if len(ordered) > 1:
        remarks[used] = "`recommend` asks it"
    columns = [
        Column(""), Column("predictor"), Column("step", right=True), Column("compute", right=True),
        Column("waits", right=True), Column("bubble", right=True),
        Column("memory", right=True, drop=2), Column("", drop=3),
    ]  # fmt: skip
    bubbles = [p.bubble_s or None for p in ordered]
    cells = zip(
        ["->" if p.predictor == used and len(ordered) > 1 else "" for p in ordered],
        [p.predictor for p in ordered],
        in_one_unit([p.step_s for p in ordered], TIMES),
        in_one_unit([p.compute_s for p in ordered], TIMES),
        in_one_unit([p.exposed_communication_s for p in ordered], TIMES),
        in_one_unit(bubbles, TIMES),
        in_one_unit([max(p.memory_bytes, default=None) for p in ordered], BYTES),
        [remarks.get(p.predictor, "") for p in ordered],
        strict=True,
    )
    name = strategy_label(cell.strategy)
    lines = [*paragraph(_header(request, site, name)), *table(columns, cells)]
    first = ordered[0]
    sentences = []
    if alone is not None and cell.strategy != BASE:
        sentences.append(
            f"One device: {duration_text(alone.step_s)}, so speed-up "
            f"{alone.step_s / first.step_s:.2f}."
        )
    measured = steps_measured(history, cell)
    if measured:
        sentences.append(f"Measured here: {_measured_text(measured)}.")
    lines += paragraph(" ".join(sentences))
    if first.interval_s is not None:
        whose = "90 %, by cells measured here" if calibrated else "95 %, by the profile's steps"
        lines += paragraph(f"Interval: {_range(*first.interval_s)} ({whose}).")
    lines += _noisy_profile(alone)
    own = errors.get((first.predictor, cell.strategy))
    if own:
        before = " before calibration" * calibrated
        lines += paragraph(f"{first.predictor} was {_off(own)} (median){before}.")
    for prediction in ordered if why else ordered[:1]:
        assumptions = "; ".join((*prediction.notes, *prediction.limits))
        if assumptions:
            lines += paragraph(f"{prediction.predictor} assumes: {assumptions}.", hanging="  ")
    if len(ordered) == 1:
        lines.append("The papers' models and baselines beside it: --all.")
    elif not why:
        lines.append("What the others assume: --why.")
    return lines


def _measured_text(steps: Sequence[float]) -> str:
    repeats = f"{len(steps)} repeat{'s' * (len(steps) > 1)}"
    return f"{duration_text(median(steps))} ({repeats})"


def recommendation_lines(
    request: PredictionRequest,
    site: Site,
    found: Recommendation,
    *,
    history: History,
    errors: SignedErrors,
    stale: Sequence[str] = (),
    why: bool,
) -> list[str]:
    """A ranking with its ties, what was measured here beside it, and what is not ranked.

    Args:
        request: what is to be trained.
        site: where.
        found: the ranking.
        history: measured cells of the site.
        errors: see :func:`ddlbench.predict.accuracy.errors_at`.
        stale: strategies that were left out because they update with old weights.
        why: print the parts of each prediction, and every reason in full.
    """
    ranked = [c for c in found.ranking if c.prediction is not None and c.fits is not False]
    others = [c for c in found.ranking if c not in ranked]
    lines = paragraph(_header(request, site))
    if ranked:
        tied = _tied(ranked)
        measured = {c.cell.id: steps_measured(history, c.cell) for c in ranked}
        base_s = next((_step_s(c) for c in ranked if c.cell.strategy == BASE), None)
        lines += _ranking_table(ranked, tied, base_s, measured)
        lines += _verdict(ranked, tied, base_s)
        lines += _measured_verdict(ranked, measured)
        lines += _errors_here(ranked, errors)
        lines += _noisy_profile(
            next((c.prediction for c in ranked if c.cell.strategy == BASE), None)
        )
    else:
        lines.append("nothing that can run is predicted to fit")
    lines += _not_ranked(others, stale, site, why=why)
    if ranked and all(c.capacity_bytes is None for c in ranked):
        lines += paragraph("Device memory is unknown, fit not checked: --device-memory-bytes.")
    if why:
        pairs = [(c.label, f"{c.prediction.predictor}: {c.why}") for c in ranked if c.prediction]
        lines += ["", "Parts of a step", *named_lines(pairs, "  ")]
        if ranked and (best := ranked[0].prediction) is not None:
            assumptions = "; ".join((*best.notes, *best.limits))
            lines += paragraph(f"{best.predictor} assumes: {assumptions}.", hanging="  ")
    return lines


def _step_s(candidate: Candidate) -> float:
    assert candidate.prediction is not None
    return candidate.prediction.step_s


def _tied(ranked: Sequence[Candidate]) -> list[Candidate]:
    """The candidates whose prediction lies inside the interval of the fastest."""
    best = ranked[0].prediction
    assert best is not None
    high_s = best.interval_s[1] if best.interval_s else best.step_s * 1.005
    return [c for c in ranked if _step_s(c) <= high_s]


def _ranking_table(
    ranked: Sequence[Candidate],
    tied: Sequence[Candidate],
    base_s: float | None,
    measured: Mapping[str, Sequence[float]],
) -> list[str]:
    middles = [median(measured[c.cell.id]) if measured[c.cell.id] else None for c in ranked]
    marks = [
        "!" if middle is not None and abs(_step_s(c) / middle - 1) > _DISAGREE else ""
        for c, middle in zip(ranked, middles, strict=True)
    ]
    texts = in_one_unit(middles, TIMES)
    if any(texts):
        texts = [text or "no" for text in texts]
    places = [
        "1=" if len(tied) > 1 and c in tied else str(place)
        for place, c in enumerate(ranked, start=1)
    ]
    columns = [
        Column(""), Column("strategy"), Column("predicted", right=True),
        Column("speed-up", right=True), Column("memory", right=True, drop=1),
        Column("measured", right=True), Column(""),
    ]  # fmt: skip
    rows = zip(
        places,
        [c.label + ("" if c.synchronous else " (old weights)") for c in ranked],
        in_one_unit([_step_s(c) for c in ranked], TIMES),
        [f"{base_s / _step_s(c):.2f}" if base_s else "" for c in ranked],
        in_one_unit([c.memory_bytes for c in ranked], BYTES),
        texts,
        marks,
        strict=True,
    )
    return table(columns, rows)


def _verdict(
    ranked: Sequence[Candidate], tied: Sequence[Candidate], base_s: float | None
) -> list[str]:
    best = ranked[0]
    interval = best.prediction.interval_s if best.prediction else None
    inside = f" ({_range(*interval)})" if interval else ""
    alone = next((c for c in tied if c.cell.strategy == BASE), None)
    if alone is not None:
        gain = f"no gain beyond their interval{inside}" if len(tied) > 1 else "nothing is faster"
        return paragraph(f"Stay on one device, say predictions: {gain}.")
    times = f", {base_s / _step_s(best):.1f}x one device" if base_s else ""
    also = [c.label for c in tied if c is not best]
    tie = f"; a tie with {', '.join(also)} inside its interval{inside}" if also else ""
    return paragraph(f"recommended: {best.label}, say predictions{times}{tie}.")


def _measured_verdict(
    ranked: Sequence[Candidate], measured: Mapping[str, Sequence[float]]
) -> list[str]:
    known = {
        c.label: measured[c.cell.id]
        for c in ranked
        if measured[c.cell.id] and (c.cell.strategy == BASE or can_gain(c.cell))
    }
    if not known:
        return paragraph("No cell like these has been measured here.")
    off = any(
        abs(_step_s(c) / median(measured[c.cell.id]) - 1) > _DISAGREE
        for c in ranked
        if measured[c.cell.id]
    )
    mark = f"! = predicted is over {_DISAGREE:.0%} off the measured step." if off else ""
    if len(known) < 2:
        return paragraph(mark)
    fastest = min(known, key=lambda label: median(known[label]))
    rivals = [
        label for label in known if label != fastest and min(known[label]) <= max(known[fastest])
    ]
    base = next((measured[c.cell.id] for c in ranked if c.cell.strategy == BASE), None)
    times = f", {median(base) / median(known[fastest]):.2f}x one device" if base else ""
    near = f"; repeats of {', '.join(rivals)} overlap" if rivals else ""
    advice = "stay on one device" if fastest == strategy_label(BASE) else f"{fastest}{times}"
    return [*paragraph(f"Measurements here say: {advice}{near}."), *paragraph(mark)]


def _errors_here(ranked: Sequence[Candidate], errors: SignedErrors) -> list[str]:
    sizes = [
        abs(error)
        for c in ranked
        if c.prediction is not None
        for error in errors.get((c.prediction.predictor, c.cell.strategy), ())
    ]
    if not sizes:
        return []
    cells = f"{len(sizes)} cell{'s' * (len(sizes) > 1)}"
    return paragraph(f"These predictors were {median(sizes):.0%} off on {cells} here (median).")


def _range(low_s: float, high_s: float) -> str:
    low, high = in_one_unit([low_s, high_s], TIMES)
    return f"{low.split()[0]}-{high}"


def _not_ranked(
    others: Sequence[Candidate], stale: Sequence[str], site: Site, *, why: bool
) -> list[str]:
    count = len(others) + len(stale)
    if not count:
        return []
    if why:
        pairs = [(c.label, c.why) for c in others]
        pairs += [
            (strategy_label(name), "updates with old weights: --allow-stale") for name in stale
        ]
        return ["", f"Not ranked, {count}", *named_lines(pairs, "  ")]
    groups: dict[str, list[str]] = {}
    for c in others:
        groups.setdefault(_short_reason(c, site), []).append(c.label)
    if stale:
        groups["old weights: --allow-stale"] = [strategy_label(name) for name in stale]
    parts = [f"{', '.join(names)}: {reason}" for reason, names in groups.items()]
    return paragraph(f"Not ranked, {count} (--why): " + "; ".join(parts) + ".", hanging="  ")


def _short_reason(candidate: Candidate, site: Site) -> str:
    why = candidate.why
    if candidate.prediction is not None:
        return "too large for a device"
    if "balance: profile" in why:
        return "blocks unknown, write --option STRATEGY.balance=profile"
    if "no predictor" in why:
        return f"no predictor on {site.device.upper()}s"
    return "cannot run" if why.startswith("cannot run") else "no prediction"


def accuracy_lines(
    tables: PredictionTables, experiment: str, site: str, *, every_row: bool
) -> list[str]:
    """The best predictor of each strategy, and how often the fastest strategy was named.

    Args:
        tables: what :func:`ddlbench.workflow.make_predictions` returns.
        experiment: its name.
        site: the site's name.
        every_row: print every predictor and every case.
    """
    frame = tables.accuracy
    rows = frame[(frame["strategy"] != "all") & (frame["n"] > 0)]
    counts = rows.groupby("strategy")["n"].max()
    total = int(counts.sum())
    lines = paragraph(
        f"Prediction errors of a step: {experiment} on {site}, {total} "
        f"configuration{'s' * (total != 1)} measured"
    )
    if rows.empty:
        lines.append("Nothing was both measured and predicted.")
    shown = rows
    if not every_row:
        best = rows.groupby("strategy", sort=False)["mean_absolute_error"].idxmin().dropna()
        shown = rows.loc[best]
    lines += _error_table(shown, every_row=every_row)
    if not rows.empty:
        lines += paragraph(
            "error: mean of |predicted / measured - 1|; worst: its sign, and the network. "
            + ("" if every_row else "The best predictor is known after the fact. ")
            + (_FLOOR if rows["noise_floor"].notna().any() else _NO_FLOOR)
        )
    lines += choice_lines(tables.table_8_1, tables.table_8_2, every_row=every_row)
    pointer = f"{tables_dir(site, experiment)}/accuracy.csv"
    without = int((frame["n"] == 0).sum())
    silent = f"; {without} of them have no measurement" if without else ""
    said = "The whole table" if every_row else f"All {len(frame)} rows: --all, or"
    lines += paragraph(f"{said} {pointer}{silent}.", hanging="  ")
    return lines


_FLOOR = "floor: what a perfect model would score, by how far repeats differ."
_NO_FLOOR = "Without repeats the noise is unknown."


def _error_table(rows: pd.DataFrame, *, every_row: bool) -> list[str]:
    columns = [
        Column("strategy"), Column("predictor" if every_row else "best predictor"),
        Column("n", right=True, drop=1), Column("error", right=True), Column("floor", right=True),
        Column("worst", right=True), Column("", drop=2), Column("", drop=3),
    ]  # fmt: skip
    lines = []
    for row in rows.to_dict("records"):
        floor = row["noise_floor"]
        known = floor is not None and math.isfinite(floor)
        error = row["mean_absolute_error"]
        baseline = " (baseline)" if row["baseline"] else ""
        worst = str(row["worst_cell"])
        network = network_label(worst.split("/")[1].replace("@", ":")) if "/" in worst else ""
        lines.append(
            (
                strategy_label(str(row["strategy"])),
                f"{row['predictor']}{baseline}",
                str(row["n"]),
                f"{error:.0%}",
                f"{floor:.0%}" if known else "",
                f"{row['worst_error']:+.0%}",
                network,
                "within noise" if known and error <= floor else "",
            )
        )
    return table(columns, lines)
