"""Choices: what was predicted of each candidate, what was measured, and which one is advised.

::

    VGG-11, CIFAR-10, 1x2, 16 samples a step         speed-up
    Zero bubble   |------ predicted, 90 % ------|      1.32x  not advised: only predicted
    DDP           |------ predicted, 90 % ------|      1.14x         <- recommended, in bold
                          |-o-|  measured
    Sequential         |--- predicted, 90 % ---|       1.00x
    next case                                        speed-up
    ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddlbench.common.units import HOURS, TIMES, unit_for
from ddlbench.report.bars import draw_intervals, name_rows
from ddlbench.report.labels import case_title
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out
from ddlbench.report.looks import strategy_look
from ddlbench.report.style import GREY, LINE_MM, MM, text_width_mm, ticks_in, wrapped

_ROW_MM = 5.0
_MOST = 6  # cases
_GAP_MM = 2.0
_REASON_MM = 52.0
_HEADING = "speed-up"
_BESIDE: dict[str, Any] = {"va": "center", "color": GREY, "annotation_clip": False}
_COLUMNS = [
    "case", "strategy", "basis", "step_s", "low_s", "high_s", "predicted_low_s",
    "predicted_high_s", "speedup", "speedup_basis", "recommended", "why_not",
]  # fmt: skip


def draw(choice: Mapping[str, Any]) -> tuple[Figure, pd.DataFrame]:
    """One panel an answer, one row a candidate, the fastest above.

    Args:
        choice: the content of choice.json.

    Returns:
        the figure, and the numbers of its rows.
    """
    answers = choice["answers"][:_MOST]
    shown = [one for answer in answers for one in answer["candidates"]]
    left = max((text_width_mm(one["label"]) for one in shown), default=0.0) + 5
    reasons = (line for answer in answers for lines in _reasons(answer) for line in lines)
    reason_mm = max(map(text_width_mm, reasons), default=0.0)
    right = _GAP_MM + text_width_mm(_HEADING) + (_GAP_MM + reason_mm if reason_mm else 0.0)
    page = lay_out(
        "Which strategy is the fastest?",
        _legend(shown),
        [_section(answer) for answer in answers] or [Section("There is no answer", [Panel("")])],
        footer=_footer(choice),
        size=PanelSize(50, _ROW_MM, left=left, between=left, right=right + 1, max_width=110),
    )
    for answer, (axes,) in zip(answers, page.axes, strict=False):
        _panel(axes, answer, page.width_mm)
    if not answers:
        page.axes[0][0].set_axis_off()
    rows = [_numbers(answer, one) for answer in answers for one in answer["candidates"]]
    return page.figure, pd.DataFrame(rows, columns=_COLUMNS)


def _reason(answer: Mapping[str, Any], strategy: str) -> list[str]:
    """Lines that say why a strategy with a higher speed-up is not the advised one."""
    reason = answer["why_not"].get(strategy)
    return wrapped(f"not advised: {reason}", _REASON_MM) if reason else []


def _reasons(answer: Mapping[str, Any]) -> list[list[str]]:
    return [_reason(answer, one["strategy"]) for one in answer["candidates"]]


def _section(answer: Mapping[str, Any]) -> Section:
    rows = answer["candidates"]
    if not rows:
        return Section("", [Panel(_title(answer["case"]), next(iter(answer["advice"]), ""))], 1.0)
    row_mm = max([_ROW_MM, *(len(lines) * LINE_MM + 0.5 for lines in _reasons(answer))])
    return Section("", [Panel(_title(answer["case"]))], height=row_mm * len(rows) + 2)


def _panel(axes: Axes, answer: Mapping[str, Any], width_mm: float) -> None:
    candidates = answer["candidates"]
    if not candidates:
        axes.set_axis_off()
        return
    for place, one in enumerate(candidates):
        measured = (one["step_s"], one["interval_s"]) if one["basis"] == "measured" else None
        colour = strategy_look(one["strategy"]).colour
        draw_intervals(axes, place, _predicted(one), measured, colour)
        _beside(axes, place, one, _reason(answer, one["strategy"]), width_mm)
    name_rows(axes, [one["label"] for one in candidates])
    axes.set_xlim(left=0)
    for label, one in zip(axes.get_yticklabels(), candidates, strict=True):
        if one["strategy"] == answer["recommended"]:
            label.set_fontweight("bold")
    ends = [end for one in candidates for end in (*one["interval_s"], *_predicted(one))]
    ticks_in(unit_for(max(ends), TIMES), axes.xaxis, "Step", 6)
    axes.annotate(
        _HEADING, (1 + _GAP_MM / width_mm, 1), xytext=(0, _GAP_MM * 72 * MM),
        xycoords="axes fraction", textcoords="offset points", ha="left", **_BESIDE,
    )  # fmt: skip


def _predicted(one: Mapping[str, Any]) -> Sequence[float]:
    """The ends of what was predicted; none for a candidate that was only measured."""
    if one["predicted_interval_s"] is None and one["basis"] == "predicted":
        return list(one["interval_s"])
    return one["predicted_interval_s"] or ()


def _beside(
    axes: Axes, place: int, one: Mapping[str, Any], reason: list[str], width_mm: float
) -> None:
    """The speed-up, then why it is not advised, to the right of a row."""
    end = 1 + (_GAP_MM + text_width_mm(_HEADING)) / width_mm
    style = {**_BESIDE, "xycoords": axes.get_yaxis_transform()}
    if one["speedup"] is not None:
        colour = "black" if one["speedup_basis"] == "measured" else GREY
        text = f"{one['speedup']:.2f}x"
        axes.annotate(text, (end, place), ha="right", **{**style, "color": colour})
    if reason:
        at = (end + _GAP_MM / width_mm, place)
        axes.annotate("\n".join(reason), at, ha="left", linespacing=1.05, **style)


def _legend(candidates: Sequence[Mapping[str, Any]]) -> list[tuple[Artist, str]]:
    """What some candidate has."""
    entries: list[tuple[Artist, str]] = []
    if any(map(_predicted, candidates)):
        line = Line2D([], [], linestyle="-", color=GREY, linewidth=2)
        entries.append((line, "predicted, 90 % (speed-up in grey)"))
    if any(one["basis"] == "measured" for one in candidates):
        line = Line2D([], [], linestyle="-", marker="o", color="black")
        entries.append((line, "measured, 90 % (speed-up in black)"))
    return entries


def _title(case: Mapping[str, Any]) -> str:
    usual = {"fabric": "default", "precision": "fp32"}
    settings = {**usual, **case["settings"]}
    other = [settings[name] for name in usual if settings[name] != usual[name]]
    return case_title(case, *other, f"{case['batch_size']} samples a step")


def _footer(choice: Mapping[str, Any]) -> list[str]:
    """The advice of the one answer, or how many there are; then what it cost."""
    answers = choice["answers"]
    said = answers[0]["advice"][:1] if len(answers) == 1 else []
    end = f"Site {choice['site']}."
    if len(answers) > 1:
        which = f"The first {_MOST} of " if len(answers) > _MOST else ""
        end = f"{which}{len(answers)} cases. Bold: recommended. {end}"
    if choice["trials"]:
        spent = f"{HOURS.of(choice['device_s']):.2g} device-hours"
        if choice["device_s_all"]:
            spent += f" of {HOURS.of(choice['device_s_all']):.2g} for all candidates"
        end = f"{spent}. Stopped: {choice['stopped']}. {end}"
    return [*said, end]


def _numbers(answer: Mapping[str, Any], one: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        _title(answer["case"]),
        *(one[name] for name in ("strategy", "basis", "step_s")),
        *one["interval_s"],
        *(_predicted(one) or (None, None)),
        one["speedup"],
        one["speedup_basis"],
        one["strategy"] == answer["recommended"],
        answer["why_not"].get(one["strategy"], ""),
    )
