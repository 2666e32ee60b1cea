"""How the transformer oracle's answers look in a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddlbench.common.screen import Column, duration_text, paragraph, size_text, table
from ddlbench.predict.transformer.search import Answer, Question, below_half, efficiencies

if TYPE_CHECKING:
    from ddlbench.predict.transformer.accelerators import Accelerators

BILLION = 1e9
_FEW = 8
_HOURS_PER_DAY = 24.0
_SHORT = {
    "interleaved-1f1b": "interleaved",
    "interleaved-zero-bubble": "zero bubble",
    "zero-bubble-v": "zero bubble V",
}


def answer(one: Answer, tokens: float = BILLION) -> dict[str, Any]:
    """One configuration as JSON values."""
    row = one.row
    return {
        "devices": one.devices,
        **{
            name: int(row[name])
            for name in ("tensor", "data", "pipeline", "micro_batch", "chunks", "global_batch")
        },
        "schedule": row["schedule"],
        "recomputation": row["recomputation"],
        "step_s": one.step_s,
        "low_s": one.low_s,
        "high_s": one.high_s,
        "memory_bytes": one.memory_bytes,
        "peak_share": one.peak_share,
        "tokens_per_s": one.tokens_per_s,
        "device_hours": one.device_hours(tokens),
        "tokens": tokens,
        "parts_s": dict(one.parts),
    }


def _asked(name: str, question: Question) -> list[str]:
    parameters = question.shape.parameters / BILLION
    memory = size_text(question.memory_bytes)
    return paragraph(
        f"{name}, {parameters:.1f} billion parameters, batch {question.batch:,} on "
        f"{question.platform.description}; {memory} of a device may be used"
    )


def _rows(found: Sequence[Answer], *, with_devices: bool) -> list[str]:
    columns = [
        Column("devices", right=True), Column("t x d x p", right=True),
        Column("micro", right=True), Column("schedule", drop=1), Column("recompute", drop=2),
        Column("step", right=True), Column("90 %", right=True), Column("memory", right=True),
        Column("of peak", right=True, drop=3),
    ]  # fmt: skip
    rows = [
        (
            f"{one.devices:,}" if with_devices else "",
            f"{one.row['tensor']:.0f} x {one.row['data']:.0f} x {one.row['pipeline']:.0f}",
            f"{one.row['micro_batch']:.0f}",
            _SHORT.get(str(one.row["schedule"]), str(one.row["schedule"])),
            str(one.row["recomputation"]),
            duration_text(one.step_s),
            f"{one.low_s:.3g}-{one.high_s:.3g} s",
            size_text(one.memory_bytes),
            f"{one.peak_share:.0%}",
        )
        for one in found
    ]
    return table(columns, rows)


def best_lines(found: Sequence[Answer], name: str, question: Question) -> list[str]:
    """The fastest few; whether the first is clearly so; what training costs."""
    first = found[0]
    lines = _asked(name, question) + _rows(found[:_FEW], with_devices=False)
    near = sum(one.low_s <= first.high_s for one in found[1:])
    slowest = max(first.parts, key=lambda part: first.parts[part])
    said = [f"{first.device_hours(BILLION):,.0f} GPU-hours for a billion tokens"]
    said.append(f"longest part: {slowest}, {first.parts[slowest] / first.step_s:.0%} of the step")
    said.append(f"{near} of {len(found) - 1} others lie within the 90 % intervals")
    return lines + paragraph("; ".join(said) + ".")


def limits_lines(found: Sequence[Answer], name: str, question: Question) -> list[str]:
    """The best configuration of each size, and from where on it is under half as efficient."""
    columns = [
        Column("devices", right=True), Column("t x d x p", right=True),
        Column("micro", right=True, drop=2), Column("step", right=True),
        Column("efficiency", right=True), Column("GPU-h/1e9 tokens", right=True, drop=1),
        Column("longest wait"),
    ]  # fmt: skip
    waits = ("sends", "bubble", "tensor parallelism", "data parallelism", "host", "update")
    rows = []
    for one, share in zip(found, efficiencies(found), strict=True):
        wait = max(waits, key=lambda part, parts=one.parts: parts[part])  # type: ignore[misc]
        rows.append(
            (
                f"{one.devices:,}",
                f"{one.row['tensor']:.0f} x {one.row['data']:.0f} x {one.row['pipeline']:.0f}",
                f"{one.row['micro_batch']:.0f}",
                duration_text(one.step_s),
                f"{share:.0%}",
                f"{one.device_hours(BILLION):,.0f}",
                f"{wait} {one.parts[wait] / one.step_s:.0%}",
            )
        )
    lines = _asked(name, question) + table(columns, rows)
    half = below_half(found)
    said = (
        f"under half as efficient as at best from {half:,} devices on"
        if half
        else "never under half"
    )
    lines += paragraph(f"{said}, up to {found[-1].devices:,} devices, at this batch, with 1F1B.")
    return lines


def target_lines(
    found: Sequence[Answer],
    chosen: Answer | None,
    name: str,
    question: Question,
    *,
    tokens: float,
    days: float,
) -> list[str]:
    """The fewest devices that keep the time, and their cost."""
    lines = _asked(name, question)
    if chosen is None:
        last = found[-1]
        needed = tokens / last.tokens_per_s / 3600 / _HOURS_PER_DAY
        return lines + paragraph(
            f"not in {days:g} days with up to {last.devices:,} devices, which need {needed:,.0f}"
        )
    lines += _rows([chosen], with_devices=True)
    takes = tokens / chosen.tokens_per_s / 3600 / _HOURS_PER_DAY
    return lines + paragraph(
        f"{tokens / BILLION:,.0f} billion tokens in {takes:,.1f} days: "
        f"{chosen.device_hours(tokens):,.0f} GPU-hours"
    )


def score_lines(found: Mapping[str, Any], platform: Accelerators) -> list[str]:
    """Errors, by parts of the cut, and the worst rows."""
    held = found["hold_out"]
    how = f"each {held} held out in turn" if held else "the platform's own constants"
    lines = paragraph(
        f"{found['rows']:,} runs, {how}: mean absolute error {found['mean_absolute_error']:.1%}, "
        f"median {found['median_absolute_error']:.1%}; {platform.description}"
    )
    columns = [Column("by"), *(Column("", right=True) for _ in range(9))]
    rows = []
    for name in ("tensor", "data", "pipeline", "micro_batch"):
        errors = list(found["by"][name].items())[:9]
        cells = [f"{value}: {one['mean_absolute_error']:.0%}" for value, one in errors]
        rows.append((name, *cells, *[""] * (9 - len(cells))))
    lines += table(columns, rows)
    lines.append("worst rows")
    columns = [
        Column("devices", right=True), Column("hidden", right=True),
        Column("t x d x p", right=True), Column("micro", right=True),
        Column("measured", right=True), Column("predicted", right=True),
        Column("error", right=True),
    ]  # fmt: skip
    lines += table(
        columns,
        [
            (
                f"{one['devices']}",
                f"{one['hidden_size']}",
                f"{one['tensor']} x {one['data']} x {one['pipeline']}",
                f"{one['micro_batch']}",
                duration_text(one["measured_s"]),
                duration_text(one["predicted_s"]),
                f"{one['error']:+.0%}",
            )
            for one in found["worst"]
        ],
    )
    choices = found["choices"]
    if choices["groups"]:
        lines += paragraph(
            f"choosing in {choices['groups']} groups of one model, batch and number of devices: "
            f"the fastest run chosen in {choices['best_chosen']:.0%}, mean regret "
            f"{choices['mean_regret']:.1%}, largest {choices['largest_regret']:.1%}"
        )
    return lines


def calibration_lines(value: Mapping[str, Any], platform: Accelerators) -> list[str]:
    """Every constant with its interval."""
    columns = [
        Column("constant"), Column("fitted", right=True), Column("90 %", right=True),
        Column("prior", right=True), Column("unit", drop=1),
    ]  # fmt: skip
    rows = [
        (
            name,
            f"{one['value']:.3g}",
            f"{one['low']:.2g} to {one['high']:.2g}",
            f"{one['prior']:.3g}",
            str(one["unit"]),
        )
        for name, one in value["constants"].items()
    ]
    lines = paragraph(
        f"{len(rows)} constants from {value['rows']:,} runs: {platform.description}; mean absolute "
        f"error on the same runs {value['mean_absolute_error']:.1%}"
    )
    lines += table(columns, rows)
    if "written" in value:
        lines.append(f"written: {value['written']}")
    return lines
