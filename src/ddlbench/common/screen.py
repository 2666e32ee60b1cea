"""Text for a terminal: tables with one line per row, wrapped sentences, types of options."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from ddlbench.common.errors import file_fault, printable

_GAP = "  "
_NO_BREAK = "\0"
_UNLIMITED = 100_000
_HEADING = re.compile(r"(>?)\s*(.*?)\s*(?:(?<!\S)/(\d))?")


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


def columns(headings: str) -> list[Column]:
    """Columns from their headings, as ``strategy | > step | > memory /2``.

    ``>`` stands before a column of numbers, ``/2`` after a column whose ``drop`` is 2.
    """
    made = []
    for heading in headings.split("|"):
        right, name, drop = _HEADING.fullmatch(heading.strip()).groups()  # type: ignore[union-attr]
        made.append(Column(name, right=bool(right), drop=int(drop or 0)))
    return made


def table(
    headings: str | Sequence[Column], rows: Iterable[Sequence[str]], width: int | None = None
) -> list[str]:
    """Lines of a table: a heading, then one line per row, none wider than the terminal.

    Columns without any text are left out. Where the first column is too wide even without the
    columns that may be left out, its text stands on a line of its own, above the rest of the row.
    Where that is not enough, the longest texts of another column lose their middle. Where even the
    shortest are too wide, the texts of all columns of names stand above the numbers of their row.
    Where the numbers alone are too wide, each stands behind its heading.
    No text of a row controls the terminal.
    """
    width = width or terminal_width()
    shown = columns(headings) if isinstance(headings, str) else list(headings)
    texts = [[printable(str(text)) for text in row] for row in rows]
    empty = {at for at in range(len(shown)) if not any(row[at] for row in texts)}
    shown, texts = _without(empty, shown, texts)
    if not shown:
        return []
    whole = _rendered(shown, texts)
    if max(map(len, whole)) <= width:
        return whole
    last = max(range(len(shown)), key=lambda at: shown[at].drop)
    if shown[last].drop:
        return table(*_without({last}, shown, texts), width)
    has_names = sum(not column.right for column in shown) > 1
    if has_names and not shown[0].heading:  # a rank belongs to the name that follows it
        return _names_above(shown, texts, width)
    cut, room, made = texts, *_with_room(shown, texts, width)
    while (over := max(map(len, made)) - width) > 0:
        shorter = _with_shorter_texts(shown, cut, over)
        if shorter == cut:
            break
        cut, room, made = shorter, *_with_room(shown, shorter, width)
    if over > 0:
        return _names_above(shown, texts, width)
    heading, *rest = made
    lines = [heading]
    for row, line in zip(cut, rest, strict=True):
        if len(row[0]) > room:
            lines += textwrap.wrap(row[0], width, break_on_hyphens=False)
        lines.append(line)
    return lines


def _with_room(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int
) -> tuple[int, list[str]]:
    """The width of the first column that fits, and the lines without what is wider in it."""
    least = len(columns[0].heading)
    widest = max(map(len, _rendered(columns, rows)))
    room = max(least, width - widest + max(least, *(len(row[0]) for row in rows)))
    inside = [row if len(row[0]) <= room else ["", *row[1:]] for row in rows]
    return room, _rendered(columns, inside, room)


def _names_above(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lines of a table whose names are too many to stand side by side.

    ::

        network, strategy, devices
            samples/s          speed-up
        MobileNetV2, Interleaved 1F1B, 2x4
                  4.9  1.00 (0.98-1.02)

    or, in less room::

        MobileNetV2, Interleaved 1F1B, 2x4
          samples/s 4.9, speed-up 1.00 (0.98-1.02)

    A text of a column without heading, as a rank, belongs to the next one.
    """
    numbers = [at for at, column in enumerate(columns) if column.right]
    beside = [Column(""), *(columns[at] for at in numbers)]
    made = _rendered(beside, [["", *(row[at] for at in numbers)] for row in rows])
    if max(map(len, made)) > width:
        return [line for row in rows for line in _row_in_words(columns, row, width)]
    heading, *rest = made
    lines = _names_of(columns, [column.heading for column in columns], width)
    lines += [heading] if numbers else []
    for row, line in zip(rows, rest, strict=True):
        lines += _names_of(columns, row, width)
        lines += [line] if numbers else []
    return lines


def _names_of(columns: Sequence[Column], texts: Sequence[str], width: int) -> list[str]:
    signs = (", " if column.heading else " " for column in columns)
    parts = zip(columns, texts, signs, strict=True)
    line = "".join(text + sign for column, text, sign in parts if text and not column.right)
    return textwrap.wrap(line.rstrip(", "), width)


def _row_in_words(columns: Sequence[Column], row: Sequence[str], width: int) -> list[str]:
    values = [
        f"{column.heading} {row[at]}".strip()
        for at, column in enumerate(columns)
        if column.right and row[at]
    ]
    unbroken = ", ".join(value.replace(" ", _NO_BREAK) for value in values)
    lines = textwrap.wrap(
        unbroken, width, initial_indent=_GAP, subsequent_indent=_GAP, break_on_hyphens=False
    )
    return [*_names_of(columns, row, width), *(s.replace(_NO_BREAK, " ") for s in lines)]


def _with_shorter_texts(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], over: int
) -> list[list[str]]:
    """The rows with the widest column of names, but the first, so much narrower."""
    names = [at for at in range(1, len(columns)) if not columns[at].right]
    if not names:
        return [[*row] for row in rows]
    widest = max(names, key=lambda at: max(len(row[at]) for row in rows))
    least = max(len(columns[widest].heading), _SHORTEST_WORD)
    room = max(least, max(len(row[widest]) for row in rows) - over)
    return [[*row[:widest], shortened(row[widest], room), *row[widest + 1 :]] for row in rows]


def _without(
    places: set[int], columns: Sequence[Column], rows: Sequence[Sequence[str]]
) -> tuple[list[Column], list[list[str]]]:
    kept = [at for at in range(len(columns)) if at not in places]
    return [columns[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _rendered(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], first_width: int | None = None
) -> list[str]:
    """Lines of a table as wide as its texts, without borders."""
    from rich.console import Console  # noqa: PLC0415 - slow to import, and --help has no table
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    grid = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0))
    for place, column in enumerate(columns):
        grid.add_column(
            Text(column.heading),
            justify="right" if column.right else "left",
            min_width=None if place else first_width,
            no_wrap=True,
        )
    for row in rows:
        grid.add_row(*map(Text, row))
    console = Console(file=io.StringIO(), width=_UNLIMITED, color_system=None)
    lines = console.render_lines(grid, pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def ranking(
    headings: str,
    rows: Iterable[Sequence[str]],
    tied: Container[int] = (),
    shown: Container[int] | None = None,
) -> list[str]:
    """A table of what was ranked, the first at the top, with a column of places.

    Args:
        headings: of the other columns, see :func:`columns`.
        rows: of all that was ranked.
        tied: places that share the first, ``1=``.
        shown: places to print; all if None.
    """
    placed = [
        ("1=" if place in tied else str(place), *row)
        for place, row in enumerate(rows, start=1)
        if shown is None or place in shown
    ]
    return table(f"| {headings}", placed)


def left_out(
    title: str, reasons: Sequence[tuple[str, str]], brief: str = "", option: str = ""
) -> list[str]:
    """What is not in a ranking, and why.

    Args:
        title: before the number of what is left out.
        reasons: name and reason of each.
        brief: the reasons in short; empty for a line each.
        option: the option that prints a line each.
    """
    if not reasons:
        return []
    head = f"{title}, {len(reasons)}"
    if brief:
        return paragraph(f"{head} ({option}): {brief}.", hanging="  ")
    return ["", head, *named_lines(reasons, "  ")]


_HELP_WIDTH = 76
"""Columns of a line of click's help, without its indentation."""


class Number(click.FloatRange):
    """The type of an option: a finite number, within limits."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            float(value)
        except (TypeError, ValueError):
            self.fail(
                f"{value!r} is not a number; write it in digits, without a unit: 16e9.", param, ctx
            )
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not finite; write a number.", param, ctx)
        return number

    def _describe_range(self) -> str:
        return "" if self.min is None and self.max is None else super()._describe_range()


class WholeNumber(click.IntRange):
    """The type of an option: a whole number, within limits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            int(value)
        except (TypeError, ValueError):
            self.fail(f"{value!r} is not a whole number; write it in digits.", param, ctx)
        number: int = super().convert(value, param, ctx)
        return number

    def _describe_range(self) -> str:
        return "" if self.min is None and self.max is None else super()._describe_range()


def examples(*commands: str) -> str:
    """The last lines of a command's help: how people call it."""
    lines = ["\b", "Examples:"]
    for command in commands:
        parts = textwrap.wrap(command, _HELP_WIDTH - 4, break_on_hyphens=False)
        lines.append("  " + " \\\n      ".join(parts))
    return "\n".join(lines)


def paragraph(text: str, indent: str = "", hanging: str | None = None) -> list[str]:
    """Lines of a sentence that fits the terminal and does not control it.

    Paths and options are not broken.
    """
    return textwrap.wrap(
        printable(text),
        terminal_width(),
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def show(values: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print what a command answers: JSON values, or lines for a terminal."""
    print(json.dumps(values, indent=1) if as_json else "\n".join(lines))


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


_SHORTEST_WORD = 8


def shortened(text: str, room: int) -> str:
    """A name of at most ``room`` characters: long words lose their middle, or else the whole."""
    words = text.split(" ")
    while (over := len(" ".join(words)) - room) > 0:
        place = max(range(len(words)), key=lambda at: len(words[at]))
        if len(words[place]) <= _SHORTEST_WORD:
            return _without_middle(text, max(room, 4))
        size = max(len(words[place]) - over, _SHORTEST_WORD)
        words[place] = _without_middle(words[place], size)
    return " ".join(words)


def _without_middle(text: str, room: int) -> str:
    """The ends, which tell names apart."""
    if len(text) <= room:
        return text
    back = (room - 2) // 2
    return f"{text[: room - 2 - back]}..{text[-back:]}"
