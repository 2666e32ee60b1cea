r"""OpenMetrics: a gauge for each number of each cell, for Prometheus.

::

    # HELP ddlbench_step_median_seconds median step; a step is as long as its slowest rank
    # TYPE ddlbench_step_median_seconds gauge
    # UNIT ddlbench_step_median_seconds seconds
    ddlbench_step_median_seconds{site="local",network="vgg11",strategy="ddp",...,repeat="0"} 0.15
    # EOF

node_exporter's textfile collector reads Prometheus' older text format, which has no type ``info``
and, there, no times of samples: gauges without times are valid in both.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from ddlbench.common.document import write_text
from ddlbench.common.errors import ConfigError
from ddlbench.report.exports.registry import Study, check_file
from ddlbench.report.tables import CELLS, Column
from ddlbench.report.tree_tables import TreeTables

LABELS = (
    "site", "dataset", "network", "strategy", "options", "geometry", "batch_size", "precision",
    "fabric", "settings", "repeat",
)  # fmt: skip
_OF_THE_CELL = ("nodes", "devices_per_node", *LABELS)
# Units of columns: the ending of their names, and what OpenMetrics calls them there.
_UNITS = {
    "s": ("_s", "seconds"),
    "B": ("_bytes", "bytes"),
    "J": ("_j", "joules"),
    "W": ("_w", "watts"),
}
_BEGIN = b"# HELP ddlbench_cell_status "
_SAYS_WHY = ("disturbed", "departure")  # texts that make the numbers of a cell wrong
Sample = tuple[dict[str, str], float]


def write(tables: TreeTables, out: Path, study: Study) -> str:
    """Write the exposition whole, so that a collector never reads a part of it."""
    if out.suffix != ".prom":
        raise ConfigError(
            f"{out}: node_exporter reads only files whose names end in .prom; "
            f"write --out {out}.prom, or --out {out}/ddlbench.prom"
        )
    check_file(out, _is_export)
    write_text(out, exposition(tables))
    return f"node_exporter --collector.textfile.directory={shlex.quote(str(out.absolute().parent))}"


def _is_export(path: Path) -> bool:
    """Whether the file begins with a metric of ours, as each exposition of ours does."""
    with path.open("rb") as file:
        return file.read(len(_BEGIN)) == _BEGIN


def exposition(tables: TreeTables) -> str:
    """The numbers of all cells as text."""
    lines: list[str] = []
    frame = tables.cells.frame
    rows = frame.to_dict("records")
    # A copy of a cell, as in a second tree, needs a label more.
    twice = bool(frame.duplicated(["site", "cell_id"]).any())
    named = (*LABELS, "folder") if twice else LABELS
    labels = [{name: str(row[name]) for name in named} for row in rows]
    status = [
        ({**of_row, "status": str(row["status"]), "reason_code": str(row["reason_code"])}, 1.0)
        for of_row, row in zip(labels, rows, strict=True)
    ]
    lines += _family("ddlbench_cell_status", "1 for the state in which the cell is", "", status)
    for column in CELLS:
        if column.name in _OF_THE_CELL or (column.kind == "text" and column.name not in _SAYS_WHY):
            continue
        samples = [
            (of_row, value)
            for of_row, row in zip(labels, rows, strict=True)
            if (value := _number(column, row)) is not None
        ]
        lines += _family(*_named(column), samples)
    made = [
        (of_row, made_s)
        for of_row, row in zip(labels, rows, strict=True)
        if (made_s := _seconds(row["created"])) is not None
    ]
    about = "when the result was written, since 1970"
    lines += _family("ddlbench_created_timestamp_seconds", about, "seconds", made)
    return "\n".join([*lines, "# EOF", ""])


def _named(column: Column) -> tuple[str, str, str]:
    name = f"ddlbench_{column.name}"
    if column.name in _SAYS_WHY:
        return name, f"1 where the numbers are wrong: {column.description}", ""
    ending, unit = _UNITS.get(column.unit, ("", ""))
    if unit and name.endswith(ending):
        return f"{name.removesuffix(ending)}_{unit}", column.description, unit
    if name.endswith("_per_s"):
        name = f"{name.removesuffix('_s')}_second"
    return name, column.description, ""


def _number(column: Column, row: dict[Any, Any]) -> float | None:
    value = row[column.name]
    if column.kind == "text":
        return float(bool(value)) if row["status"] == "ok" else None
    if column.kind == "flag" and row["status"] != "ok":
        return None
    try:
        number = float(value)
    except TypeError:  # pandas' unknown
        return None
    return number if math.isfinite(number) else None


def _seconds(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def _family(name: str, about: str, unit: str, samples: list[Sample]) -> Iterator[str]:
    """The lines of one metric; none without samples."""
    if not samples:
        return
    # A quote in a help is escaped in one of the two formats only.
    meaning = about.replace('"', "'").replace("\\", "/").replace("\n", " ")
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} gauge"
    if unit:
        yield f"# UNIT {name} {unit}"
    for labels, value in samples:
        pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{name}{{{pairs}}} {value!r}"


def _escaped(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()  # a name of a file may be no text
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
