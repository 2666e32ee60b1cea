r"""Parse what NVIDIA's nccl-tests print (``all_reduce_perf`` and its like, BSD-3).

::

    # nThread 1 nGpus 1 minBytes 536870912 maxBytes 8589934592 step: 2(factor) ...
    #  Rank  0 Group  0 Pid   1887 on   worker-1 device  0 [0x8d] NVIDIA H100 80GB HBM3
    #                                                 out-of-place                       in-place
    #   size     count   type  redop  root     time   algbw   busbw #wrong     time   algbw  ...
    536870912 134217728 float    sum    -1   1806.7  297.16  586.06      0   1835.9  292.43  ...

Times are microseconds, rates GB/s. Nothing names the operation before version 2.17; the command
line may, else the ratio of both rates tells it: 2 (n - 1) / n for an all-reduce, (n - 1) / n for
all-gather and reduce-scatter, which have a ``redop`` or none, 1 for broadcast. All-to-all and
send-receive have the same ratios, but ``N/A`` for what is wrong in place; so do gather, scatter and
reduce, but a ``root`` from 0 on. A size is the whole buffer. ``redop`` and ``root`` are missing in
old versions. Lines may begin with a rank, a host or the time. Several runs in one text are repeats
if they have as many ranks and the same operation.
All rows of a text have as many columns as its heading, or half of them after a wide gap where only
in-place times were measured: one with fewer was cut off. Size, time and rate of a row fit together:
if they do not, other text has torn the row.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

from ddlbench.common.captured_text import uncoloured_lines
from ddlbench.common.errors import ConfigError
from ddlbench.common.statistics import medians

_NUMBER = r"\s+[+-]?(?:[\d.]+(?:[eE][+-]?\d+)?|(?i:n/a|nan|inf))"
_HEAD = r"(?<![\w.+-])(\d{1,18})\s+(\d{1,18})\s+([a-z][a-z0-9_]+)(?:\s+([a-z]+))?(?:\s+(-?\d+))?"
_ROW = re.compile(
    rf"{_HEAD}({'|'.join(f'(?:{_NUMBER}){{{count}}}' for count in (16, 10, 8, 5, 4))})"
    r"(?:\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)?\s*$"
)
_BROKEN_ROW = re.compile(r"^\s*\d{2,18}\s+\d{1,18}\s+[a-z][a-z0-9_]+\s+[a-z]+\s+-?\d+")
_OUT_OF_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)\s+FAILED")
_HEADING = re.compile(r"\bsize\s+count\s.*?\b(time\s+algbw\b.*)")
_COLUMN = re.compile(r"\b(?:time|algbw|busbw|error|diff\w*)\b|#wrong")
_WIDE_GAP = re.compile(r"\S\s{24,}[\d.]")
_RANK = re.compile(
    r"\bRank\s+(\d{1,9})\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+"
)
_DEVICE = re.compile(r"\bdevice\s+\d+\s+\[[^\]]*\]\s+(.+?)\s*$")
_BEGIN = re.compile(r"\bnThread\s+\d+\s+nGpus\s+\d+")
_PROGRAM = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|broadcast)_perf")
_OTHERS = re.compile(r"\b(alltoall|sendrecv|gather|scatter|reduce|hypercube)_perf")
_CPU_TIME = re.compile(r"\bcount\s.*\bcputime\b")
_FAILURE = re.compile(r"Test (?:NCCL )?failure|NCCL WARN|Test CUDA failure")
_END = re.compile(r"Avg bus bandwidth")
_LONGEST_S = 1e9
_COLUMNS, _BOTH = 4, 8
"""Columns of a time, and of two. The newest version may add one to each for differing bits, or
four for single iterations."""
_LEAST_EXPONENT, _MOST_WRONG = 1e5, 1e18
_RATIO_ERROR = 0.03  # of rates with two digits after the point
_RATE_ERROR, _LEAST_RATE_ERROR = 0.03, 0.006  # of a row: times may have two digits, 2.5e+06


class NoWholeRowError(ConfigError):
    """All rows of a test are cut off, torn, or without a time."""


@dataclass(frozen=True)
class NcclPoint:
    """Messages of one size; ``payload_bytes`` of the whole buffer, seconds are medians."""

    payload_bytes: int
    time_s: float


@dataclass(frozen=True)
class NcclTest:
    """One run of a test.

    Args:
        operation: all_reduce, all_gather, reduce_scatter or broadcast.
        ranks: 0 where the text does not list them.
        hosts: names of the nodes, as far as they are listed.
        devices: names of the devices, each once.
        points: by size.
        remarks: what a reader should know: wrong values, a missing end.
        bus_ratio: bus over algorithm bandwidth, which tells the number of ranks; None if unknown.
    """

    operation: str
    ranks: int
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    points: tuple[NcclPoint, ...]
    remarks: tuple[str, ...]
    bus_ratio: float | None

    def check_ranks(self, ranks: int, where: str) -> None:
        """Raises ConfigError if its bus bandwidth is that of another number of ranks."""
        of_ranks = {"all_reduce": 2 * (1 - 1 / ranks), "broadcast": 1.0}
        expected = of_ranks.get(self.operation, 1 - 1 / ranks)
        if self.bus_ratio is not None and abs(self.bus_ratio - expected) > _RATIO_ERROR:
            raise ConfigError(
                f"{where}: busbw is {self.bus_ratio:.2f} times algbw, and {expected:.2f} times it "
                f"in a test of {self.operation} on {ranks} ranks; give --operation, --nodes and "
                "--devices-per-node as they were"
            )


@dataclass(frozen=True)
class _Row:
    size: int
    reduces: bool | None
    has_root: bool | None
    time_s: float
    rate: float
    ratio: float | None
    wrong: int
    unchecked_in_place: bool

    @property
    def expected_rate(self) -> float:
        """GB/s by its size and time."""
        return self.size / self.time_s / 1e9


def is_nccl_tests(text: str) -> bool:
    """Whether a text has rows of nccl-tests, or their heading."""
    return any(_BEGIN.search(line) or _row(line) is not None for line in uncoloured_lines(text))


def parse_nccl_tests(text: str, where: str, operation: str | None = None) -> NcclTest:
    """Parse the output of one test, with as many repeats as it has.

    Args:
        text: all of stdout, as captured.
        where: its name, for messages.
        operation: of the test, where the text is not to tell.

    Raises:
        ConfigError: it has no row of a known operation, or each process ran alone.
    """
    lines = uncoloured_lines(text)
    rows, broken = _rows(lines)
    if not rows:
        why = next((line.strip() for line in lines if _FAILURE.search(line)), "")
        at = next((n for n, line in enumerate(lines, 1) if _BROKEN_ROW.search(line)), None)
        if at and not why:
            raise NoWholeRowError(
                f"{where} line {at}: no row of nccl-tests is whole from here on: cut off, torn by "
                "other text, or without a time; give lines as all_reduce_perf prints them, with "
                "points in numbers"
            )
        raise ConfigError(
            f"{where}: no row of nccl-tests in it{f' ({why[:120]})' if why else ''}; capture all "
            "that all_reduce_perf prints"
        )
    if any(_CPU_TIME.search(line) for line in lines):
        raise ConfigError(f"{where}: its times are those of the CPU; run the test without -C 1")
    placed = [match for line in lines if (match := _RANK.search(line))]
    numbers = Counter(int(match[1]) for match in placed)
    hosts = tuple(dict.fromkeys(match[3] for match in placed))
    groups = {match[2] for match in placed}
    if len(placed) > 1 and set(numbers) == {0}:
        raise ConfigError(
            f"{where}: {len(placed)} processes ran alone, as rank 0 each; build nccl-tests with "
            "MPI=1 and run it again"
        )
    if len(groups) > 1:
        raise ConfigError(
            f"{where}: its ranks are split into {len(groups)} groups, which share links; run it "
            "without NCCL_TESTS_SPLIT and NCCL_TESTS_SPLIT_MASK"
        )
    _check_repeats(lines, operation, where)
    ranks = max(numbers, default=-1) + 1
    _check_even({int(match[1]): match[3] for match in placed}, ranks, where)
    if ranks == 1:
        raise ConfigError(f"{where}: one rank sends nothing; give a test of two or more")
    names = (match[1] for line in lines if _RANK.search(line) and (match := _DEVICE.search(line)))
    return NcclTest(
        operation=_checked(operation, text, where) or _operation(text, rows, ranks, where),
        ranks=ranks,
        hosts=hosts,
        devices=tuple(dict.fromkeys(names)),
        points=_points(rows),
        remarks=tuple(_remarks(text, rows, broken)),
        bus_ratio=median(ratios) if (ratios := _ratios(rows)) else None,
    )


def _rows(lines: Sequence[str]) -> tuple[list[_Row], int]:
    """The rows with a time, and how many are broken."""
    matched_rows = [(match, _read(match)) for line in lines if (match := _ROW.search(line))]
    headings = (
        len(_COLUMN.findall(match[1])) for line in lines if (match := _HEADING.search(line))
    )
    counts = Counter(_columns(match) for match, _ in matched_rows)
    usual = max(counts, key=lambda count: (counts[count], count), default=0)
    columns = max([*headings, usual])  # headings may be torn, too
    in_place_only = 2 * usual == columns  # a choice of the whole run, not of a row
    whole = _with_fitting_rates(
        [
            row
            for match, row in matched_rows
            if row is not None
            and (_columns(match) == columns or (in_place_only and _WIDE_GAP.search(match[0])))
        ]
    )
    empty = sum(int(match[1]) == 0 for match, _ in matched_rows)
    torn = sum(1 for line in lines if _BROKEN_ROW.search(line) and not _ROW.search(line))
    return whole, torn + len(matched_rows) - len(whole) - empty


def _with_fitting_rates(rows: Sequence[_Row]) -> list[_Row]:
    """Rows whose rate is as large a part of size over time as that of most rows.

    The part is 1, but in versions that count what a rank sends to the others.
    """
    part = median([row.rate / row.expected_rate for row in rows if row.rate >= 1] or [1.0])
    return [
        row
        for row in rows
        if not math.isfinite(row.rate)
        or abs(row.rate - part * row.expected_rate) <= _LEAST_RATE_ERROR + _RATE_ERROR * row.rate
    ]


def _columns(match: re.Match[str]) -> int:
    return len(match[6].split())


def _checked(operation: str | None, text: str, where: str) -> str | None:
    """The operation that the user gives.

    Raises:
        ConfigError: the text names another one.
    """
    named = {match[1] for match in _PROGRAM.finditer(text)}
    if operation is not None and len(named) == 1 and operation not in named:
        raise ConfigError(
            f"{where}: its text names {named.pop()}_perf, and --operation {operation}; leave the "
            "option out"
        )
    return operation


def _check_even(hosts: Mapping[int, str], ranks: int, where: str) -> None:
    """Refuse nodes with more ranks than others, where the host of each rank is listed."""
    by_host = Counter(hosts.values()).most_common()
    if len(hosts) < ranks or not by_host or by_host[0][1] == by_host[-1][1]:
        return
    most, least = by_host[0], by_host[-1]
    raise ConfigError(
        f"{where}: {most[1]} of its ranks are on {most[0]}, {least[1]} on {least[0]}; give a test "
        "with as many ranks on each node"
    )


def _check_repeats(lines: list[str], operation: str | None, where: str) -> None:
    """Refuse a text whose runs are of different ranks or operations."""
    begins = [number for number, line in enumerate(lines) if _BEGIN.search(line)]
    first: tuple[int, str | None] | None = None
    for begin, end in itertools.pairwise([*begins, len(lines)]):
        run = lines[begin:end]
        rows, _ = _rows(run)
        if not rows:
            continue
        ranks = 1 + max(
            (int(match[1]) for line in run if (match := _RANK.search(line))), default=-1
        )
        has_ratios = operation is None and any(row.ratio is not None for row in rows)
        kind = _operation("\n".join(run), rows, ranks, where) if has_ratios else operation
        first = first or (ranks, kind)
        if ranks != first[0] or (kind and first[1] and kind != first[1]):
            raise ConfigError(
                f"{where} line {begin + 1}: {_run_text(ranks, kind)} begins here, after "
                f"{_run_text(*first)}; give each a file of its own"
            )


def _run_text(ranks: int, operation: str | None) -> str:
    return f"{operation or 'a test'} of {ranks or 'unlisted'} ranks"


def _row(line: str) -> _Row | None:
    match = _ROW.search(line)
    return None if match is None else _read(match)


def _read(match: re.Match[str]) -> _Row | None:
    size, redop, words = int(match[1]), match[4], match[6].split()
    width = len(words) if len(words) < _BOTH else len(words) // 2
    # Of a run in place alone, the in-place times are all there are.
    both = [words[place : place + _COLUMNS] for place in range(0, len(words), width)]
    first, timed = _times(both[0]), [times for each in both if (times := _times(each)) is not None]
    if first is None or size == 0:
        return None
    time_s, rate, ratio, _ = first
    wrong = sum(times[3] for times in timed)
    unchecked = len(both) == 2 and both[1][-1] == "N/A" != both[0][-1]
    reduces = None if redop is None else redop != "none"
    has_root = None if match[5] is None else int(match[5]) >= 0
    return _Row(size, reduces, has_root, time_s, rate, ratio, wrong, unchecked)


def _times(words: Sequence[str]) -> tuple[float, float, float | None, int] | None:
    """Seconds, GB/s, bus over algorithm bandwidth, and wrong values; None if that is no time."""
    try:
        time_s, algorithm, bus = float(words[0]) / 1e6, float(words[1]), float(words[2])
    except ValueError:
        return None
    if not 0 < time_s < _LONGEST_S:  # NaN fails, too
        return None
    # Rates have two digits after the point, so that small ones tell no ratio.
    ratio = bus / algorithm if algorithm >= 1 else None
    return time_s, algorithm, ratio, _wrong_values(words[3])


def _wrong_values(word: str) -> int:
    """A count, as ``%g`` prints it. Before version 2.13 the column has a relative error."""
    if word.isdigit():
        return int(word[:18])
    with suppress(ValueError):
        count = float(word)
        return int(count) if _LEAST_EXPONENT <= count < _MOST_WRONG else 0
    return 0


def _operation(text: str, rows: list[_Row], ranks: int, where: str) -> str:
    named = {match[1] for match in _PROGRAM.finditer(text)}
    if len(named) == 1:
        return named.pop()
    other = _OTHERS.search(text)
    ratios = _ratios(rows)
    unchecked = rows[0].unchecked_in_place
    rooted = bool(ratios) and _is_of_a_root(rows[0], median(ratios))
    if other or len(named) > 1 or unchecked or rooted or not ratios:
        what = other[0] if other and not named else "several tests" if named else "its rates"
        if rooted and not (other or named):
            what = "a test with a root (reduce_perf, gather_perf, scatter_perf)"
        if unchecked and not (other or named):
            what = "a test without a check in place (alltoall_perf, sendrecv_perf)"
        by_name = (
            "" if other or named or unchecked or rooted else " (`links compare` takes --operation)"
        )
        raise ConfigError(
            f"{where}: {what} cannot be compared; give the output of one of all_reduce_perf, "
            f"all_gather_perf, reduce_scatter_perf, broadcast_perf{by_name}"
        )
    ratio = median(ratios)
    ring = 1 - 1 / ranks if ranks > 1 else None
    if ratio > 1.2 or (ring is not None and ranks > 2 and abs(ratio - 2 * ring) < 0.05):
        return "all_reduce"
    if ranks == 2 and abs(ratio - 1) < 0.05 and rows[0].reduces:
        return "all_reduce"  # 2 (n - 1) / n is 1
    if _is_broadcast(rows[0], ratio):
        return "broadcast"
    return "reduce_scatter" if rows[0].reduces else "all_gather"


def _is_of_a_root(row: _Row, ratio: float) -> bool:
    """Whether it has a root, but is no broadcast: a reduce, gather or scatter."""
    return bool(row.has_root) and ratio <= 1 and not _is_broadcast(row, ratio)


def _is_broadcast(row: _Row, ratio: float) -> bool:
    """Whether a row that is no all-reduce is a broadcast's, whose rates are the same number.

    On many ranks (n - 1) / n is nearly 1, too.
    """
    return ratio == 1 and not row.reduces


def _ratios(rows: Iterable[_Row]) -> list[float]:
    return [row.ratio for row in rows if row.ratio is not None]


def _points(rows: Iterable[_Row]) -> tuple[NcclPoint, ...]:
    by_size = medians((row.size, row.time_s) for row in rows)
    return tuple(NcclPoint(size, time_s) for size, time_s in sorted(by_size.items()))


def _remarks(text: str, rows: list[_Row], broken: int) -> Iterable[str]:
    wrong = sum(row.wrong for row in rows)
    failed = sum(int(match[1][:18]) for match in _OUT_OF_BOUNDS.finditer(text))
    if wrong:
        yield f"wrong values ({wrong:,}): the links or the memory corrupt data"
    elif failed:
        yield f"sizes with wrong values ({failed:,}): the links or the memory corrupt data"
    if broken:
        left_out = "1 row is" if broken == 1 else f"{broken} rows are"
        yield (
            f"{left_out} left out: cut off, without a time, or broken by other text "
            "(NCCL_DEBUG=WARN avoids that)"
        )
    if not _END.search(text):
        yield "its last line is missing: the test was cut off, or not all of it was captured"
