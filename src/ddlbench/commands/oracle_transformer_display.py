"""How the answers of the oracle of transformers look in a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddlbench.commands.oracle_display import written
from ddlbench.common.screen import duration_text, paragraph, ranking, size_text, table
from ddlbench.common.statistics import DAYS
from ddlbench.predict.transformer.configurations import CUT
from ddlbench.predict.transformer.search import Answer, Question, below_half, efficiencies

if TYPE_CHECKING:
    from ddlbench.predict.platforms import Accelerators

BILLION = 1e9
CONSTANT = ("value", "low", "high", "prior", "at_most", "unit", "meaning")
"""What is said of each fitted constant."""
_FEW = 8
_SHORT = {
    "interleaved-1f1b": "interleaved",
    "interleaved-zero-bubble": "zero bubble",
    "zero-bubble-v": "zero bubble V",
}


def answer(projected: Answer, tokens: float = BILLION) -> dict[str, Any]:
    """One configuration as JSON values."""
    row = projected.row
    return {
        "devices": projected.devices,
        **{name: int(row[name]) for name in (*CUT, "chunks", "global_batch")},
        "schedule": row["schedule"],
        "recomputation": row["recomputation"],
        "step_s": projected.step_s,
        "low_s": projected.low_s,
        "high_s": projected.high_s,
        "memory_bytes": projected.memory_bytes,
        "peak_share": projected.peak_share,
        "tokens_per_s": projected.tokens_per_s,
        "device_hours": projected.device_hours(tokens),
        "tokens": tokens,
        "parts_s": dict(projected.parts),
    }


def _head(question: Question) -> list[str]:
    return paragraph(
        f"{question.network}, {question.shape.parameters / BILLION:.1f} billion parameters, batch "
        f"{question.batch_size:,} on {question.platform.description}; "
        f"{size_text(question.memory_bytes)} of a device may be used"
    )


def _cut(row: Mapping[str, Any]) -> tuple[str, str]:
    """Devices of a cut, and the micro-batch."""
    return " x ".join(f"{row[name]:.0f}" for name in CUT[:3]), f"{row['micro_batch']:.0f}"


_HEADINGS = (
    "> devices | > t x d x p | > micro | schedule /1 | recompute /2 | > step | > 90 % | > memory "
    "| > of peak /3"
)


def _rows(answers: Sequence[Answer], *, with_devices: bool) -> list[tuple[str, ...]]:
    return [
        (
            f"{answer.devices:,}" if with_devices else "",
            *_cut(answer.row),
            _SHORT.get(str(answer.row["schedule"]), str(answer.row["schedule"])),
            str(answer.row["recomputation"]),
            duration_text(answer.step_s),
            f"{answer.low_s:.3g}-{answer.high_s:.3g} s",
            size_text(answer.memory_bytes),
            f"{answer.peak_share:.0%}",
        )
        for answer in answers
    ]


def best_lines(answers: Sequence[Answer], question: Question) -> list[str]:
    """The fastest few; whether the first is clearly so; what training costs."""
    first = answers[0]
    near = sum(answer.low_s <= first.high_s for answer in answers[1:])
    slowest = max(first.parts, key=lambda part: first.parts[part])
    return [
        *_head(question),
        *ranking(_HEADINGS, _rows(answers[:_FEW], with_devices=False)),
        *paragraph(
            f"{first.device_hours(BILLION):,.0f} GPU-hours for a billion tokens; longest part: "
            f"{slowest}, {first.parts[slowest] / first.step_s:.0%} of the step; {near} of "
            f"{len(answers) - 1} others lie within the 90 % intervals."
        ),
    ]


def limits_lines(answers: Sequence[Answer], question: Question) -> list[str]:
    """The best configuration of each size, and from where on it is under half as efficient."""
    headings = (
        "> devices | > t x d x p | > micro /2 | > step | > efficiency"
        " | > GPU-h/1e9 tokens /1 | longest wait"
    )
    waits = ("sends", "bubble", "tensor parallelism", "data parallelism", "host", "update")
    rows = []
    for answer, share in zip(answers, efficiencies(answers), strict=True):
        wait = max(waits, key=lambda part, parts=answer.parts: parts[part])  # type: ignore[misc]
        rows.append(
            (
                f"{answer.devices:,}",
                *_cut(answer.row),
                duration_text(answer.step_s),
                f"{share:.0%}",
                f"{answer.device_hours(BILLION):,.0f}",
                f"{wait} {answer.parts[wait] / answer.step_s:.0%}",
            )
        )
    half = below_half(answers)
    where = f"under half as efficient as at best from {half:,} devices on" if half else ""
    return [
        *_head(question),
        *table(headings, rows),
        *paragraph(
            f"{where or 'never under half'}, up to {answers[-1].devices:,} devices, at this batch, "
            "with 1F1B."
        ),
    ]


def target_lines(
    answers: Sequence[Answer],
    chosen: Answer | None,
    question: Question,
    *,
    tokens: float,
    days: float,
) -> list[str]:
    """The fewest devices that keep the time, and their cost."""
    shown = chosen or answers[-1]
    takes = DAYS.of(tokens / shown.tokens_per_s)
    if chosen is None:
        return _head(question) + paragraph(
            f"not in {days:g} days with up to {shown.devices:,} devices, which need {takes:,.0f}"
        )
    return [
        *_head(question),
        *table(_HEADINGS, _rows([chosen], with_devices=True)),
        *paragraph(
            f"{tokens / BILLION:,.0f} billion tokens in {takes:,.1f} days: "
            f"{chosen.device_hours(tokens):,.0f} GPU-hours"
        ),
    ]


def score_lines(values: Mapping[str, Any], platform: Accelerators) -> list[str]:
    """Errors, by parts of the cut, and the worst rows."""
    held = values["hold_out"]
    how = f"each {held} held out in turn" if held else "the platform's own constants"
    lines = paragraph(
        f"{values['rows']:,} runs, {how}: mean absolute error {values['mean_absolute_error']:.1%}, "
        f"median {values['median_absolute_error']:.1%}; {platform.description}"
    )
    rows = []
    for name in CUT:
        errors = list(values["by"][name].items())[:9]
        cells = [f"{value}: {one['mean_absolute_error']:.0%}" for value, one in errors]
        rows.append((name, *cells, *[""] * (9 - len(cells))))
    lines += table("by" + "| >" * 9, rows)
    lines.append("worst rows")
    headings = "> devices | > hidden | > t x d x p | > micro | > measured | > predicted | > error"
    lines += table(
        headings,
        [
            (
                f"{one['devices']}",
                f"{one['hidden_size']}",
                *_cut(one),
                duration_text(one["measured_s"]),
                duration_text(one["predicted_s"]),
                f"{one['error']:+.0%}",
            )
            for one in values["worst"]
        ],
    )
    choices = values["choices"]
    if choices["groups"]:
        lines += paragraph(
            f"choosing in {choices['groups']} groups of one model, batch and number of devices: "
            f"the fastest run chosen in {choices['best_chosen']:.0%}, mean regret "
            f"{choices['mean_regret']:.1%}, largest {choices['largest_regret']:.1%}"
        )
    return lines


def calibration_lines(value: Mapping[str, Any], platform: Accelerators) -> list[str]:
    """Every constant with its interval."""
    headings = "constant | > fitted | > 90 % | > prior | unit /1"
    rows = [
        (
            name,
            f"{constant['value']:.3g}",
            f"{constant['low']:.2g} to {constant['high']:.2g}",
            f"{constant['prior']:.3g}",
            str(constant["unit"]),
        )
        for name, constant in value["constants"].items()
    ]
    lines = paragraph(
        f"{len(rows)} constants from {value['rows']:,} runs: {platform.description}; mean absolute "
        f"error on the same runs {value['mean_absolute_error']:.1%}"
    )
    return [*lines, *table(headings, rows), *written(value)]
