"""What a terminal shows of an experiment: where every cell stands, and the summary."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.json_text import read_json
from ddlbench.experiment.owner import NOBODY, owner_in, seems_to_live
from ddlbench.experiment.paths import PROGRESS_FILE, cell_dir, result_file
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.screen import (
    Column,
    duration_text,
    named_lines,
    paragraph,
    short_names,
    size_text,
    table,
    terminal_width,
    two_digits,
)
from ddlbench.experiment.status import Status
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.strategy import can_gain
from ddlbench.report.footer import interval_words
from ddlbench.report.labels import (
    dataset_label,
    mark_without_speedup,
    network_label,
    strategy_label,
)
from ddlbench.report.measurements import collect
from ddlbench.report.tables import read_tables, rows_of

_FEW_ROWS = 18
_OLD_BASE_S = 3600.0
# What may tell two rows of one dataset, network and strategy apart.
_DISTINGUISHING = ("geometry", "batch_size", "fabric", "precision", "settings")


def summary_lines(tables_dir: Path, *, every_row: bool = True) -> list[str]:
    """Speed, speed-up and memory of every configuration, or why there is none.

    Args:
        tables_dir: folder of the tables that ``make_tables`` wrote.
        every_row: a line a configuration; otherwise a long table is one line a network.
    """
    summary = read_tables(tables_dir).summary
    differing = telling_apart(summary)
    rows = summary.to_dict("records")
    lines = ["Speed-up over sequential training"]
    compact = [] if every_row or len(rows) <= _FEW_ROWS else _compact_table(rows, differing)
    lines += compact or _full_table(rows, differing)
    words = interval_words(summary, ratio=True)
    if words and not compact:
        lines += paragraph(f"In brackets: {words}; without: too few runs or steps.")
    if compact:
        lines += paragraph(f"All {len(rows)} rows with intervals and memory: --all.")
    return lines


def telling_apart(summary: pd.DataFrame) -> list[str]:
    """Columns that may tell two rows of one dataset, network and strategy apart."""
    return [name for name in _DISTINGUISHING if summary[name].nunique() > 1]


def _full_table(rows: list[dict[Hashable, Any]], differing: list[str]) -> list[str]:
    columns = [
        Column("dataset"), Column("network"), Column("strategy"),
        *(Column(_HEADINGS[name]) for name in differing),
        Column("workers", right=True, drop=2), Column("samples/s", right=True),
        Column("speed-up", right=True), Column("memory", right=True, drop=1),
    ]  # fmt: skip
    cells = []
    for row in rows:
        cells.append(
            (
                dataset_label(str(row["dataset"])),
                network_label(str(row["network"])),
                _column_name(row),
                *(str(row[name]) for name in differing),
                str(row["workers"]),
                *numbers_of(row),
            )
        )
    return table(columns, cells)


_HEADINGS = {"geometry": "devices", "batch_size": "batch", "fabric": "link"} | {
    name: name for name in ("precision", "settings")
}


def _compact_table(rows: list[dict[Hashable, Any]], differing: list[str]) -> list[str]:
    """One line a network, one column a strategy; empty where it does not fit the terminal."""
    columns, cells = speedup_table(rows, differing)
    lines = table(columns, cells)
    if max(map(len, lines)) > terminal_width() or len(lines) > len(cells) + 1:
        return []
    return lines


def speedup_table(
    rows: list[dict[Hashable, Any]], differing: list[str]
) -> tuple[list[Column], list[tuple[str, ...]]]:
    """Speed-ups, a row a network, a column a strategy.

    Args:
        rows: of the summary.
        differing: names of the columns that tell rows apart.
    """
    kept = [name for name in differing if name != "geometry"]
    names = list(dict.fromkeys(_column_name(row) for row in rows if row["strategy"] != BASE))
    groups: dict[tuple[str, ...], dict[str, dict[Hashable, Any]]] = {}
    for row in rows:
        key = (
            dataset_label(str(row["dataset"])),
            network_label(str(row["network"])),
            *(str(row[name]) for name in kept),
        )
        geometries = {str(one["geometry"]) for one in rows if one["strategy"] != BASE}
        places = sorted(geometries) if row["strategy"] == BASE else [str(row["geometry"])]
        for place in places:
            groups.setdefault((*key, place), {})[_column_name(row)] = row
    several = len({key[-1] for key in groups}) > 1
    columns = [
        Column("dataset"), Column("network"), *(Column(_HEADINGS[name]) for name in kept),
        Column("devices" if several else ""), Column("1 device", right=True),
        *(Column(name, right=True) for name in names),
    ]  # fmt: skip
    cells = []
    for key, by_name in groups.items():
        base = by_name.get(strategy_label(BASE))
        speed = _samples(base) if base else "no base"
        speed += "/s" if base and base["status"] == Status.OK else ""
        speedups = [_speedup(by_name[name]) if name in by_name else "" for name in names]
        cells.append((*key[:-1], key[-1] if several else "", speed, *speedups))
    return columns, cells


def _column_name(row: dict[Hashable, Any]) -> str:
    variant = ", ".join(filter(None, (str(row["options"]), str(row["ran_as"]))))
    return strategy_label(str(row["strategy"]), variant)


def _samples(row: Mapping[Hashable, Any]) -> str:
    if row["status"] != Status.OK:
        return str(row["status"]).replace("_", " ")
    return "unknown" if pd.isna(row["samples_per_s"]) else two_digits(float(row["samples_per_s"]))


def _speedup(row: Mapping[Hashable, Any]) -> str:
    if row["status"] != Status.OK:
        return str(row["status"]).replace("_", " ")
    if pd.isna(row["speedup"]):
        return mark_without_speedup(str(row["notes"]))
    return f"{float(row['speedup']):.2f}"


def numbers_of(row: Mapping[Hashable, Any]) -> list[str]:
    """Samples a second, speed-up with its interval, memory."""
    speed = _samples(row)
    if row["status"] != Status.OK:
        return [speed, "", ""]
    speedup = "base" if row["strategy"] == BASE else _speedup(row)
    low, high = row["speedup_low"], row["speedup_high"]
    if row["strategy"] != BASE and not (pd.isna(row["speedup"]) or pd.isna(low) or pd.isna(high)):
        speedup += f" ({float(low):.2f}-{float(high):.2f})"
    peak = row["peak_memory_bytes"]
    return [speed, speedup, "unknown" if pd.isna(peak) else size_text(float(peak))]


def advice_lines(tables_dir: Path) -> list[str]:
    """The sentences of :func:`advice`, as lines of the terminal."""
    return [line for text in advice(tables_dir) for line in paragraph(text, hanging="  ")]


def advice(tables_dir: Path) -> list[str]:
    """What to train with, by the measurements; and how often predictions would have said so.

    Strategies are compared where network, devices, batch, link and settings are equal. Those with
    old weights are left out, as `recommend` leaves them out. So are those whose schedule allows no
    speed-up: what was measured above 1 is the machine's drift.
    """
    summary = read_tables(tables_dir).summary
    fresh = ~summary["update_semantics"].astype(str).str.contains("stale")
    compared = summary[fresh & (summary["strategy"] != BASE) & summary["speedup"].notna()]
    gains = [can_gain(Cell.from_id(f"{name}/rep0")) for name in compared["configuration"]]
    compared = compared[pd.Series(gains, index=compared.index, dtype=bool)]
    conditions = ["dataset", "network", *_DISTINGUISHING]
    groups = [rows for _, rows in compared.groupby(conditions, sort=False, dropna=False)]
    if not groups:
        return []
    faster = [rows[rows["speedup_low"] > 1].to_dict("records") for rows in groups]
    best = [max(rows, key=lambda row: row["speedup"]) for rows in faster if rows]
    differing = [name for name in _DISTINGUISHING if compared[name].nunique() > 1]
    choices = [_advised(row, differing) for row in best]
    if len(best) < len(groups):
        choices.append(
            f"one device for {len(groups) - len(best)} of {len(groups)}, where no strategy is "
            "shown to be faster (no interval above 1)"
        )
    sentence = f"Train with {'; '.join(choices)}."
    return [sentence, *_old_bases(tables_dir), *_checked(tables_dir)]


def _old_bases(tables_dir: Path) -> list[str]:
    """How many cells were measured long after their base, on a machine that others may use."""
    cells = read_tables(tables_dir).measurements
    compared = cells[cells["speedup"].notna() & (cells["strategy"] != BASE)]
    made_s = cache(_made_s)  # many cells share a base
    pairs = [
        (made_s(row.site, row.cell_id), made_s(row.site, row.base_cell_id))
        for row in rows_of(compared)
    ]
    gaps_s = [abs(own - base) for own, base in pairs if own is not None and base is not None]
    old = [gap_s for gap_s in gaps_s if gap_s > _OLD_BASE_S]
    if not old:
        return []
    return [
        f"{len(old)} of {len(gaps_s)} speed-ups compare cells measured over "
        f"{duration_text(_OLD_BASE_S)} apart from their base (at most {duration_text(max(old))}): "
        "if this machine did other work meanwhile, measure both again."
    ]


def _made_s(site: str, cell_id: str) -> float | None:
    """Seconds since the epoch at which a cell was measured here; None on a cluster's own nodes."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        said = read_json(result_file(site, cell_id))["provenance"]
        if said.get("slurm_job_id") is None:
            return datetime.fromisoformat(said["created"]).timestamp()
    return None


def _advised(row: dict[Hashable, Any], differing: list[str]) -> str:
    low, middle, high = (float(row[f"speedup{end}"]) for end in ("_low", "", "_high"))
    where = "".join(f", {_HEADINGS[name]} {row[name]}" for name in differing)
    return (
        f"{strategy_label(str(row['strategy']))} for {network_label(str(row['network']))} on "
        f"{dataset_label(str(row['dataset']))}{where} ({middle:.2f}, {low:.2f}-{high:.2f})"
    )


def _checked(tables_dir: Path) -> list[str]:
    """How often the recommender was right; nothing where no case could be scored."""
    path = tables_dir / "table_8_2.csv"
    if not path.is_file():
        return []
    rates = pd.read_csv(path)
    from ddlbench.predict.recommend import DEFAULT_RECOMMENDER  # noqa: PLC0415 - slow to import

    rows = rates[(rates["recommender"] == DEFAULT_RECOMMENDER) & (rates["n"] > 0)]
    if rows.empty:
        return []
    row = rows.iloc[-1]  # the row over all datasets is the last
    return [
        f"Predictions ({DEFAULT_RECOMMENDER}) named the fastest strategy in {row['correct']:g} of "
        f"{row['n']:g} cases, within the noise in {row['top1_within_noise'] * row['n']:g}."
    ]


@dataclass(frozen=True)
class CellState:
    """One cell.

    Args:
        cell_id: its path below ``results/<site>/cells/``.
        state: where it stands.
        reason: why it is not ok; empty when it is.
        code: of the reason; empty when it is ok, or running.
        finished_s: when its result was written, seconds since the epoch; None without one.
        step_s: median step of a cell that is ok.
        speedup: over its base, where there is one.
    """

    cell_id: str
    state: Status
    reason: str
    code: str
    finished_s: float | None = None
    step_s: float | None = None
    speedup: float | None = None


def states(experiment: str, site: str, rows: list[MatrixRow]) -> list[CellState]:
    """State of every cell of the matrix, in its order."""
    found = []
    for record in collect(experiment, site, rows).to_dict("records"):
        state, reason, code = Status(record["status"]), record["reason"], record["reason_code"]
        # A result called unsupported may be made anew, as what was missing is there now.
        if not state.is_result or state == Status.UNSUPPORTED:
            held = _of_lease(cell_dir(site, record["cell_id"]), state)
            state, reason, code = held or (state, reason, code)
        said = CellState(record["cell_id"], state, reason, code)
        found.append(_finished(said, site, record) if state == Status.OK else said)
    return found


def _finished(cell: CellState, site: str, record: dict[Hashable, Any]) -> CellState:
    """A cell that is ok, with what its result says."""
    known = {name: float(record[name]) for name in ("step_median_s", "speedup")
             if not pd.isna(record[name])}  # fmt: skip
    with suppress(OSError):  # deleted since
        return replace(
            cell,
            finished_s=result_file(site, cell.cell_id).stat().st_mtime,
            step_s=known.get("step_median_s"),
            speedup=known.get("speedup"),
        )
    return cell


def status_lines(cells: Sequence[CellState], *, every_cell: bool = False) -> list[str]:
    """Counts by state; below them what runs, what ended last, and why others have no measurement.

    Args:
        cells: of the matrix.
        every_cell: name every cell; otherwise cells with one reason share a line.
    """
    counts = Counter(cell.state for cell in cells)
    lines = [", ".join(f"{count:,} {state}" for state, count in counts.most_common())]
    names = dict(
        zip(
            (cell.cell_id for cell in cells),
            short_names([Cell.from_id(cell.cell_id) for cell in cells]),
            strict=True,
        )
    )
    groups: dict[tuple[Status, str], list[CellState]] = {}
    for cell in cells:
        told = every_cell or cell.state not in (Status.NOT_RUN, Status.RUNNING)
        if cell.state != Status.OK and told:
            groups.setdefault((cell.state, cell.reason), []).append(cell)
    reasons = []
    for (state, reason), members in groups.items():
        shown = members if every_cell else members[:_FEW_NAMES]
        listed = ", ".join(names[cell.cell_id] for cell in shown)
        if len(members) > len(shown):
            listed += f" and {len(members) - len(shown)} more"
        reasons.append((str(state).replace("_", " "), f"{listed}: {reason}"))
    if len(reasons) > _FEW_REASONS and not every_cell:
        more = f"{len(groups) - _FEW_REASONS} more reasons: --all"
        reasons = [*reasons[:_FEW_REASONS], ("", more)]
    widest = max(len(state) for state in (str(Status.RUNNING), *(state for state, _ in reasons)))
    pairs = [] if every_cell else _moving(cells, names, before=widest + 4)
    return [*lines, *named_lines([*pairs, *reasons], "  ")]


_FEW_NAMES = 2
_FEW_REASONS = 6
_FEW_RUNNING = 4


def _moving(
    cells: Sequence[CellState], names: Mapping[str, str], before: int
) -> list[tuple[str, str]]:
    """The cells that run, and while there are others to come the one that ended last.

    Each is one line, which begins with ``before`` characters.
    """
    running = [cell for cell in cells if cell.state == Status.RUNNING]
    shown = running[:_FEW_RUNNING]
    wide = max((len(names[cell.cell_id]) for cell in shown), default=0)
    said = [one.reason for one in shown]
    if wide + max(map(len, said), default=0) > terminal_width() - before - 2:
        said = [reason.partition(", ")[2] or reason for reason in said]  # without its process
    pairs = [
        (str(Status.RUNNING), f"{names[one.cell_id]:{wide}}  {reason}")
        for one, reason in zip(shown, said, strict=True)
    ]
    if len(running) > len(shown):
        pairs.append(("", f"{len(running) - len(shown)} more run: --all"))
    ended = [cell for cell in cells if cell.finished_s is not None]
    if not ended or not {Status.RUNNING, Status.NOT_RUN} & {cell.state for cell in cells}:
        return pairs
    last = max(ended, key=lambda cell: cell.finished_s or 0.0)
    numbers = [] if last.step_s is None else [f"{duration_text(last.step_s)} a step"]
    if Cell.from_id(last.cell_id).strategy == BASE:
        numbers.append("base")
    elif last.speedup is not None:
        numbers.append(f"{last.speedup:.2f}x")
    return [*pairs, ("last ok", f"{names[last.cell_id]:{wide}}  {', '.join(numbers)}")]


def _of_lease(folder: Path, state: Status) -> tuple[Status, str, str] | None:
    """State, reason and code of a cell that somebody has begun to measure; None if nobody has."""
    owner = owner_in(folder / "lease.json")
    if owner is None or owner == NOBODY:
        return None
    if seems_to_live(owner, folder):
        since_s = max(time.time() - owner.started, 1.0)
        since = f", since {duration_text(since_s)}" if owner.started else ""
        return Status.RUNNING, f"{owner.label}{since}{_step(folder)}", ""
    if state != Status.NOT_RUN:
        return None  # its failure.json tells more
    sentence = f"{owner.label} is gone and has written nothing; the next run measures it again"
    return Status.INTERRUPTED, sentence, "supervisor_lost"


def _step(folder: Path) -> str:
    """``, step 7/22``: what the supervisor wrote last; empty before the first steps."""
    for path in sorted(folder.glob(f".run-*/{PROGRESS_FILE}"), reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):
            said = read_json(path)
            return f", step {said['step']}/{said['total']}"
    return ""
