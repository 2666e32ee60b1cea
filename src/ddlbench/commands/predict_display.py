"""How predictions, rankings and accuracy look in a terminal and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from ddlbench.predict.prediction import Prediction
    from ddlbench.predict.recommend import Recommendation

from ddlbench.experiment.units import GB, SECONDS

__all__ = ["frame_table", "prediction_dict", "records", "show_predictions", "show_recommendation"]


def show_predictions(cell_id: str, told: Sequence[Prediction]) -> None:
    """Print what several predictors say of one cell."""
    table = Table(title=cell_id, title_justify="left")
    for heading in (
        "predictor",
        "step",
        "compute",
        "exposed comm.",
        "all comm.",
        "bubble",
        "memory, fullest device",
    ):
        table.add_column(heading, justify="left" if heading == "predictor" else "right")
    for prediction in told:
        table.add_row(
            prediction.predictor,
            *(
                _seconds(value)
                for value in (
                    prediction.step_s,
                    prediction.compute_s,
                    prediction.exposed_communication_s,
                    prediction.communication_s,
                    prediction.bubble_s,
                )
            ),
            _gigabytes(max(prediction.memory_bytes, default=None)),
        )
    console = Console()
    console.print(table)
    for prediction in told:
        for remark in (*prediction.notes, *prediction.limits):
            console.print(f"{prediction.predictor}: {remark}", soft_wrap=True)


def prediction_dict(prediction: Prediction) -> dict[str, Any]:
    """A prediction as JSON values."""
    return {
        "predictor": prediction.predictor,
        "step_s": prediction.step_s,
        "interval_s": list(prediction.interval_s) if prediction.interval_s else None,
        "compute_s": prediction.compute_s,
        "communication_s": prediction.communication_s,
        "exposed_communication_s": prediction.exposed_communication_s,
        "bubble_s": prediction.bubble_s,
        "memory_bytes": list(prediction.memory_bytes),
        "limits": list(prediction.limits),
        "notes": list(prediction.notes),
    }


def show_recommendation(found: Recommendation) -> None:
    """Print a ranking, best first."""
    table = Table()
    for heading in ("", "strategy", "step", "samples/s", "memory", "fits", "why"):
        table.add_column(heading, justify="right" if heading in ("step", "samples/s") else "left")
    for place, candidate in enumerate(found.ranking, start=1):
        told = candidate.prediction
        fit = {True: "yes", False: "no", None: "?"}[candidate.fits]
        table.add_row(
            str(place) if told and candidate.fits is not False else "-",
            candidate.label + ("" if candidate.synchronous else " (stale)"),
            _seconds(told.step_s) if told else "",
            f"{candidate.cell.batch_size / told.step_s:.4g}" if told else "",
            _gigabytes(candidate.memory_bytes),
            fit if told else "",
            candidate.why,
        )
    console = Console()
    console.print(table)
    best = found.best
    if best is None:
        console.print("nothing that can run is predicted to fit")
        return
    console.print(f"recommended: {best.label} (predicted by {found.recommender})")
    if best.prediction is not None:
        for remark in (*best.prediction.notes, *best.prediction.limits):
            console.print(f"  {remark}", soft_wrap=True)


def frame_table(frame: pd.DataFrame, title: str) -> Table:
    """A frame as a terminal table; shares and errors in percent."""
    table = Table(title=title, title_justify="left")
    percent = ("_error", "regret", "spread", "top1", "share", "noise")
    for name in frame.columns:
        table.add_column(name.replace("_", " "), overflow="fold")
    for record in records(frame):
        cells = []
        for name, value in record.items():
            if value is None:
                cells.append("")
            elif isinstance(value, float):
                cells.append(f"{value:+.1%}" if any(p in name for p in percent) else f"{value:.4g}")
            else:
                cells.append(str(value))
        table.add_row(*cells)
    return table


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON values; an unknown number is None."""
    return [
        {str(name): _json_value(value) for name, value in record.items()}
        for record in frame.to_dict("records")
    ]


def _json_value(value: Any) -> Any:
    plain = value.item() if hasattr(value, "item") else value
    return None if isinstance(plain, float) and math.isnan(plain) else plain


def _seconds(value: float) -> str:
    return SECONDS.text(value, ".4g")


def _gigabytes(value: float | None) -> str:
    return "" if value is None else GB.text(value)
