"""Tables of what the parts found: one for a terminal, one for the documentation."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu_parts.study import FAILED, NO_TIME, NOT_HERE, PASSED, Figure, Row, Study

__all__ = ["markdown", "terminal"]

_WIDTH = 80
_INDENT = "    "
_MANY = 1_000_000  # whole numbers from here on lose their last digits
_STATUSES = (PASSED, FAILED, NOT_HERE, NO_TIME)
_MACHINE = {
    "gpu": "GPU",
    "cpu_model": "CPU",
    "torch": "torch",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "driver": "driver",
    "python": "Python",
    "git_commit": "commit",
    "created": "date",
}


def terminal(study: Study) -> str:
    """The part's table, in lines that a terminal of 80 columns shows whole."""
    size = ", small" if study.small else ""
    lines = [f"Part {study.part} on {study.device}{size}", "-" * _WIDTH]
    for row in study.rows:
        lines += _lines_of(row)
    return "\n".join([*lines, "-" * _WIDTH, _count(study.rows)])


def markdown(out: Path) -> str:
    """What all parts below a folder found, with the machine on top; a sentence if there is none.

    Args:
        out: folder that holds ``part<k>.json``.
    """
    paths = sorted(out.glob("part*.json"))
    if not paths:
        return f"No part has left results in {out}; run one with: gpu.py --part 1 --out {out}"
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    blocks = [_machine_of(parts), *map(_part, parts)]
    return "\n\n".join(blocks)


def _lines_of(row: Row) -> list[str]:
    status = f"{row.status:<8}  {row.seconds:5.0f} s"
    room = _WIDTH - len(status) - 2
    first, *others = textwrap.wrap(row.check, room) or [""]
    lines = [f"{first:<{room}}  {status}", *others]
    lines += _wrapped(", ".join(_figures(row.figures)))
    if row.status != PASSED and row.reason:
        lines += _wrapped(row.reason)
    return lines


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT)


def _figures(figures: Mapping[str, Figure]) -> list[str]:
    return [f"{name} {_value(value)}" for name, value in figures.items()]


def _value(value: Figure) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) or (isinstance(value, int) and abs(value) >= _MANY):
        return f"{value:.4g}"
    return str(value)


def _count(rows: Iterable[Row]) -> str:
    counts = Counter(row.status for row in rows)
    return ", ".join(f"{counts[status]} {status}" for status in _STATUSES)


def _machine_of(parts: Iterable[Mapping[str, Any]]) -> str:
    """Facts of the machine, each once; parts that ran on different days have several dates."""
    machines = [part["machine"] for part in parts]
    lines = []
    for key, label in _MACHINE.items():
        known = dict.fromkeys(
            str(machine[key]) for machine in machines if machine.get(key) is not None
        )
        if known:
            lines.append(f"* {label}: {', '.join(known)}")
    if any(machine.get("git_dirty") for machine in machines):
        lines.append("* the checkout had changes that are in no commit")
    return "\n".join(lines)


def _part(part: Mapping[str, Any]) -> str:
    rows = [Row(**entry) for entry in part["checks"]]
    size = ", small" if part["small"] else ""
    lines = [
        f"## Part {part['part']} on {part['device']}{size}",
        "",
        "| check | status | seconds | figures | reason |",
        "|---|---|---:|---|---|",
    ]
    for row in rows:
        figures = ", ".join(_figures(row.figures))
        reason = "" if row.status == PASSED else row.reason
        cells = (row.check, row.status, f"{row.seconds:.0f}", figures, reason)
        lines.append(f"| {' | '.join(map(_escaped, cells))} |")
    return "\n".join([*lines, "", _count(rows)])


def _escaped(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
