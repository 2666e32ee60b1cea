"""What is wrong with an answer of ``ddlbench recommend``: its screen, and its JSON.

An answer is right or wrong by itself: nothing here knows what is the fastest. Each fault has a name
of :data:`FAULTS`, and one sentence that says what was seen.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from questions import Question

from ddlbench.experiment.registry import BASE, known
from ddlbench.planning.labels import strategy_label

WIDTH = 80
_CHANCES_OFF = 0.02
_ROUNDING = 1e-6
Fault = tuple[str, str]

FAULTS = {
    "crash": "ends with an exception",
    "refused": "an answerable question is refused",
    "accepted": "a wrong question is answered, or not refused in one sentence",
    "warns": "something is printed to stderr beside an answer",
    "width": f"a line is wider than {WIDTH} columns",
    "form": "the JSON cannot be read, or lacks what it should have",
    "bound": "a predicted speed-up is above its bound",
    "interval": "a step is no time, or lies outside of its interval",
    "chances": "the chances do not add up to 1",
    "winner": "the recommended one is no candidate, or is known not to fit",
    "screen": "screen and JSON say different things",
    "complete": "a strategy is left out, or stands twice",
    "process": "a process of its own says another thing",
}


@dataclass(frozen=True)
class Output:
    """What a command printed, and how it ended.

    Args:
        code: exit status.
        out: standard output.
        err: standard error.
        crash: the last line of a traceback; empty without one.
        seconds: it took.
        cpu_s: processor time, which other work on the machine changes less.
    """

    code: int
    out: str
    err: str
    crash: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0


def faults_of(question: Question, screen: Output, as_json: Output) -> list[Fault]:
    """Every fault of an answer, the gravest first."""
    crashes = dict.fromkeys(output.crash for output in (screen, as_json) if output.crash)
    if crashes:
        return [("crash", crash) for crash in crashes]
    faults = list(_width(screen))
    refused = [output for output in (screen, as_json) if output.code != 0]
    if question.wrong or (question.may_be_refused and refused):
        return [*_refusal(screen), *_refusal(as_json), *faults]
    if refused:
        return [("refused", f"status {refused[0].code}: {refused[0].err.strip()}"), *faults]
    faults += [("warns", output.err.strip()) for output in (screen, as_json) if output.err.strip()]
    try:
        answer = json.loads(as_json.out)
        return [*_of_content(question, answer, screen.out), *faults]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [("form", f"{type(error).__name__}: {error}"), *faults]


def _width(screen: Output) -> Iterator[Fault]:
    lines = screen.out.splitlines()
    widest = max(lines, key=_columns, default="")
    if _columns(widest) > WIDTH:
        yield "width", f"{_columns(widest)} columns: {widest.strip()}"


def _columns(line: str) -> int:
    """Columns of a terminal that a line takes."""
    return sum(
        0 if unicodedata.combining(sign) else 1 + (unicodedata.east_asian_width(sign) in "WF")
        for sign in line
    )


def _refusal(output: Output) -> Iterator[Fault]:
    """Status 2 and one line ``ddlbench: ...``, nothing else."""
    lines = output.err.strip().splitlines()
    if output.code == 0:
        yield "accepted", "it was answered"
    elif output.code != 2:
        yield "accepted", f"status {output.code}: {output.err.strip()}"
    elif len(lines) != 1 or not lines[0].startswith("ddlbench: ") or output.out.strip():
        yield "accepted", f"not one sentence: {' / '.join((*lines, *output.out.splitlines()))}"


def _of_content(question: Question, answer: dict[str, Any], screen: str) -> Iterator[Fault]:
    candidates = answer["candidates"]
    for candidate in candidates:
        yield from _of_candidate(candidate)
    yield from _chances(candidates)
    yield from _winner(answer)
    yield from _on_screen(answer, screen)
    yield from _complete(answer)


def _of_candidate(candidate: dict[str, Any]) -> Iterator[Fault]:
    name, step_s = candidate["strategy"], candidate["step_s"]
    if candidate["basis"] not in ("measured", "predicted"):
        yield "form", f"{name}: basis {candidate['basis']!r}"
    if not _is_time(step_s):
        yield "interval", f"{name}: a step of {step_s!r} s"
        return
    low, high = candidate["interval_s"]
    if not low * (1 - _ROUNDING) <= step_s <= high * (1 + _ROUNDING):
        yield "interval", f"{name}: a step of {step_s:.6g} s, from {low:.6g} to {high:.6g} s"
    speedup, bound = candidate["speedup"], candidate["bound"]
    bounded = candidate["basis"] == "predicted" and speedup is not None and bound is not None
    if bounded and speedup > bound * (1 + _ROUNDING):
        yield "bound", f"{name}: a speed-up of {speedup:.6g}, at most {bound:.6g} is possible"


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


def _chances(candidates: list[dict[str, Any]]) -> Iterator[Fault]:
    ranked = [each for each in candidates if each["fits"] is not False]
    total = sum(each["chance"] or 0.0 for each in ranked)
    if ranked and abs(total - 1) > _CHANCES_OFF:
        yield "chances", f"{total:.3f} over {len(ranked)} that are ranked"


def _winner(answer: dict[str, Any]) -> Iterator[Fault]:
    winner, candidates = answer["recommended"], answer["candidates"]
    if winner is None:
        # With one device alone, or beside strategies that can gain nothing, nothing is compared.
        gaining = [each for each in candidates if each["bound"] is None or each["bound"] > 1]
        able = [each["strategy"] for each in gaining if each["fits"] is not False]
        if set(able) - {BASE}:
            yield "winner", f"none is recommended, but {', '.join(able)} may run"
        return
    of_it = [each for each in candidates if each["strategy"] == winner]
    if not of_it:
        yield "winner", f"{winner} is recommended and no candidate"
    elif all(each["fits"] is False for each in of_it):
        yield "winner", f"{winner} is recommended and does not fit"


def _on_screen(answer: dict[str, Any], screen: str) -> Iterator[Fault]:
    shown = joined(screen)
    for sentence in answer["advice"]:
        if joined(sentence) not in shown:
            yield "screen", f"not on the screen: {sentence}"
    winner = answer["recommended"]
    if winner is not None and not names(winner, shown):
        yield "screen", f"{winner} is recommended and not named on the screen"


def joined(text: str) -> str:
    """The text with single blanks, so that it does not matter where lines were broken."""
    return " ".join(text.split())


def names(strategy: str, shown: str) -> bool:
    """Whether a text names a strategy, by its label or by what one types."""
    called = [strategy, strategy_label(strategy)]
    if strategy == BASE:
        called.append("one device")
    return any(name in shown for name in called)


def _complete(answer: dict[str, Any]) -> Iterator[Fault]:
    placed = [each["strategy"] for each in (*answer["candidates"], *answer["not_ranked"])]
    everyone = known("ddlbench.strategies")
    missing = [name for name in everyone if name not in placed]
    twice = [name for name in dict.fromkeys(placed) if placed.count(name) > 1]
    strange = [name for name in placed if name not in everyone]
    for what, those in (("left out", missing), ("twice", twice), ("unknown", strange)):
        if those:
            yield "complete", f"{what}: {', '.join(those)}"
    for each in answer["not_ranked"]:
        if not each["reason"]:
            yield "form", f"{each['strategy']}: not ranked without a reason"
