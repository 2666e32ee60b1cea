"""Choices: of a strategy, of its options, and among the ways to choose.

What was predicted of each candidate, what was measured, and which one is advised. Measured steps
correct the predictions of candidates that were not measured::

    VGG-11, CIFAR-10, 1x2, batch 16                  speed-up
    Zero bubble   |---o-- predicted, 90 % ------|      1.32x  not advised: only predicted
    DDP           |----o- predicted, 90 % ------|      1.14x         <- recommended, in bold
                          |-o-|  measured
    Sequential         |------o- predicted, 90 % ---|  1.00x
    next case                                        speed-up
    ...

A search for options, with the same of each configuration::

    chunks=8 balance=work   |-o- predicted, 90 % ---|
                                  |-o-|  measured               <- best
    chunks=4 balance=work    |-o- predicted, 90 % ---|

What a way to choose costs, and how well it chooses (thesis, Figure 8.1)::

    right or within the noise          extra time
      |            o K=1  o K=2  x       |  o recommender
      |  o recommender                   |          o K=1
      |_______________________           |______________o K=2__x__
        device time, over running everything (log)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from ddlbench.common.quantities import HOURS, TIMES, ratio_text, unit_for
from ddlbench.planning.labels import strategy_label
from ddlbench.report.bars import name_rows
from ddlbench.report.footer import sentence
from ddlbench.report.labels import case_title, other_settings, span_text, strategy_look
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out
from ddlbench.report.style import (
    GREY,
    LINE_MM,
    LOG_FROM,
    MM,
    log_steps_axis,
    plain,
    text_width_mm,
    ticks_in,
    wrapped,
)
from ddlbench.report.tables import rows_of

_TITLE_MM = 100.0
_ROW_MM = 5.0
_APART = 0.2  # of a row, from its middle
_MOST_CASES = 6  # cases
_GAP_MM = 2.0
_REASON_MM = 52.0
_HEADING = "speed-up"
_BESIDE: dict[str, Any] = {"va": "center", "color": GREY, "annotation_clip": False}
_CHOICE_COLUMNS = [
    "case", "strategy", "basis", "step_s", "low_s", "high_s", "predicted_low_s", "predicted_s",
    "predicted_high_s", "speedup", "speedup_basis", "recommended", "why_not",
]  # fmt: skip


def draw(choice: Mapping[str, Any]) -> tuple[Figure, pd.DataFrame]:
    """One panel an answer of choice.json, one row a candidate, the fastest above."""
    answers = choice["answers"][:_MOST_CASES]
    shown = [candidate for answer in answers for candidate in answer["candidates"]]
    left = max((text_width_mm(candidate["label"]) for candidate in shown), default=0.0) + 5
    reasons = (line for answer in answers for lines in _reasons(answer) for line in lines)
    reason_mm = max(map(text_width_mm, reasons), default=0.0)
    right = _GAP_MM + text_width_mm(_HEADING) + (_GAP_MM + reason_mm if reason_mm else 0.0)
    titles = [_title_lines(answer)[0] for answer in answers] or [""]
    page = lay_out(
        "Which strategy is the fastest?",
        _legend(shown),
        [_section(answer) for answer in answers] or [Section("There is no answer", [Panel("")])],
        footer=_choice_footer(choice),
        size=PanelSize(
            max(50.0, *(text_width_mm(line, 7.5) for line in titles)), _ROW_MM, left=left,
            between=left, right=right + 1, max_width=110,
        ),
    )  # fmt: skip
    for answer, (axes,) in zip(answers, page.axes, strict=False):
        _panel(axes, answer, page.width_mm)
    if not answers:
        page.axes[0][0].set_axis_off()
    rows = [_numbers(answer, candidate) for answer in answers for candidate in answer["candidates"]]
    return page.figure, pd.DataFrame(rows, columns=_CHOICE_COLUMNS)


def _reason(answer: Mapping[str, Any], strategy: str) -> list[str]:
    """Lines that say why a strategy with a higher speed-up is not the advised one."""
    reason = answer["why_not"].get(strategy)
    return wrapped(f"not advised: {reason}", _REASON_MM) if reason else []


def _reasons(answer: Mapping[str, Any]) -> list[list[str]]:
    return [_reason(answer, candidate["strategy"]) for candidate in answer["candidates"]]


def _section(answer: Mapping[str, Any]) -> Section:
    rows, (title, *more) = answer["candidates"], _title_lines(answer)
    if not rows:
        return Section("", [Panel(title, " ".join([*more, *answer["advice"][:1]]))], 1.0)
    row_mm = max([_ROW_MM, *(len(lines) * LINE_MM + 0.5 for lines in _reasons(answer))])
    return Section("", [Panel(title, " ".join(more))], height=row_mm * len(rows) + 2)


def _title_lines(answer: Mapping[str, Any]) -> list[str]:
    """The case of an answer, in lines that do not reach the heading beside the axes."""
    return wrapped(_choice_title(answer["case"]), _TITLE_MM, 7.5)


def _panel(axes: Axes, answer: Mapping[str, Any], width_mm: float) -> None:
    candidates = answer["candidates"]
    if not candidates:
        axes.set_axis_off()
        return
    rows = []
    for place, candidate in enumerate(candidates):
        _beside(axes, place, candidate, _reason(answer, candidate["strategy"]), width_mm)
        rows.append(
            _Row(
                candidate["label"],
                _predicted(candidate, *_STEP),
                _measured(candidate, *_STEP),
                strategy_look(candidate["strategy"]).colour,
                candidate["strategy"] == answer["recommended"],
            )
        )
    _draw_rows(axes, rows)
    ends = [end for row in rows for end in (*row.predicted, *row.measured)]
    if max(ends) > LOG_FROM * min(ends):
        log_steps_axis(axes, 0.8 * min(ends), 1.12 * max(ends))
    else:
        ticks_in(unit_for(max(ends), TIMES), axes.xaxis, "Step", 6)
    axes.annotate(
        _HEADING, (1 + _GAP_MM / width_mm, 1), xytext=(0, _GAP_MM * 72 * MM),
        xycoords="axes fraction", textcoords="offset points", ha="left", **_BESIDE,
    )  # fmt: skip


class _Row(NamedTuple):
    label: str
    predicted: Sequence[float]
    """The least, the value and the most; may be empty."""
    measured: Sequence[float]
    """As ``predicted``."""
    colour: str
    bold: bool


def _draw_rows(axes: Axes, rows: Sequence[_Row]) -> None:
    """Rows from top to bottom: in grey what was predicted, below it what was measured."""
    for place, row in enumerate(rows):
        looks = [(row.predicted, -_APART, GREY, 2), (row.measured, _APART, row.colour, 1)]
        for estimate, shift, colour, width in looks:
            if estimate:
                least, value, most = estimate
                axes.plot([least, most], [place + shift] * 2, "-", color=colour, linewidth=width)
                axes.plot([value], [place + shift], "o", color=colour)
    name_rows(axes, [row.label for row in rows])
    axes.set_xlim(left=0)
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row.bold else "normal")


_STEP = ("step_s", "interval_s")  # a value of the documents, and its interval
_RATE = ("samples_per_s", "interval_samples_per_s")


def _measured(entry: Mapping[str, Any], value: str, interval: str) -> Sequence[float]:
    """The least, the value and the most; empty of an entry that is only predicted."""
    if entry["basis"] == "predicted":
        return ()
    low, high = entry[interval]
    return low, entry[value], high


def _predicted(entry: Mapping[str, Any], value: str, interval: str) -> Sequence[float]:
    """The same; of a measured entry what the prediction alone says, empty without one."""
    prefix = "" if entry["basis"] == "predicted" else "predicted_"
    if entry[f"{prefix}{interval}"] is None:
        return ()
    low, high = entry[f"{prefix}{interval}"]
    return low, entry[f"{prefix}{value}"], high


def _beside(
    axes: Axes, place: int, candidate: Mapping[str, Any], reason: list[str], width_mm: float
) -> None:
    """The speed-up, then why it is not advised, to the right of a row."""
    end = 1 + (_GAP_MM + text_width_mm(_HEADING)) / width_mm
    style = {**_BESIDE, "xycoords": axes.get_yaxis_transform()}
    if candidate["speedup"] is not None:
        colour = "black" if candidate["speedup_basis"] == "measured" else GREY
        text = f"{ratio_text(candidate['speedup'])}x"
        axes.annotate(text, (end, place), ha="right", **{**style, "color": colour})
    if reason:
        at = (end + _GAP_MM / width_mm, place)
        axes.annotate("\n".join(reason), at, ha="left", linespacing=1.05, **style)


def _legend(candidates: Sequence[Mapping[str, Any]]) -> list[tuple[Artist, str]]:
    entries: list[tuple[Artist, str]] = []
    if any(_predicted(candidate, *_STEP) for candidate in candidates):
        line = Line2D([], [], linestyle="-", marker="o", color=GREY, linewidth=2)
        entries.append((line, "predicted, 90 % (speed-up in grey)"))
    if any(candidate["basis"] == "measured" for candidate in candidates):
        line = Line2D([], [], linestyle="-", marker="o", color="black")
        entries.append((line, "measured, 90 % (speed-up in black)"))
    return entries


def _choice_title(case: Mapping[str, Any]) -> str:
    return case_title(case, *other_settings(case), f"batch {case['batch_size']}")


def _choice_footer(choice: Mapping[str, Any]) -> list[str]:
    """The advice of the one answer, or how many there are; then what it cost."""
    answers = choice["answers"]
    advice = answers[0]["advice"][:1] if len(answers) == 1 else []
    runs = [
        candidate["runs"]
        for answer in answers[:_MOST_CASES]
        for candidate in answer["candidates"]
        if candidate["basis"] == "measured"
    ]
    number = span_text(runs) if runs else ""
    measured = f"Measured: {number} {'run' if number == '1' else 'runs'} per strategy. "
    end = f"{measured if runs else ''}Site {choice['site']}."
    if len(answers) > 1:
        which = f"The first {_MOST_CASES} of " if len(answers) > _MOST_CASES else ""
        end = f"{which}{len(answers)} cases. Bold: recommended. {end}"
    if choice["trials"]:
        spent = f"{HOURS.of(choice['device_s']):.2g} device-hours"
        if choice["device_s_all"]:
            spent += f" of {HOURS.of(choice['device_s_all']):.2g} for all candidates"
        end = f"{spent}. Stopped: {choice['stopped']}. {end}"
    return [*advice, end]


def _numbers(answer: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        _choice_title(answer["case"]),
        *(candidate[name] for name in ("strategy", "basis", "step_s")),
        *candidate["interval_s"],
        *(_predicted(candidate, *_STEP) or (None, None, None)),
        candidate["speedup"],
        candidate["speedup_basis"],
        candidate["strategy"] == answer["recommended"],
        answer["why_not"].get(candidate["strategy"], ""),
    )


_MOST_TRIALS = 24
_TUNING_COLUMNS = [
    "configuration", "basis", "samples_per_s", "low_samples_per_s", "high_samples_per_s",
    "predicted_low_samples_per_s", "predicted_samples_per_s", "predicted_high_samples_per_s",
    "best",
]  # fmt: skip


def draw_tuning(tuning: Mapping[str, Any]) -> tuple[Figure, pd.DataFrame]:
    """One row per configuration of tuning.json, the fastest above.

    All that were measured are shown, and the likeliest others.
    """
    shown = _shown(tuning["configurations"])
    labels = [_label(configuration) for configuration in shown]
    left = max(map(text_width_mm, labels), default=0) + 5
    case = tuning["case"]
    colour = strategy_look(case["strategy"]).colour
    batch = [] if "batch_size" in case["varied"] else [f"batch {case['batch_size']}"]
    page = lay_out(
        f"Options of {strategy_label(case['strategy'])}",
        [
            (Line2D([], [], linestyle="-", marker="o", color=GREY), "predicted, 90 %"),
            (Line2D([], [], linestyle="-", marker="o", color=colour), "measured, 90 %"),
        ],
        [Section("", [Panel(case_title(case, *batch))], height=_ROW_MM * max(1, len(shown)) + 2)],
        footer=_tuning_footer(tuning),
        size=PanelSize(60, 0, left=left, between=left, max_width=110),
    )
    ((axes,),) = page.axes
    best = tuning["best"]["cell_id"] if tuning["best"] else None
    drawn = [
        _Row(
            label,
            _predicted(configuration, *_RATE),
            _measured(configuration, *_RATE),
            colour,
            configuration["cell_id"] == best,
        )
        for label, configuration in zip(labels, shown, strict=True)
    ]
    _draw_rows(axes, drawn)
    axes.set_xlabel("Samples a second")
    rows = [
        (label, configuration["basis"], configuration["samples_per_s"],
         *configuration["interval_samples_per_s"], *_predicted(configuration, *_RATE),
         configuration["cell_id"] == best)
        for label, configuration in zip(labels, shown, strict=True)
    ]  # fmt: skip
    return page.figure, pd.DataFrame(rows, columns=_TUNING_COLUMNS)


def _shown(configurations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """All that were measured, and the fastest others until the figure is full; in their order."""
    first = sorted(configurations, key=lambda configuration: configuration["basis"] != "measured")[
        :_MOST_TRIALS
    ]
    kept = {configuration["cell_id"] for configuration in first}
    return [configuration for configuration in configurations if configuration["cell_id"] in kept]


def _label(configuration: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in configuration["values"].items())


def _tuning_footer(tuning: Mapping[str, Any]) -> list[str]:
    best = tuning["best"]
    sentence = f"Best: {_label(best)}" if best else "Nothing can run"
    spent = f"{len(tuning['trials'])} cells, {HOURS.of(tuning['device_s']):.2g} device-hours"
    if tuning["device_s_all"]:
        spent += f" of {HOURS.of(tuning['device_s_all']):.2g} for all"
    return [f"{sentence}. {spent}. Stopped: {tuning['stopped']}. Site {tuning['site']}."]


_COLOURS = ("#000000", "#CC79A7", "#E69F00", "#0072B2", "#56B4E9", "#009E73", "#7A7A00")
_MARKERS = ("X", "s", "D", "o", "^", "v", "P")
_WAYS_COLUMNS = [
    *("way", "cases", "right", "within_noise", "regret"),
    *("device_share", "short_share", "shared_profile_share"),
]


def ways(choices: pd.DataFrame) -> pd.DataFrame:
    """Each way's means over the cases that it has an answer for.

    Args:
        choices: rows of choices.csv: ``case`` (which begins with dataset and network), ``way``,
            ``best``, ``best_step_s``, ``picked``, ``picked_step_s``, ``within_noise``,
            ``device_s``, the part of it that profiles the network ``profile_s``, and the device
            time of all candidates: for whole epochs ``device_s_everything``, as short cells
            ``device_s_all``.

    Returns:
        ``device_share`` is of whole epochs, ``short_share`` of short cells. In
        ``shared_profile_share``, which is of short cells, too, the cases of a network share its
        profile.
    """
    network = choices["case"].str.split("/").str[:2].str.join("/")
    cases_of_network = choices.groupby(["way", network])["case"].transform("size")
    saved_s = choices["profile_s"] * (1 - 1 / cases_of_network)
    labelled = choices.assign(
        right=choices["picked"] == choices["best"],
        regret=choices["picked_step_s"] / choices["best_step_s"] - 1,
        device_share=choices["device_s"] / choices["device_s_everything"],
        short_share=choices["device_s"] / choices["device_s_all"],
        shared_profile_share=(choices["device_s"] - saved_s) / choices["device_s_all"],
    )
    means = labelled.groupby("way", sort=False)[_WAYS_COLUMNS[2:]].mean()
    counts = labelled.groupby("way", sort=False).size().rename("cases")
    return means.join(counts).reset_index()[_WAYS_COLUMNS]


def draw_ways(choices: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Two panels over device time: how often a way is right, and the extra time of its picks."""
    shown = ways(choices)
    names = list(shown["way"])
    page = lay_out(
        "How to choose a strategy: device time against accuracy",
        [(_mark(place), name) for place, name in enumerate(names)],
        [Section("", [Panel("Right or within the noise", data=("within_noise", "share of cases")),
                      Panel("Extra time of the choice", data=("regret", "mean over cases"))])],
        footer=[sentence("ways_to_choose", cases=int(shown["cases"].max()))],
        size=PanelSize(min_width=62.0, height=42.0, left=11.0, between=13.0),
    )  # fmt: skip
    for axes, (column, label) in page.facets:
        _fill(axes, shown, column)
        axes.set_ylabel(label, labelpad=1)
    return page.figure, shown


def _fill(axes: Axes, shown: pd.DataFrame, column: str) -> None:
    for place, row in enumerate(rows_of(shown)):
        mark = _mark(place)
        mark.set_data([row.device_share], [getattr(row, column)])
        mark.set_clip_on(False)
        axes.add_line(mark)
    low, high = float(shown["device_share"].min()), float(shown["device_share"].max())
    axes.set_xscale("log")
    axes.set_xlim(low / 1.6, max(high, 1.0) * 1.6)
    top = 1.0 if column == "within_noise" else max(float(shown[column].max()) * 1.15, 0.01)
    axes.set_ylim(0, top)
    axes.xaxis.set_major_formatter(plain)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.set_xlabel("Device time over running everything", labelpad=1)
    axes.grid(axis="y", color=GREY, alpha=0.2, linewidth=0.5)


def _mark(place: int) -> Line2D:
    marker, colour = _MARKERS[place % len(_MARKERS)], _COLOURS[place % len(_COLOURS)]
    return Line2D([], [], linestyle="none", marker=marker, color=colour, markersize=5)
