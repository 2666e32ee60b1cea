"""How a search for options looks in a terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ddlbench.commands.predict_display import header
from ddlbench.common.screen import (
    counted,
    duration_text,
    in_one_unit,
    left_out,
    paragraph,
    ranking,
    two_digits,
)
from ddlbench.common.units import BYTES, HOURS
from ddlbench.planning.labels import strategy_label

if TYPE_CHECKING:
    from ddlbench.experiment.site import Site
    from ddlbench.planning.budget import Budget
    from ddlbench.predict.belief import Belief
    from ddlbench.predict.configurations import Configuration
    from ddlbench.predict.question import Question
    from ddlbench.predict.tuning import Tuning

_MOST_ROWS = 12


def tuning_lines(
    question: Question, site: Site, strategy: str, tuning: Tuning, *, every_row: bool
) -> list[str]:
    """The configurations, the fastest first, and what was found."""
    lines = paragraph(header(question, site, strategy_label(strategy)))
    known = tuning.beliefs()
    if known:
        lines += _table(known, every_row=every_row)
        lines += _verdict(tuning)
    else:
        kinds = Counter(one.why for one in tuning.found)
        lines += paragraph(f"No configuration can run: {kinds.most_common(1)[0][0]}.")
    return lines + _left_out(tuning, every_row=every_row)


def _table(known: list[tuple[Configuration, Belief]], *, every_row: bool) -> list[str]:
    shown = {
        place
        for place, (_, belief) in enumerate(known, start=1)
        if every_row or place <= _MOST_ROWS or belief.basis == "measured"
    }
    names = list(known[0][0].values)
    rows = zip(
        *([_value(one, name) for one, _ in known] for name in names),
        [two_digits(1 / one.expected.step_s) + "/s" if one.expected else "" for one, _ in known],
        [f"{two_digits(1 / b.step_s)}/s" if b.basis == "measured" else "" for _, b in known],
        in_one_unit([one.memory_bytes for one, _ in known], BYTES),
        strict=True,
    )
    headings = " | ".join([*names, "> predicted", "> measured", "> memory /1"])
    lines = ranking(headings, rows, shown=shown)
    if len({known[place - 1][1].basis for place in shown}) > 1:
        lines += paragraph("What was measured moves the places of the others.")
    if len(shown) < len(known):
        lines.append(f"... and {len(known) - len(shown)} more (--all)")
    return lines


def _value(one: Configuration, name: str) -> str:
    value = one.values[name]
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value:,}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _verdict(tuning: Tuning) -> list[str]:
    assert tuning.best is not None
    one, belief = tuning.best
    fast, slow = (1 / bound for bound in belief.interval_s)
    runs = f", {counted(belief.runs, 'run')}" if belief.basis == "measured" else ""
    return paragraph(
        f"best: {one.label} ({belief.basis}{runs}, {two_digits(slow)} to {two_digits(fast)} "
        "samples a second)."
    )


def cost_lines(tuning: Tuning, cost: tuple[Budget, Budget] | None, trials: int) -> list[str]:
    """What the search cost, or would cost, beside an exhaustive sweep.

    Args:
        tuning: the search.
        cost: of a dry run, for the first ``trials`` cells and for all.
        trials: most cells of the search.
    """
    if cost is not None:
        some, every = cost
        return paragraph(
            f"A search measures up to {min(trials, every.cells)} cells: {_hours(some)}, "
            f"{duration_text(some.run_s_expected)} one after the other. "
            f"All {every.cells}: {_hours(every)}, {duration_text(every.run_s_expected)}."
        )
    if not tuning.trials:
        return paragraph(f"Nothing was measured: {tuning.stopped}.")
    failed = [trial for trial in tuning.trials if trial.step_s is None]
    told = f", {len(failed)} of them without a step" if failed else ""
    every_s = tuning.device_s_all()
    whole = f"; all configurations would take {HOURS.of(every_s):.2g}" if every_s else ""
    return paragraph(
        f"Measured for this search: {len(tuning.trials)} cells{told}, "
        f"{HOURS.of(tuning.device_s):.2g} device-hours{whole}. Stopped: {tuning.stopped}."
    )


def _hours(budget: Budget) -> str:
    expected = budget.device_s_expected
    return "unknown cost" if expected is None else f"{HOURS.of(expected):.2g} device-hours"


def _left_out(tuning: Tuning, *, every_row: bool) -> list[str]:
    out = [(one.label, one.why) for one in tuning.found if one.why]
    kinds = Counter(why.partition(":")[0] for _, why in out)
    brief = ", ".join(f"{kind}: {count}" for kind, count in kinds.items())
    return left_out("Left out", out, "" if every_row else brief, "--all")
