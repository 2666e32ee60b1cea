"""What training learns: its loss over updates and seconds, and its accuracy over seconds.

Loss shows the cost of stale weights. It is the mean over a window of the mini-batches as they are
trained on. The target of a panel is the lowest loss that *all* of its strategies reach, so it is
not chosen by hand. The line of a diverging run ends in a cross where its loss is no number; it
neither reaches nor sets the target. The axis is logarithmic where the target would lie on its foot
otherwise.

Accuracy on the validation images shows what a faster step is worth. A point is the median over
repeats after an epoch. The seconds are those of measured epochs alone, so a network that the
warm-up has trained is a little ahead of its seconds, in every strategy alike.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ddlbench.common.quantities import TIMES, counted, unit_for
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.planning.labels import dataset_label, in_dataset_order, network_label, strategy_label
from ddlbench.report.curves import Lines, by_link, mark_end
from ddlbench.report.footer import Context, footer, sentence, without_signs
from ddlbench.report.labels import variant_labels
from ddlbench.report.layout import Panel, PanelSize, Section, lay_out, nothing_to_show, unique
from ddlbench.report.registry import LEARNING_STEPS
from ddlbench.report.style import DOTS, plain, ticks_in
from ddlbench.report.tables import Tables, rows_of

_LOSS_TABLE = [
    "dataset", "network", "strategy", "variant", "geometry", "fabric", "update_semantics",
    "batch_size", "steps", "window", "target_loss", "steps_to_target", "seconds_to_target",
    "step_s", "loss_end", "diverged_after",
]  # fmt: skip
_KEYS = ["dataset", "network", "batch_size"]
_LOSS_TITLE = "Training loss by updates and by time"
_FOOT = 0.05  # of the axis: what lies below cannot be told from its foot


def loss_curves(steps: pd.DataFrame, cell_ids: list[str]) -> dict[str, pd.DataFrame]:
    """Smoothed loss of each cell, warm-up included: ``step``, ``seconds``, ``loss``, ``window``.

    ``loss`` is the mean of the last ``window`` steps: a tenth of the run, but at most 20. The curve
    of a run that ``diverged`` ends before its first loss that is no number. Cells with fewer than
    :data:`LEARNING_STEPS` steps are left out.
    """
    curves = {}
    for cell_id, of_cell in steps[steps["cell_id"].isin(cell_ids)].groupby("cell_id", sort=False):
        timed = of_cell[of_cell["step_s"].notna()]
        finite = np.isfinite(timed["loss"].to_numpy(dtype=float))
        if len(timed) < LEARNING_STEPS or not finite.any():
            continue
        until = len(timed) if finite.all() else int(np.argmin(finite))
        known = timed.iloc[:until]
        window = min(20, max(1, until // 10))
        smooth = known["loss"].rolling(window).mean().to_numpy()
        curves[str(cell_id)] = pd.DataFrame(
            {
                "step": np.arange(1, until + 1),
                "seconds": known["step_s"].cumsum().to_numpy(),
                "loss": smooth,
                "window": window,
                "diverged": until < len(timed),
            }
        ).dropna()
    return curves


def time_to_loss(curves: dict[str, pd.DataFrame]) -> dict[str, tuple[float, float, float]]:
    """The common target loss, and steps and seconds until each cell reaches it.

    Steps and seconds are NaN for a cell that diverged. The target is NaN if all diverged.
    """
    ended = {cell_id: curve for cell_id, curve in curves.items() if not _diverged(curve)}
    target = max((float(curve["loss"].min()) for curve in ended.values()), default=math.nan)
    reached = dict.fromkeys(curves, (target, math.nan, math.nan))
    for cell_id, curve in ended.items():
        first = curve[curve["loss"] <= target].iloc[0]
        reached[cell_id] = (target, float(first["step"]), float(first["seconds"]))
    return reached


def _diverged(curve: pd.DataFrame) -> bool:
    return curve.empty or bool(curve["diverged"].iloc[0])


def draw(tables: Tables, context: Context) -> tuple[Figure, pd.DataFrame]:
    """A section is a network, dataset and batch size: loss over updates and over seconds."""
    named = variant_labels(tables.summary, without=("fabric", "batch_size"))
    shown = tables.summary.assign(variant=named)
    firsts = tables.measurements.drop_duplicates("cell_id").query("status == 'ok' and repeat == 0")
    by_configuration = {str(i).rpartition("/")[0]: str(i) for i in firsts["cell_id"]}
    curves = loss_curves(tables.steps, list(by_configuration.values()))
    shown["cell_id"] = shown["configuration"].map(by_configuration)
    shown = shown[shown["cell_id"].isin(list(curves))].reset_index(drop=True)
    if shown.empty:
        reason = f"No run with {LEARNING_STEPS} losses yet."
        return nothing_to_show(
            _LOSS_TITLE, reason, footer(tables.summary, context, []), _LOSS_TABLE
        )
    parts = [
        (heading, part)
        for _, network in shown.groupby(_KEYS, sort=False)
        for heading, part in by_link(network)
    ]
    lines = Lines(shown)
    sizes = sorted({int(curve["window"].iloc[0]) for curve in curves.values()})
    windows = " or ".join(map(str, sizes))
    signed = without_signs(shown).assign(stale=shown["stale"])
    page = lay_out(
        _LOSS_TITLE,
        lines.legend(),
        [
            Section(_heading(part, link), [Panel("by updates"), Panel("by time")])
            for link, part in parts
        ],
        footer=footer(signed, context, [sentence("loss", window=windows), _lost(shown, curves)]),
        size=PanelSize(min_width=50.0, height=34.0, left=12.0, between=4.0),
        share_y=True,
    )
    records: list[dict[str, Any]] = []
    for (_, part), (by_step, by_time) in zip(parts, page.axes, strict=True):
        shown_curves = {str(row.cell_id): curves[str(row.cell_id)] for row in rows_of(part)}
        reached = time_to_loss(shown_curves)
        for place, row in enumerate(rows_of(part)):
            curve, look = shown_curves[row.cell_id], lines.look(row)
            # Markers of lines that lie on each other stand side by side.
            look["markevery"] = (_MARKERS_APART * place / len(part), _MARKERS_APART)
            _loss_line(by_step, curve, "step", row, look)
            _loss_line(by_time, curve, "seconds", row, look)
            records.append(_record(row, curve, reached[row.cell_id]))
        # A run that diverges gets three times its first loss at most.
        tops = [
            3 * curve["loss"].iloc[0] if _diverged(curve) else curve["loss"].max()
            for curve in shown_curves.values()
        ]
        top = 1.05 * float(max(tops))
        _loss_frame(by_step, reached, top, "Updates of the mini-batch size")
        _loss_frame(by_time, reached, top, "Time (s)")
        by_step.set_ylabel("Loss", labelpad=1)
    return page.figure, pd.DataFrame(records, columns=_LOSS_TABLE)


def _record(row: Any, curve: pd.DataFrame, reached: tuple[float, float, float]) -> dict[str, Any]:
    return {
        **{name: getattr(row, name) for name in _LOSS_TABLE if hasattr(row, name)},
        "steps": int(curve["step"].iloc[-1]),
        "window": int(curve["window"].iloc[0]),
        "target_loss": reached[0],
        "steps_to_target": reached[1],
        "seconds_to_target": reached[2],
        "step_s": row.step_median_s,
        "loss_end": math.nan if _diverged(curve) else float(curve["loss"].iloc[-1]),
        "diverged_after": int(curve["step"].iloc[-1]) if _diverged(curve) else None,
    }


def _heading(part: pd.DataFrame, link: str) -> str:
    first = part.iloc[0]
    workers = int(part["workers"].max())
    named = [network_label(str(first["network"])), dataset_label(str(first["dataset"]))]
    named += [f"mini-batch {first['batch_size']}", f"up to {counted(workers, 'worker')}", link]
    return ", ".join(filter(None, named))


def _lost(shown: pd.DataFrame, curves: dict[str, pd.DataFrame]) -> str:
    names = [
        f"{strategy_label(row.strategy, row.variant)} after {int(curve['step'].iloc[-1])} updates"
        for row in rows_of(shown)
        if _diverged(curve := curves[row.cell_id])
    ]
    return f"Crosses: the loss is no number any more ({', '.join(names)})." if names else ""


_MARKERS_APART = 0.2  # of the diagonal of the axes


def _loss_line(axes: Axes, curve: pd.DataFrame, over: str, row: Any, look: dict[str, Any]) -> None:
    axes.plot(curve[over], curve["loss"], **look, gid="line")
    end = (curve[over].iloc[-1], curve["loss"].iloc[-1])
    if _diverged(curve):
        axes.plot(
            [end[0]], [0.96], transform=axes.get_xaxis_transform(), linestyle="none", marker="x",
            markersize=3.5, color=look["color"], gid="mark",
        )  # fmt: skip
    if row.stale:
        mark_end(axes, end, 2)


def _loss_frame(
    axes: Axes, reached: dict[str, tuple[float, float, float]], top: float, label: str
) -> None:
    target = next(iter(reached.values()))[0]
    if math.isfinite(target):
        axes.axhline(target, **DOTS, gid="target")
    if 0 < target < _FOOT * top:
        axes.set_yscale("log")
        axes.set_ylim(target / 2, top)
    else:
        axes.set_ylim(0, top)
    axes.set_xlim(left=0)
    axes.set_xlabel(label, labelpad=1)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(plain)


_ACCURACY_TABLE = [
    "dataset", "network", "strategy", "variant", "geometry", "fabric", "batch_size", "epoch",
    "training_s", "accuracy", "n", "chance",
]  # fmt: skip
_ACCURACY_TITLE = "Accuracy by training time"
_DOTS: dict[str, Any] = {**DOTS, "linewidth": 0.8}


def accuracy_curves(validation: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """``epoch``, ``training_s``, ``accuracy`` and number ``n`` of runs of each configuration.

    Seconds and accuracy are medians over repeats.
    """
    configurations = validation["cell_id"].str.replace(r"/rep\d+$", "", regex=True)
    return {
        str(name): of_configuration.groupby("epoch", as_index=False).agg(
            training_s=("training_s", "median"),
            accuracy=("accuracy", "median"),
            n=("accuracy", "size"),
        )
        for name, of_configuration in validation.groupby(configurations, sort=False)
    }


def chance(dataset: str) -> float:
    """Accuracy of guessing, as classes are equally frequent; NaN for an unknown dataset."""
    return 1 / DATASETS[dataset].num_classes if dataset in DATASETS else math.nan


def draw_time_to_accuracy(tables: Tables, context: Context) -> tuple[Figure, pd.DataFrame]:
    """Panels are datasets and networks, lines strategies with their variants."""
    curves = accuracy_curves(tables.validation)
    named = variant_labels(tables.summary, without=("fabric",))
    shown = tables.summary.assign(variant=named)
    shown = shown[shown["configuration"].isin(list(curves))].reset_index(drop=True)
    if shown.empty:
        below = footer(tables.summary, context, [])
        reason = "No run with validation yet."
        return nothing_to_show(_ACCURACY_TITLE, reason, below, _ACCURACY_TABLE)
    lines = Lines(shown)
    several = any(int(curve["n"].max()) > 1 for curve in curves.values())
    medians = "; medians over repeats" if several else ""
    signed = without_signs(shown).assign(stale=shown["stale"])
    page = lay_out(
        _ACCURACY_TITLE,
        [*lines.legend(), (Line2D([], [], **_DOTS), "chance: one over the number of classes")],
        [Section("", _panels(shown))],
        footer=footer(signed, context, [sentence("time_to_accuracy", repeats=medians)]),
        size=PanelSize(min_width=50.0, height=38.0, left=12.0, between=5.0),
        share_y=True,
    )
    records: list[dict[str, Any]] = []
    for axes, part in page.facets:
        guessed = chance(str(part["dataset"].iloc[0]))
        for row in rows_of(part):
            curve = curves[row.configuration]
            axes.plot(curve["training_s"], curve["accuracy"], **lines.look(row), gid="line")
            if row.stale:
                mark_end(axes, (curve["training_s"].iloc[-1], curve["accuracy"].iloc[-1]), 3)
            values = {name: getattr(row, name) for name in _ACCURACY_TABLE if hasattr(row, name)}
            points: list[Any] = curve.to_dict("records")
            records += [{**values, **point, "chance": guessed} for point in points]
        longest_s = max(float(curves[name]["training_s"].max()) for name in part["configuration"])
        _accuracy_frame(axes, longest_s, guessed)
    page.label_rows("Accuracy", labelpad=1)
    return page.figure, pd.DataFrame(records, columns=_ACCURACY_TABLE)


def _panels(shown: pd.DataFrame) -> list[Panel]:
    """One for each dataset, network and link; its data are their rows."""
    panels = []
    for dataset in in_dataset_order(shown["dataset"]):
        of_dataset = shown[shown["dataset"] == dataset]
        panels += [
            Panel(
                ", ".join(filter(None, (network_label(network), dataset_label(dataset), link))),
                data=part,
            )
            for network in unique(of_dataset["network"])
            for link, part in by_link(of_dataset[of_dataset["network"] == network])
        ]
    return panels


def _accuracy_frame(axes: Axes, longest_s: float, guessed: float) -> None:
    if math.isfinite(guessed):
        axes.axhline(guessed, **_DOTS, gid="chance")
    axes.set_ylim(0, 1.03)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axes.set_xlim(0, 1.06 * longest_s or 1.0)
    ticks_in(unit_for(longest_s, TIMES), axes.xaxis, "Training time", 5)
