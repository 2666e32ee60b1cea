"""Tables of message sizes in the output of link tests: a title, a heading, a row per size.

::

    # OSU MPI Latency Test v7.5                  title      RDMA_Write BW Test
    # Size       Avg Latency(us)                 heading    #bytes  #iterations  BW average[MB/sec]
    1                       2.37                 rows        65536         5000             9500.00
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ddlbench.common.errors import ConfigError
from ddlbench.interconnect.message_tests import MessageTest, MessageTests
from ddlbench.interconnect.nvidia_programs import plain_lines


class Layout(NamedTuple):
    """Patterns of whole lines of a program, and of a column.

    Args:
        title: group 1 names the test.
        heading: group 1 has the columns after the size.
        column: of the heading.
    """

    title: re.Pattern[str]
    heading: re.Pattern[str]
    column: re.Pattern[str]


class Table(NamedTuple):
    """The table of one test; rows have as many words as the heading has columns, and the size.

    Args:
        title: its match.
        columns: after the size.
        rows: of which each begins with a size.
    """

    title: re.Match[str]
    columns: list[str]
    rows: list[list[str]]


def parse_tables(
    text: str,
    where: str,
    layout: Layout,
    test_of: Callable[[Table], tuple[MessageTest, int] | None],
    known: str,
) -> MessageTests:
    """Parse all tables of a text.

    Args:
        text: as captured: lines may begin with a rank, a host or the time.
        where: its name, for messages.
        layout: of the program.
        test_of: the test of a table, and how many rows it has kept; None for other tests.
        known: programs whose output ``test_of`` reads.

    Raises:
        ConfigError: there is no test that is read, or one without a heading or a row.
    """
    tests, others, remarks = [], [], []
    pattern = re.compile(rf"(?:{layout.title.pattern}|{layout.heading.pattern})\s*$")
    for number, title, lines in _sections(plain_lines(text, pattern, where), layout.title):
        rows = [line.split() for line in lines if re.match(r"\d{1,15}(?!\S)", line, re.ASCII)]
        heading = next((match for line in lines if (match := layout.heading.fullmatch(line))), None)
        columns = layout.column.findall(heading[1]) if heading else []
        whole = [words for words in rows if len(words) == 1 + len(columns)]
        read = test_of(Table(title, columns, whole))
        place = f"line {number}: {title[1]}"
        if read is None:
            others.append(title[1])
            remarks.append(f"{place} is left out")
        elif not columns:
            raise ConfigError(f"{where} {place} lacks the line of its columns; give all it printed")
        elif not read[1]:
            raise ConfigError(f"{where} {place} has no whole row; run it again")
        else:
            tests.append(read[0])
            if broken := len(rows) - read[1]:
                counted = "1 row is" if broken == 1 else f"{broken} rows are"
                remarks.append(f"{place}: {counted} left out: cut off, or changed by other text")
            if any("Fail" in words for words in whole):
                remarks.append(f"{place}: wrong values: the links or the memory corrupt data")
    if not tests:
        what = f"{', '.join(dict.fromkeys(others))} is" if others else "a test without its title is"
        raise ConfigError(f"{where}: {what} not read here; give all that {known} prints")
    return MessageTests(tuple(tests), tuple(remarks))


def _sections(
    lines: list[str], title: re.Pattern[str]
) -> Iterator[tuple[int, re.Match[str], list[str]]]:
    """The line of each title, its match, and the lines up to the next."""
    begins = [(at, match) for at, line in enumerate(lines) if (match := title.fullmatch(line))]
    ends = [*(at for at, _ in begins), len(lines)][1:]
    for (at, match), end in zip(begins, ends, strict=True):
        yield at + 1, match, lines[at + 1 : end]
