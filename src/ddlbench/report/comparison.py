"""Each printed value beside ours of the same figure: ``docs/papers/comparison.csv``.

::

    published.py                docs/papers/<figure>/cells.csv, deviation_*.csv ...
         |  of the figure's own places       |  medians of repeats
         '------- same quantity, dataset, network, strategy, devices, condition ------> ratio

A value that has no partner stands alone, without a ratio: what is printed and not measured, what is
measured and not printed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import parse_geometry
from ddlbench.experiment.config import PaperFile, read_papers
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.site import load_site
from ddlbench.experiment.status import Status
from ddlbench.report.kept_verdicts import device_of
from ddlbench.report.labels import variant_labels
from ddlbench.report.papers_page import FigureResults, kept_results
from ddlbench.report.published import (
    EXTRA,
    KEYS,
    PREDICTED,
    RATE,
    RECOMMENDED,
    SPEEDUP,
    STEP,
    chosen,
    link_text,
    micro_batches_text,
    printed_values,
)
from ddlbench.report.tables import table_text

COLUMNS = (
    "figure", "dataset", "network", "strategy", "devices", "published", "measured", "ratio", "bed",
    "repeats", "quantity", "condition", "setting", "where", "remark",
)  # fmt: skip
"""Of the table. ``condition`` is what both have in common beside the columns before, ``setting``
what is known of ours alone; ``repeats`` counts runs of ours."""
_OURS = [*KEYS, "measured", "bed", "repeats", "setting", "status"]
_DIGITS = "%.4g"
_WHERE = "a table of docs/papers"
_GUESSED = "not named"
_TWO_CANDIDATES = "Horovod or GPipe"  # how the kind of a case of Table 8.1 ends


def bed_of(device_kind: str, processors: str) -> str:
    """What cells were measured on, in the words of claims, or else the kind of device."""
    device = device_of([processors, device_kind])
    return device_kind if device is None else device.bed


def compared(
    file: PaperFile, results: Sequence[FigureResults], printed: pd.DataFrame
) -> pd.DataFrame:
    """The printed values of a figure beside those that these folders hold: :data:`COLUMNS`.

    Args:
        file: of the figure.
        results: folders of ours.
        printed: of :func:`~ddlbench.report.published.printed_values`.
    """
    theirs = chosen(printed, file.paper)
    frames = [
        read(result, name)
        for result in results
        for name in file.paper.draws
        for drawn, read in _READERS
        if name.startswith(drawn)
    ]
    both = theirs.merge(_joined(frames, _OURS), on=KEYS, how="outer", sort=False)
    return _finished(both, file.paper.figure)


def _finished(both: pd.DataFrame, figure: str) -> pd.DataFrame:
    theirs, measured = (
        pd.to_numeric(both[name], errors="coerce") for name in ("published", "measured")
    )
    # Where the print does not say what a number is of, its reader has guessed.
    is_named = ~both["how"].fillna("").str.contains(_GUESSED, regex=False)
    comparable = (theirs > 0) & (measured > 0) & (both["quantity"] != EXTRA) & is_named
    rows = both.assign(
        figure=figure,
        published=theirs,
        measured=measured,
        ratio=(measured / theirs).where(comparable),
        devices=[math.prod(parse_geometry(str(name), _WHERE)) for name in both["geometry"]],
        remark=[_remark(row) for row in both.to_dict("records")],
    )
    rows = rows.sort_values("ratio", key=pd.isna, kind="stable")
    return rows[list(COLUMNS)]


def _remark(row: dict[Any, Any]) -> str:
    remarks = []
    if not pd.isna(row["where"]):
        remarks.append(str(row["how"]))
        if pd.isna(row["published"]):
            remarks.append("failed there")
    status = row["status"]
    if not pd.isna(status) and status != Status.OK:
        remarks.append(f"{status} here")
    return "; ".join(filter(None, remarks))


@cache
def comparison() -> pd.DataFrame:
    """Every figure's printed values beside what the repository keeps of it."""
    printed = printed_values()
    frames = [compared(file, [kept_results(file)], printed) for file in read_papers()]
    return _joined(frames, COLUMNS)


def _joined(frames: Sequence[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Frames as one, which has these columns even if all are empty."""
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=list(columns))


def comparison_csv() -> str:
    """docs/papers/comparison.csv."""
    table = comparison()
    numbers = {name: table[name].map(_number) for name in ("published", "measured", "ratio")}
    return table_text(table.assign(repeats=table["repeats"].map(_number), **numbers))


def comparison_markdown() -> str:
    """docs/papers.md's table: a row per figure and strategy, over the values with a partner."""
    table = comparison()
    pairs = table[table["ratio"].notna()]
    lines = [
        "| figure | strategy | quantity | pairs | median of ours / printed | lowest | highest "
        "| bed |",
        "|---|---|---|---:|---:|---:|---:|---|",
    ]
    for key, rows in pairs.groupby(["figure", "strategy", "quantity", "bed"], sort=False):
        figure, strategy, quantity, bed = key
        ratios = rows["ratio"]
        shown = " | ".join(
            f"{value:.2f}" for value in (ratios.median(), ratios.min(), ratios.max())
        )
        lines.append(f"| {figure} | {strategy} | {quantity} | {len(rows)} | {shown} | {bed} |")
    alone = table[table["ratio"].isna()]
    unmeasured = int((alone["published"].notna() & alone["measured"].isna()).sum())
    unprinted = int((alone["published"].isna() & alone["measured"].notna()).sum())
    summary = (
        f"{unmeasured} printed values have no cell of the same dataset, network, strategy and "
        f"devices here. {unprinted} of our values are not printed, or not digitised."
    )
    return "\n".join([*lines, "", summary])


def _number(value: float) -> str:
    return "" if pd.isna(value) else _DIGITS % value


def _cells(results: FigureResults) -> pd.DataFrame:
    """The configurations of a folder with their bed, repeats and setting."""
    rows = results.configurations
    beds = zip(rows["device_kind"], rows["processors"], strict=True)
    cells = rows.assign(bed=[bed_of(*texts) for texts in beds], repeats=rows["n"])
    return cells.assign(setting=_settings(cells))


def _settings(rows: pd.DataFrame) -> list[str]:
    parts = zip(rows["batch_size"], variant_labels(rows), rows["fabric"], rows["site"], strict=True)
    several = rows["site"].nunique() > 1
    return [
        ", ".join(
            filter(
                None,
                [
                    f"batch {batch:g}",
                    variant,
                    "" if fabric in ("", "default") or fabric in variant else f"fabric {fabric}",
                    f"site {site}" if several else "",
                ],
            )
        )
        for batch, variant, fabric, site in parts
    ]


def _ours(rows: pd.DataFrame, quantity: str, column: str) -> pd.DataFrame:
    ours = rows.assign(quantity=quantity, measured=rows[column])
    if "condition" not in ours:
        ours = ours.assign(condition="")
    return ours[_OURS]


def _speedups(results: FigureResults, _: str) -> pd.DataFrame:
    rows = _cells(results)
    return _ours(rows[rows["strategy"] != BASE], SPEEDUP, "speedup")


def _rates(results: FigureResults, _: str) -> pd.DataFrame:
    rows = _cells(results)
    rows = rows[rows["strategy"] != BASE]
    links = zip(
        rows["batch_size"], rows["link_latency_s"] * 1e3, rows["link_bits_per_s"] / 1e6,
        rows["link_loss"] * 100, strict=True,
    )  # fmt: skip
    return _ours(rows.assign(condition=[link_text(*link) for link in links]), RATE, "samples_per_s")


def _steps(results: FigureResults, _: str) -> pd.DataFrame:
    rows = _cells(results)
    conditions = [f"batch {batch:g}" for batch in rows["batch_size"]]
    return _ours(rows.assign(condition=conditions), STEP, "step_median_s")


_CASE = ("dataset", "network")
_CUT = ("chunks", "micro_batch", "batch_size")


def _deviations(results: FigureResults, name: str) -> pd.DataFrame:
    needed = (*_CASE, "strategy", "geometry", "predictor", "signed_error")
    rows = _measured(results, name, needed)
    return _ours(
        rows.assign(condition=rows["predictor"], value=1 + rows["signed_error"]), PREDICTED, "value"
    )


def _micro_batches(results: FigureResults, name: str) -> pd.DataFrame:
    """Rates of the emulated GPUs: measured ones are those of GPUs that were slowed down."""
    needed = (*_CASE, "strategy", "geometry", *_CUT, "measured_samples_per_s")
    rows = _measured(results, name, needed).drop_duplicates([*_CASE, *_CUT])
    factors = {_slow_down(str(site)) for site in results.configurations["site"]}
    if len(factors) == 1:
        rows["measured_samples_per_s"] *= factors.pop()
    sizes = zip(rows["chunks"], rows["micro_batch"], strict=True)
    conditions = [micro_batches_text(*both) for both in sizes]
    return _ours(rows.assign(condition=conditions), RATE, "measured_samples_per_s")


def _slow_down(site: str) -> float:
    """How much slower a site emulates its devices; 1 for real ones, and for an unknown site."""
    try:
        accelerator = load_site(site).accelerator
    except ConfigError:
        return 1.0
    return accelerator.slow_down if accelerator is not None else 1.0


def _choices(results: FigureResults, name: str) -> pd.DataFrame:
    """The thesis' recommender among its two candidates; each epoch at its own batch."""
    needed = (*_CASE, "nodes", "devices_per_node", "recommender", "kind", "extra_time")
    rows = _measured(results, name, needed)
    of_thesis = (rows["recommender"] == "thesis") & rows["kind"].astype(str).str.endswith(
        _TWO_CANDIDATES
    )
    rows = rows[of_thesis]
    geometry = rows["nodes"].astype(str) + "x" + rows["devices_per_node"].astype(str)
    return _ours(rows.assign(strategy=RECOMMENDED, geometry=geometry), EXTRA, "extra_time")


def _measured(results: FigureResults, name: str, needed: Sequence[str]) -> pd.DataFrame:
    """Our rows of a figure's table, with the bed and the fewest repeats of its cells.

    Raises:
        ConfigError: the table cannot be read, or lacks a column.
    """
    rows = results.table(name)
    if rows is None:
        return pd.DataFrame(columns=[*dict.fromkeys([*needed, *_OURS])])
    if missing := [column for column in needed if column not in rows]:
        raise ConfigError(
            f"{results.folder}: {name}.csv has no column {missing[0]!r}; draw its figure anew"
        )
    if "source" in rows:
        rows = rows[rows["source"] == "measured here"]
    cells = _cells(results)
    defaults = {"bed": ", ".join(dict.fromkeys(cells["bed"])), "repeats": cells["repeats"].min()}
    defaults["setting"] = [f"batch {batch:g}" for batch in rows.get("batch_size", ())] or ""
    marks = rows["mark"].astype(object).fillna("") if "mark" in rows else ""
    rows = rows.assign(
        **{key: value for key, value in defaults.items() if key not in rows}, status=marks
    )
    return rows.assign(status=rows["status"].replace("", Status.OK.value))


_READERS: tuple[tuple[str, Callable[[FigureResults, str], pd.DataFrame]], ...] = (
    ("speedup", _speedups),
    ("scaling", _speedups),
    ("sites", _speedups),
    ("latency", _rates),
    ("bandwidth", _rates),
    ("packet_loss", _rates),
    ("oracle", _steps),
    ("deviation_", _deviations),
    ("table_6_1", _micro_batches),
    ("table_8_1_published", _choices),
)
"""How the name of a drawn figure or table begins, and how to read it."""
