"""How predictions look in a terminal."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from statistics import median
from typing import TYPE_CHECKING

from ddlbench.common.screen import (
    counted,
    duration_text,
    in_one_unit,
    paragraph,
    table,
)
from ddlbench.common.units import BYTES, TIMES
from ddlbench.experiment.registry import BASE
from ddlbench.planning.labels import dataset_label, network_label
from ddlbench.predict.advice import range_text
from ddlbench.predict.prediction import Prediction, predictor_of

if TYPE_CHECKING:
    from ddlbench.experiment.site import Site
    from ddlbench.predict.candidate import Candidate, Knowledge
    from ddlbench.predict.question import Question

_NOISY = 0.25


def noisy_profile(alone: Prediction | None) -> list[str]:
    """A warning where the profile's own steps lie far apart, on which all predictions rest."""
    interval = alone.interval_s if alone else None
    if alone is None or interval is None or interval[1] - interval[0] <= _NOISY * alone.step_s:
        return []
    return paragraph(
        "The profile is noisy: one device's step lies between "
        f"{range_text(*interval)}. Profile again on a quiet machine."
    )


def header(question: Question, site: Site, strategy: str = "") -> str:
    """What is trained, and where."""
    devices = question.devices
    kind = "GPU" if site.device == "cuda" else "CPU worker"
    kind = kind if site.accelerator is None else "emulated device"
    what = f"{strategy} on " if strategy else ""
    trained = f"{network_label(question.network)}, {dataset_label(question.dataset)}"
    return (
        f"{trained}, {what}{question.geometry} ({counted(devices, kind)}), "
        f"{counted(question.batch_size, 'sample')} a step, site {site.name}"
    )


def _off(errors: Sequence[float]) -> str:
    """How far predictions were off, in words."""
    middle = median(errors)
    direction = "long" if middle > 0 else "short"
    return f"{abs(middle):.0%} too {direction} on {counted(len(errors), 'cell')} here"


def prediction_lines(
    question: Question,
    predictions: Sequence[Prediction],
    *,
    candidate: Candidate,
    alone: Candidate,
    interval_s: tuple[float, float] | None,
    used: str,
    known: Knowledge,
    why: bool,
) -> list[str]:
    """What predictors say of one cell, the one that ``recommend`` uses first.

    Args:
        question: what is to be trained.
        predictions: of the cell.
        candidate: what is known of the cell.
        alone: what is known of one device.
        interval_s: holds the step in 90 % of cases; None if unknown.
        used: name of the predictor that ``recommend`` uses.
        known: what is known at the site.
        why: print the assumptions of every predictor.
    """
    baselines = {p.predictor for p in predictions if predictor_of(p.predictor).baseline}
    ordered = sorted(predictions, key=lambda p: (p.predictor != used, p.predictor in baselines))
    first = ordered[0]
    lines = paragraph(header(question, known.site, candidate.label))
    lines += _prediction_table(ordered, used, baselines)
    lines += _speedup_line(candidate, alone, first)
    strategy = candidate.strategy
    calibrated = bool(known.inputs.calibration and known.inputs.calibration.of(strategy))
    if interval_s is not None:
        whose = "by cells measured here" if calibrated else "by errors of such predictions"
        lines += paragraph(f"90 %: {range_text(*interval_s)}, {whose}.")
    lines += noisy_profile(alone.prediction)
    own = known.errors.get((first.predictor, strategy))
    if own:
        before = " before calibration" if calibrated else ""
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


def _prediction_table(
    ordered: Sequence[Prediction], used: str, baselines: Collection[str]
) -> list[str]:
    remarks = dict.fromkeys(baselines, "baseline")
    if len(ordered) > 1:
        remarks[used] = "`recommend` uses it"
    headings = " | predictor | > step | > compute | > waits | > bubble | > memory /2 | /3"
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
    return table(headings, cells)


def _speedup_line(candidate: Candidate, alone: Candidate, first: Prediction) -> list[str]:
    """One device's step, the speed-up over it, and what was measured."""
    sentences = []
    if alone.predicted_s is not None and candidate.strategy != BASE:
        ratio, bound = alone.predicted_s / first.step_s, candidate.bound or math.inf
        text = (
            f"One device: {duration_text(alone.predicted_s)}, so speed-up {min(ratio, bound):.2f}"
        )
        if ratio > bound:
            text += f": at most {bound:.3g} can be reached, the model says {ratio:.2f}"
        sentences.append(f"{text}.")
    if candidate.measured_s:
        steps_s = candidate.measured_s
        repeats = counted(len(steps_s), "repeat")
        sentences.append(f"Measured here: {duration_text(median(steps_s))} ({repeats}).")
    if candidate.beyond:
        sentences.append(f"Predicted beyond what can be measured: {candidate.beyond}.")
    return paragraph(" ".join(sentences))
