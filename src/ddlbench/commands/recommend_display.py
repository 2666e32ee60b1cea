"""How a recommendation looks in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from ddlbench.commands.predict_display import header, noisy_profile, seconds_range
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.screen import Column, in_one_unit, named_lines, paragraph, table
from ddlbench.experiment.units import BYTES, TIMES
from ddlbench.predict.candidate import FAILED_HERE
from ddlbench.report.labels import strategy_label

if TYPE_CHECKING:
    from ddlbench.experiment.site import Site
    from ddlbench.predict.accuracy import SignedErrors
    from ddlbench.predict.candidate import Candidate, Recommendation
    from ddlbench.predict.recommend import PredictionRequest

_DISAGREE = 0.2
_ROUNDS_TO_0 = 0.005


def recommendation_lines(
    request: PredictionRequest,
    site: Site,
    found: Recommendation,
    *,
    errors: SignedErrors,
    stale: Sequence[str] = (),
    why: bool,
) -> list[str]:
    """A ranking with its ties, what of it was measured, and what is not ranked.

    Args:
        request: what is to be trained.
        site: where.
        found: the ranking.
        errors: see :func:`ddlbench.predict.accuracy.errors_at`.
        stale: strategies that were left out because they update with old weights.
        why: print the parts of each prediction, and every reason in full.
    """
    ranked = [c for c in found.ranking if c.ranked]
    others = [c for c in found.ranking if not c.ranked]
    lines = paragraph(header(request, site))
    if ranked:
        base = next((c for c in ranked if c.cell.strategy == BASE), None)
        lines += _ranking_table(ranked, found.tied, base)
        lines += _verdict(ranked[0], found.tied, base)
        lines += _measured_here(ranked)
        lines += _errors_here(ranked, errors)
        lines += noisy_profile(base.prediction if base else None)
    else:
        lines.append("nothing that can run is predicted to fit")
    lines += _not_ranked(others, stale, site, why=why)
    if ranked and all(c.capacity_bytes is None for c in ranked):
        lines += paragraph("Device memory is unknown, fit not checked: --device-memory-bytes.")
    if why:
        pairs = [(c.label, f"{c.prediction.predictor}: {c.why}") for c in ranked if c.prediction]
        lines += ["", "Parts of a predicted step", *named_lines(pairs, "  ")]
        if ranked and (best := ranked[0].prediction) is not None:
            assumptions = "; ".join((*best.notes, *best.limits))
            lines += paragraph(f"{best.predictor} assumes: {assumptions}.", hanging="  ")
    return lines


def _ranking_table(
    ranked: Sequence[Candidate], tied: Sequence[Candidate], base: Candidate | None
) -> list[str]:
    predicted = [c.prediction.step_s if c.prediction else None for c in ranked]
    measured = [median(c.measured_s) if c.measured_s else None for c in ranked]
    texts = in_one_unit(measured, TIMES)
    if any(texts):
        texts = [text or "no" for text in texts]
    places = [
        "1=" if len(tied) > 1 and c in tied else str(place)
        for place, c in enumerate(ranked, start=1)
    ]
    columns = [
        Column(""), Column("strategy"), Column("predicted", right=True),
        Column("measured", right=True), Column(""), Column("speed-up", right=True),
        Column("memory", right=True, drop=1), Column("fastest", right=True),
    ]  # fmt: skip
    rows = zip(
        places,
        [c.label + ("" if c.synchronous else " (old weights)") for c in ranked],
        in_one_unit(predicted, TIMES),
        texts,
        ["!" if _disagrees(c) else "" for c in ranked],
        [f"{base.step_s / c.step_s:.2f}" if base else "" for c in ranked],
        in_one_unit([c.memory_bytes for c in ranked], BYTES),
        [_percent(c.fastest) for c in ranked],
        strict=True,
    )
    return table(columns, rows)


def _percent(chance: float | None) -> str:
    if chance is None:
        return ""
    if chance < _ROUNDS_TO_0:
        return "<1%"
    return ">99%" if chance > 1 - _ROUNDS_TO_0 else f"{chance:.0%}"


def _disagrees(candidate: Candidate) -> bool:
    if not candidate.measured_s or candidate.prediction is None:
        return False
    return abs(candidate.prediction.step_s / median(candidate.measured_s) - 1) > _DISAGREE


def _verdict(best: Candidate, tied: Sequence[Candidate], base: Candidate | None) -> list[str]:
    assert best.belief is not None
    basis = _basis(best)
    if base in tied:
        near = f"; {_names(tied, base)} may be no faster" if len(tied) > 1 else ""
        return paragraph(f"Stay on one device: nothing is surely faster{near}.")
    inside = seconds_range(*best.belief.interval_s)
    times = f", {base.step_s / best.step_s:.1f}x one device" if base else ""
    chance = "" if best.fastest is None else f"; a chance of {_percent(best.fastest)} to be fastest"
    lines = paragraph(f"recommended: {best.label} ({basis}, {inside}){times}{chance}.")
    if len(tied) > 1:
        lines += paragraph(f"A chance of 25% or more to be faster: {_names(tied, best)}.")
    return lines


def _basis(candidate: Candidate) -> str:
    belief = candidate.belief
    if belief is None or belief.basis == "predicted":
        return "predicted"
    return f"measured, {belief.runs} run{'s' * (belief.runs > 1)}"


def _names(tied: Sequence[Candidate], but: Candidate | None) -> str:
    return ", ".join(c.label for c in tied if c is not but)


def _measured_here(ranked: Sequence[Candidate]) -> list[str]:
    if not any(c.measured_s for c in ranked):
        return paragraph("No cell like these has been measured here.")
    if any(map(_disagrees, ranked)):
        return paragraph(f"! = predicted is over {_DISAGREE:.0%} off the measured step.")
    return []


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
    if why == FAILED_HERE:
        return "failed here"
    if candidate.prediction is not None:
        return "too large for a device"
    if "balance: profile" in why:
        return "blocks unknown, write --option STRATEGY.balance=profile"
    if "no predictor" in why:
        return f"no predictor on {site.device.upper()}s"
    return "cannot run" if why.startswith("cannot run") else "no prediction"
