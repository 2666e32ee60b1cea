"""Predicted and measured steps under each link condition: they test a predictor's network term.

::

    step |  o   measured         x: the conditions, from the fastest link to the slowest
         |  ^   a predictor      panels are networks, sections strategies and geometries
         +--base--lat10--bw250--

Predictions for an emulated fabric use the links measured under it. Without a measurement they use
links computed from its delay, rate and loss (``predict/tcp.py``). The footer says which.
"""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ddlbench.experiment.registry import BASE
from ddlbench.experiment.status import Status
from ddlbench.planning.labels import dataset_label, network_label, strategy_label
from ddlbench.report.bars import draw_cross, write_instead
from ddlbench.report.curves import log_limits, log_y, whisker
from ddlbench.report.figures.networking import NOT_ENDED
from ddlbench.report.footer import Context, footer, sentence
from ddlbench.report.labels import variant_labels, workers_label
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out, nothing_to_show, unique
from ddlbench.report.predicted import Predicted, own_predictors, shown_cells
from ddlbench.report.style import GREY
from ddlbench.report.tables import rows_of

_LOOKS = (
    ("#0072B2", "^"), ("#D55E00", "v"), ("#009E73", "s"), ("#CC79A7", "D"), ("#56B4E9", "<"),
    ("#E69F00", ">"), ("#7A7A00", "p"), ("#5B2A48", "h"),
)  # fmt: skip
_SIGNS = {"^": "△", "v": "▽", "s": "□", "D": "◇", "<": "◁", ">": "▷", "p": "⬠", "h": "⬡"}
_TABLE = [
    "strategy", "geometry", "options", "batch_size", "network", "dataset", "fabric",
    "link_latency_s", "link_bits_per_s", "link_loss", "predictor", "predicted_step_s",
    "measured_step_s", "measured_low_s", "measured_high_s", "signed_error", "computed_links",
    "mark", "notes",
]  # fmt: skip
_ENDS = ("measured_step_s", "measured_low_s", "measured_high_s", "predicted_step_s")
_COMPUTED = "are computed from its delay"


def draw(predicted: Predicted, context: Context) -> tuple[Figure, pd.DataFrame]:
    """All parallel strategies that ran over at least two conditions."""
    shown = _shown(predicted)
    title = "Step by link condition: predicted beside measured"
    if shown.empty:
        below = footer(shown_cells(predicted, shown), context, [])
        reason = "No strategy that ran under two conditions."
        return nothing_to_show(title, reason, below, _TABLE)
    fabrics = in_condition_order(shown)
    looks = _looks(shown)
    sections = []
    for heading, part in shown.groupby("section", sort=False):
        panels = []
        for place, network in enumerate(unique(shown["panel"])):
            ends = pd.concat([part[name] for name in _ENDS])
            data = (part[part["panel"] == network], log_limits(ends, 1.6, 1.6))
            panels.append(Panel(network, "" if place else _signs(part, looks), data))
        sections.append(Section(str(heading), panels))
    page = lay_out(
        title,
        [(Line2D([], [], color="black", marker="o", linestyle="none"), "measured")],
        sections,
        footer=footer(shown_cells(predicted, shown), context, _sentences(shown)),
        size=PanelSize(
            min_width=max(40.0, 9.0 * len(fabrics)), height=30.0, left=13.0, between=4.0,
            bottom=lambda width: 5.0 if width >= 9.0 * len(fabrics) else 12.0, max_width=90.0,
        ),
        share_y=True,
    )  # fmt: skip
    for axes, (own, limits) in page.facets:
        _frame(axes, fabrics, limits)
        _fill(axes, own, fabrics, looks)
    page.label_rows("Step (s)", labelpad=1)
    return page.figure, shown[_TABLE]


def in_condition_order(frame: pd.DataFrame) -> list[str]:
    """Fabrics in increasing order of loss, then delay, then 1 / rate."""
    known = frame.drop_duplicates("fabric").fillna(
        {"link_latency_s": -1.0, "link_bits_per_s": math.inf, "link_loss": -1.0}
    )
    ordered = known.sort_values(
        ["link_loss", "link_latency_s", "link_bits_per_s"], ascending=[True, True, False]
    )
    return list(ordered["fabric"])


def _shown(predicted: Predicted) -> pd.DataFrame:
    frame = predicted.predictions
    conditions = predicted.summary.set_index("configuration")[
        ["link_latency_s", "link_bits_per_s", "link_loss"]
    ]
    parts = []
    for strategy, own in frame.groupby("strategy", sort=False):
        if strategy == BASE or own["fabric"].nunique() < 2:
            continue
        names = [n for n in own_predictors(frame, str(strategy)) if not n.startswith("paradl-")]
        parts.append(own[own["predictor"].isin(names)])
    shown = pd.concat(parts) if parts else frame.iloc[:0]
    shown = shown.join(conditions, on="configuration").reset_index(drop=True)
    variants = variant_labels(shown, without=("fabric",))
    shown["section"] = [
        f"{strategy_label(str(row.strategy))}, {workers_label(int(row.workers))} ({row.geometry})"
        + (f", {variant}" if variant else "")
        for row, variant in zip(rows_of(shown), variants, strict=True)
    ]
    shown["panel"] = [
        f"{network_label(str(row.network))}, {dataset_label(str(row.dataset))}"
        for row in rows_of(shown)
    ]
    shown["computed_links"] = shown["notes"].str.contains(_COMPUTED, regex=False)
    return shown


def _looks(shown: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """Choose a colour and marker for each predictor; those of one strategy never share a look."""
    looks: dict[str, tuple[str, str]] = {}
    for _, own in shown.groupby("strategy", sort=False):
        taken = {looks[name] for name in set(own["predictor"]) & set(looks)}
        free = (look for look in _LOOKS if look not in taken)
        for name in dict.fromkeys(own["predictor"]):
            if name not in looks:
                looks[name] = next(free, _LOOKS[-1])
    return looks


def _signs(part: pd.DataFrame, looks: dict[str, tuple[str, str]]) -> str:
    """The legend of one section's signs, as sections have different predictors."""
    names = dict.fromkeys(part["predictor"])
    return ", ".join(f"{_SIGNS[looks[name][1]]}{name}" for name in names)


def _sentences(shown: pd.DataFrame) -> list[str]:
    computed = list(dict.fromkeys(shown.loc[shown["computed_links"], "fabric"]))
    sentences = []
    if computed:
        sentences.append(sentence("conditions_computed", links=", ".join(map(str, computed))))
    if shown["measured_step_s"].isna().any():
        sentences.append(sentence("conditions_crosses"))
    return sentences


def _frame(axes: Axes, fabrics: list[str], limits: tuple[float, float]) -> None:
    log_y(axes, limits, 8)
    axes.set_xlim(-0.5, len(fabrics) - 0.5)
    axes.set_xticks(range(len(fabrics)), fabrics)
    if 9.0 * len(fabrics) > axes.get_window_extent().width / axes.figure.dpi * 25.4:
        for label in axes.get_xticklabels():
            label.set(rotation=30, ha="right", rotation_mode="anchor")
    axes.tick_params(axis="x", length=0)


def _fill(
    axes: Axes, own: pd.DataFrame, fabrics: list[str], looks: dict[str, tuple[str, str]]
) -> None:
    for x, missing in enumerate(fabrics):
        if missing not in set(own["fabric"]):
            write_instead(axes, x, Status.NOT_RUN.value, gid=Status.NOT_RUN.value)
    for fabric, cells in own.groupby("fabric", sort=False):
        x = fabrics.index(str(fabric))
        row = next(rows_of(cells))
        if math.isfinite(row.measured_step_s):
            whisker(axes, x, (row.measured_low_s, row.measured_high_s), "black", 0.8, gid="whisker")
            axes.plot([x], [row.measured_step_s], color="black", marker="o", gid="measured")
        else:
            colour = NOT_ENDED if row.status == Status.TIMEOUT else GREY
            draw_cross(axes, x, colour)
            write_instead(axes, x, str(row.status), y=0.09, gid="status")
        names = [name for name in looks if name in set(cells["predictor"])]
        for place, name in enumerate(names):
            predicted_s = cells.loc[cells["predictor"] == name, "predicted_step_s"].iloc[0]
            if math.isfinite(predicted_s):
                colour, marker = looks[name]
                shift = (place - (len(names) - 1) / 2) * 0.16
                axes.plot(
                    [x + shift + (0.1 if shift >= 0 else -0.1)], [predicted_s], color=colour,
                    marker=marker, markerfacecolor="none", markersize=4.0, linestyle="none",
                    gid="predicted",
                )  # fmt: skip
