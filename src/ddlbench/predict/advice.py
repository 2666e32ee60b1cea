"""The advice: what to train with, in sentences.

::

    ranking --> one device only?                          --> nothing was compared
            --> is one device, or another strategy, that
                is measured and faster than one device,
                more to be trusted than the first?        --> that one
            --> else                                      --> the first of the ranking

The terminal, ``--json``, choice.json, the end of a run and the HTML report all print what
:func:`advise` says, so they never differ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import TIMES, counted, in_one_unit, ratio_text
from ddlbench.experiment.config import Experiment
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.site import Site
from ddlbench.planning.matrix import MatrixRow
from ddlbench.predict.candidate import Knowledge
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.question import Question
from ddlbench.predict.ranking import TIE, Candidate, Ranking, candidate_dict
from ddlbench.predict.recommend import (
    dividing_batches,
    fitted_options,
    knowledge_of,
    questions_of,
    recommend,
)

_ROUNDS_TO_0 = 0.005
_LIKELY = 0.5
_SAME_CHANCE = 0.05
"""Chances that differ by less count as equal."""


@dataclass(frozen=True)
class Advice:
    """What to train with.

    Args:
        recommended: the candidate; None if nothing was compared.
        sentences: the advice, then why other candidates are not advised.
        why_not: beside a candidate that looks faster than the advised one, why it is not advised;
            by strategy.
    """

    recommended: Candidate | None
    sentences: tuple[str, ...]
    why_not: dict[str, str]

    @property
    def strategy(self) -> str | None:
        return self.recommended.strategy if self.recommended else None


def advise(question: Question, ranking: Ranking, known: Knowledge) -> Advice:
    """What to train with, by one ranking."""
    others = [c for c in ranking.ranked if c.strategy != BASE]
    best, base = ranking.best, ranking.base
    notes = [*batch_hint(question, ranking, known), *fitted_sentences(question, ranking)]
    if best is None:
        return Advice(None, (f"Nothing can be recommended: {_reasons(ranking)}.", *notes), {})
    if base is not None and question.devices == 1:
        text = f"{question.geometry} is one device: train sequentially."
        return Advice(base, (text,), {})
    hopeless = all(map(_cannot_gain, others))
    lacking = (c for c in ranking.not_ranked if c.code == "no_prediction")
    if not others or (hopeless and not all(map(_cannot_gain, lacking))):
        return Advice(None, (_nothing_compared(question, ranking, known), *notes), {})
    proven = next((c for c in others if c.basis == "measured" and _gains(c) >= 1 - TIE), None)
    open_race = base is not None and (base in ranking.tied or hopeless)
    if base is not None and open_race and proven is None:
        able = [c for c in others if not _cannot_gain(c)]
        likeliest = max(able, key=_gains, default=None)
        recommended, named = base, [likeliest] if likeliest else []
        sentences = [_stay(ranking, likeliest)]
    else:
        recommended = _fastest(ranking, best, proven, open_race=open_race)
        named = [c for c in ranking.tied if c not in (recommended, base)]
        sentences = [
            _train(ranking, recommended, proven=recommended is proven),
            *_tied(ranking, recommended, named, known),
        ]
    sentences += [
        f"{c.label} was measured here, and {c.diverged}."
        for c in (recommended, *named)
        if c.diverged
    ]
    sentences += _without_room_alone(ranking, recommended)
    why_not = _why_not(ranking, recommended)
    sentences += _highest(ranking, why_not, [c.strategy for c in named])
    sentences += [c.beyond_sentence for c in others if c.beyond][:1]
    return Advice(recommended, (*sentences, *notes), why_not)


def _fastest(
    ranking: Ranking, best: Candidate, proven: Candidate | None, *, open_race: bool
) -> Candidate:
    """The likeliest of those that are tied; a proven one where that is more likely wrong.

    Of equal chances, the first of the ranking.
    """
    likeliest = max(
        (c for c in ranking.tied if c.strategy != BASE),
        key=lambda c: (c.chance or 0.0) + _SAME_CHANCE * (c is best),
        default=best,
    )
    unsure = likeliest.basis == "predicted" and (likeliest.chance or 0.0) < _LIKELY
    trusted = open_race or (unsure and proven in ranking.tied)
    if proven is not None and likeliest.chance is not None and trusted:
        return proven
    return best if likeliest.chance is None else likeliest


def _gains(candidate: Candidate) -> float:
    """A candidate's chance to be faster than one device; 1 if one device is no candidate."""
    return 1.0 if candidate.chance_to_gain is None else candidate.chance_to_gain


def _train(ranking: Ranking, best: Candidate, *, proven: bool) -> str:
    inside = range_text(*ranking.interval_s(best))
    words = [f"Train with {best.label} ({basis_text(best)}, {inside})"]
    if (speedup := ranking.speedup(best)) is not None:
        other = "" if speedup.basis == best.basis else f" ({speedup.basis})"
        words.append(f"{ratio_text(speedup.ratio)}x one device{other}")
    if proven and (best.chance or 0.0) < _LIKELY:
        words.append("the fastest that is measured")
    elif best.chance is not None:
        words.append(f"a chance of {chance_text(best.chance)} to be the fastest")
    return f"{words[0]}: {', '.join(words[1:])}." if words[1:] else f"{words[0]}."


def _tied(
    ranking: Ranking, best: Candidate, others: Sequence[Candidate], known: Knowledge
) -> list[str]:
    if not others:
        return []
    text = f"These may be faster: {', '.join(_with_speedup(ranking, c) for c in others)}"
    unknown = [c for c in (best, *others) if c.basis == "predicted" and not c.beyond]
    if not unknown or not known.by_runs or known.spread_of is not None:
        return [f"{text}."]
    return [f"{text}; --measure {len(unknown)} decides."]


def _with_speedup(ranking: Ranking, candidate: Candidate) -> str:
    speedup = ranking.speedup(candidate)
    if speedup is None:
        return candidate.label
    return f"{candidate.label} ({speedup.basis}, {ratio_text(speedup.ratio)}x)"


def _stay(ranking: Ranking, likeliest: Candidate | None) -> str:
    if likeliest is None:
        return "Stay on one device: no strategy that can run here can be faster."
    if _gains(likeliest) <= _ROUNDS_TO_0:
        return "Stay on one device: no strategy has a chance of 1% or more to be faster."
    return (
        "Stay on one device: no strategy is surely faster. The likeliest is "
        f"{_with_speedup(ranking, likeliest)}: a chance of {chance_text(_gains(likeliest))} to be "
        "faster than one device."
    )


def _nothing_compared(question: Question, ranking: Ranking, known: Knowledge) -> str:
    site = known.site
    too_small = any(c.code == "site_too_small" for c in ranking.not_ranked)
    text = "Nothing was compared: no strategy that can be faster than one device can be timed here."
    text += f" {_reasons(ranking)}."
    if too_small:
        text += f" Write --geometry {site.nodes}x{site.devices_per_node} or less."
    return text


def _reasons(ranking: Ranking) -> str:
    """The commonest kind of reason of what is not ranked, with one example.

    Of strategies that do not fit, the example is the one that needs least.
    """
    codes = Counter(c.code for c in ranking.not_ranked)
    code, count = codes.most_common(1)[0]
    alike = [candidate for candidate in ranking.not_ranked if candidate.code == code]
    example = min(alike, key=lambda c: c.room.needed_bytes if c.room else math.inf)
    reason = str(example.reason).partition("; ")[0].rstrip(".")
    of_all = f"{count} of {counted(len(ranking.candidates), 'strategy', 'strategies')}"
    if example.room and count > 1:
        least = reason.removeprefix("does not fit: ")
        return f"{of_all} do not fit; {example.label} needs least ({least})"
    return f"{of_all}: {reason}"


def _without_room_alone(ranking: Ranking, recommended: Candidate) -> list[str]:
    """A sentence if one device would be faster, had it room for the batch."""
    lacks_room = any(c.strategy == BASE and c.code == "too_large" for c in ranking.not_ranked)
    speedup = ranking.speedup(recommended)
    if not lacks_room or speedup is None or speedup.ratio >= 1:
        return []
    return [
        "One device would be faster, but has no room for the batch: ask about a smaller one, too."
    ]


def _why_not(ranking: Ranking, recommended: Candidate) -> dict[str, str]:
    """Why each candidate is not advised whose speed-up is higher than that of the advised one."""
    advised = ranking.speedup(recommended)
    reasons = {}
    for candidate in ranking.ranked:
        speedup = ranking.speedup(candidate)
        if (
            candidate is recommended
            or speedup is None
            or advised is None
            or speedup.ratio <= advised.ratio
        ):
            continue
        reasons[candidate.strategy] = _reason_not(ranking, candidate, recommended)
    return reasons


def _reason_not(ranking: Ranking, candidate: Candidate, recommended: Candidate) -> str:
    if ranking.above_bound(candidate) and _cannot_gain(candidate):
        return "it computes on one device at a time, so this is noise"
    if candidate.chance is None:
        return "the rule names another one"
    if recommended.strategy == BASE:
        return "one device may be as fast"
    if candidate.basis == "predicted" and recommended.basis == "measured":
        return "only predicted"
    if candidate.basis == recommended.basis == "measured":
        return "measured slower"
    return "not surely faster"


def _highest(ranking: Ranking, why_not: Mapping[str, str], named: Collection[str]) -> list[str]:
    shown = [
        (speedup.ratio, speedup.basis, c)
        for c in ranking.ranked
        if c.strategy in why_not and (speedup := ranking.speedup(c))
    ]
    if not shown:
        return []
    ratio, basis, candidate = max(shown, key=lambda entry: entry[0])
    if candidate.strategy in named:
        return []
    return [
        f"{candidate.label} shows {ratio_text(ratio)}x ({basis}) and is not advised: "
        f"{why_not[candidate.strategy]}."
    ]


def _cannot_gain(candidate: Candidate) -> bool:
    return candidate.bound is not None and candidate.bound <= 1


def batch_hint(question: Question, ranking: Ranking, known: Knowledge) -> list[str]:
    """A sentence that names batches with which more strategies are compared; none if none are."""
    sizes, more = dividing_batches(question, ranking, known)
    if not sizes:
        return []
    are = "1 more strategy is" if more == 1 else f"{more} more strategies are"
    return [
        f"A batch of {question.batch_size} does not divide for all of them. Take "
        f"{' or '.join(map(str, sizes))}: then {are} compared."
    ]


def fitted_sentences(question: Question, ranking: Ranking) -> list[str]:
    """A sentence that names the options that nobody wrote; none if there are none."""
    parts = [
        f"{options} for {', '.join(c.label for c in candidates)}"
        for options, candidates in fitted_options(question, ranking).items()
    ]
    fitted = f"Fitted to {question.geometry} and a batch of {question.batch_size}"
    return [f"{fitted}: {'; '.join(parts)}."] if parts else []


def answer_dict(question: Question, ranking: Ranking, advice: Advice) -> dict[str, Any]:
    """An answer as JSON values, as ``recommend --json`` prints it and choice.json keeps it."""
    return {
        "case": question.to_dict(),
        "recommended": advice.strategy,
        "advice": list(advice.sentences),
        "candidates": [candidate_dict(ranking, candidate) for candidate in ranking.ranked],
        "not_ranked": [
            {"strategy": candidate.strategy, "reason": str(candidate.reason)}
            for candidate in ranking.not_ranked
        ],
        "tied": [candidate.strategy for candidate in ranking.tied],
        "why_not": dict(advice.why_not),
        "recommender": ranking.recommender,
    }


def basis_text(candidate: Candidate) -> str:
    """``predicted``, or ``measured, 3 runs``."""
    belief = candidate.belief
    if belief is None or belief.basis == "predicted":
        return "predicted"
    return f"measured, {counted(belief.runs, 'run')}"


def runs_remark(bases: Collection[str]) -> str:
    """What the column ``runs`` of a ranking tells of its steps; empty if nothing was measured."""
    if "measured" not in bases:
        return ""
    corrected = " The others are predictions, corrected by these runs."
    return f"Rows with runs are measured.{corrected if 'predicted' in bases else ''}"


def chance_text(chance: float | None) -> str:
    """A probability as people read it; empty where it is not known."""
    if chance is None:
        return ""
    if chance <= _ROUNDS_TO_0:
        return "<1%"
    return ">99%" if chance >= 1 - _ROUNDS_TO_0 else f"{chance:.0%}"


def range_text(low_s: float, high_s: float) -> str:
    """Two durations in one unit."""
    low, high = in_one_unit([low_s, high_s], TIMES)
    return f"{low.split()[0]}-{high}"


def answers(
    experiment: Experiment, rows: Sequence[MatrixRow], site: Site, results_root: Path = RESULTS
) -> list[dict[str, Any]]:
    """The answer for each case of an experiment; a case of which nothing is known has none.

    Cells of one device are left out.
    """
    inputs = Inputs(site.name, results_root)
    lines = []
    known: dict[tuple[str, str], Knowledge] = {}  # the results of a network are read once
    for question in questions_of(experiment, rows):
        key = (question.dataset, question.network)
        if key not in known:
            known[key] = knowledge_of(question, inputs, site, results_root)
        here = known[key]
        with suppress(ConfigError):  # neither a profile nor a measured cell
            ranking = recommend(question, here)
            lines.append(answer_dict(question, ranking, advise(question, ranking, here)))
    return lines
