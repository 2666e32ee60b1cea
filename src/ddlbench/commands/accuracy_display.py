"""How the errors of predictions look in a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ddlbench.common.screen import counted, paragraph, table
from ddlbench.experiment.cell import from_path
from ddlbench.experiment.paths import tables_dir
from ddlbench.planning.labels import network_label, strategy_label
from ddlbench.report.choice_tables import choice_lines

if TYPE_CHECKING:
    import pandas as pd

    from ddlbench.report.products import PredictionTables


def accuracy_lines(
    tables: PredictionTables, experiment: str, site: str, *, every_row: bool
) -> list[str]:
    """The best predictor of each strategy, and how often the fastest strategy was named.

    Args:
        tables: what :func:`ddlbench.report.products.make_predictions` returns.
        experiment: its name.
        site: the site's name.
        every_row: print every predictor and every case.
    """
    frame = tables.accuracy
    rows = frame[(frame["strategy"] != "all") & (frame["n"] > 0)]
    counts = rows.groupby("strategy")["n"].max()
    total = int(counts.sum())
    lines = paragraph(
        f"Prediction errors of a step: {experiment} on {site}, "
        f"{counted(total, 'configuration')} measured"
    )
    if rows.empty:
        lines.append("Nothing was both measured and predicted.")
    shown = rows
    if not every_row:
        best = rows.groupby("strategy", sort=False)["mean_absolute_error"].idxmin().dropna()
        shown = rows.loc[best]
    lines += _error_table(shown, every_row=every_row)
    if not rows.empty:
        lines += paragraph(
            "error: mean of |predicted / measured - 1|; worst: its sign, and the network. "
            + ("" if every_row else "The best predictor is known after the fact. ")
            + (_FLOOR if rows["noise_floor"].notna().any() else _NO_FLOOR)
        )
    lines += choice_lines(tables.table_8_1, tables.table_8_2, every_row=every_row)
    pointer = f"{tables_dir(site, experiment)}/accuracy.csv"
    without = int((frame["n"] == 0).sum())
    silent = f"; {without} of them have no measurement" if without else ""
    said = "The whole table" if every_row else f"All {len(frame)} rows: --all, or"
    lines += paragraph(f"{said} {pointer}{silent}.", hanging="  ")
    return lines


_FLOOR = "floor: what a perfect model would score, by how far repeats differ."
_NO_FLOOR = "Without repeats the noise is unknown."


def _error_table(rows: pd.DataFrame, *, every_row: bool) -> list[str]:
    predictor = "predictor" if every_row else "best predictor"
    headings = f"strategy | {predictor} | > n /1 | > error | > floor | > worst | /2 | /3"
    lines = []
    for row in rows.to_dict("records"):
        floor = row["noise_floor"]
        known = floor is not None and math.isfinite(floor)
        error = row["mean_absolute_error"]
        baseline = " (baseline)" if row["baseline"] else ""
        worst = str(row["worst_cell"])
        network = network_label(from_path(worst.split("/")[1])) if "/" in worst else ""
        lines.append(
            (
                strategy_label(str(row["strategy"])),
                f"{row['predictor']}{baseline}",
                str(row["n"]),
                f"{error:.0%}",
                f"{floor:.0%}" if known else "",
                f"{row['worst_error']:+.0%}",
                network,
                "within noise" if known and error <= floor else "",
            )
        )
    return table(headings, lines)
