"""Text for a terminal: tables with one line a row, wrapped sentences, numbers that people read."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddlbench.common.errors import file_fault, printable
from ddlbench.common.units import BYTES, Unit, unit_for

_GAP = "  "
_DURATIONS = (
    (1e-3, 1e-6, "µs"),
    (1.0, 1e-3, "ms"),
    (120.0, 1.0, "s"),
    (7200.0, 60.0, "min"),
    (259_200.0, 3600.0, "h"),
    (float("inf"), 86_400.0, "days"),
)


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Args:
        heading: its first line.
        right: numbers are aligned at the right.
        drop: columns are left out in falling order of this number until the table fits; 0 stays.
    """

    heading: str
    right: bool = False
    drop: int = 0


def terminal_width() -> int:
    """Columns of the terminal; 80 where the output goes to a file or a pipe."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int | None = None
) -> list[str]:
    """Lines of a table: a heading, then one line a row, none wider than the terminal.

    Columns without any text are left out. Where the first column is too wide even without the
    columns that may be left out, its text stands on a line of its own, above the rest of the row.
    """
    width = width or terminal_width()
    rows = [tuple(map(str, row)) for row in rows]
    shown = [at for at in range(len(columns)) if any(row[at] for row in rows)]

    def width_of(at: int) -> int:
        return max(len(columns[at].heading), *(len(row[at]) for row in rows))

    def total() -> int:
        return sum(map(width_of, shown)) + len(_GAP) * (len(shown) - 1)

    while shown and total() > width and any(columns[at].drop for at in shown):
        shown.remove(max(shown, key=lambda at: columns[at].drop))
    if not shown:
        return []
    widths = {at: width_of(at) for at in shown}
    first = shown[0]
    if total() > width:
        widths[first] = max(len(columns[first].heading), width - (total() - widths[first]))
    lines = [_line([(columns[at].heading, widths[at], columns[at].right) for at in shown])]
    for row in rows:
        cells = [(row[at], widths[at], columns[at].right) for at in shown]
        if len(row[first]) > widths[first]:
            lines += textwrap.wrap(row[first], width, break_on_hyphens=False)
            cells[0] = ("", widths[first], False)
        lines.append(_line(cells))
    return lines


def _line(cells: Sequence[tuple[str, int, bool]]) -> str:
    padded = (text.rjust(width) if right else text.ljust(width) for text, width, right in cells)
    return _GAP.join(padded).rstrip()


def paragraph(text: str, indent: str = "", hanging: str | None = None) -> list[str]:
    """Lines of a sentence that fits the terminal; paths and options are not broken."""
    return textwrap.wrap(
        text,
        terminal_width(),
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def say_error(error: Exception) -> None:
    """Print what is wrong to stderr: wrapped on a terminal, in one line in a log."""
    lines = f"ddlbench: {file_fault(error) or printable(str(error))}".splitlines()
    if sys.stderr.isatty():
        lines = [part for line in lines for part in paragraph(line, hanging="  ")]
    print("\n".join(lines), file=sys.stderr)


def named_lines(pairs: Iterable[tuple[str, str]], indent: str = "") -> list[str]:
    """Lines of ``name  text``, the texts aligned and wrapped beside their names."""
    pairs = list(pairs)
    width = max((len(name) for name, _ in pairs), default=0)
    lines = []
    for name, text in pairs:
        head = f"{indent}{name.ljust(width)}{_GAP}"
        lines += paragraph(text, head, " " * len(head)) or [head.rstrip()]
    return lines


def shortened(text: str, room: int) -> str:
    """A name of at most ``room`` characters: the ends tell cells apart, so the middle goes."""
    if len(text) <= room:
        return text
    back = (max(room, 4) - 2) // 2
    return f"{text[: max(room, 4) - 2 - back]}..{text[-back:]}"


def two_digits(value: float) -> str:
    """A number with two significant digits, or all digits before the point."""
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.001:
        return "<0.001"
    if size >= 9.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 0.995 else f"{value:.2g}"


def duration_text(seconds: float | None) -> str:
    """``0.18 ms`` is 180 µs, ``12510`` seconds are 3.5 h; a dash where it is not known."""
    if seconds is None:
        return "-"
    if seconds == 0:
        return "0 s"
    size, name = next((size, name) for below, size, name in _DURATIONS if seconds < below)
    return f"{two_digits(seconds / size)} {name}"


def size_text(count: float | None) -> str:
    """Bytes in decimal units; a dash where the number is not known."""
    if count is None:
        return "-"
    unit = unit_for(count, BYTES)
    return f"{two_digits(unit.of(count))} {unit.name}"


def in_one_unit(values: Sequence[float | None], units: Sequence[Unit]) -> list[str]:
    """Texts of a column in the unit that suits its largest value; empty where one is not known."""
    known = [abs(value) for value in values if value is not None]
    if not known:
        return [""] * len(values)
    unit = unit_for(max(known), units)
    return ["" if v is None else f"{two_digits(unit.of(v))} {unit.name}" for v in values]
