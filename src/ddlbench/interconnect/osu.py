"""Read the OSU micro-benchmarks: ``osu_latency``, ``osu_bw``, ``osu_allreduce`` and their like.

::

    # OSU MPI-CUDA Allreduce Latency Test v7.5
    # Datatype: MPI_INT.                                                newer versions
    # Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations     -f: last three
    4                      10.05             10.01             10.09        1000

Facts from its source (versions 5 to 7: ``pt2pt/osu_latency.c``, ``osu_bw.c`` and ``osu_bibw.c``,
``collective/osu_*.c``, ``util/osu_util_mpi.c``):

* times are microseconds; of ``osu_latency`` half a round trip, of collectives the mean over the
  ranks. With ``-f`` the slowest rank's is printed, too, and taken, as links.json has it;
* rates are 1e6 bytes per second, of 64 messages under way. Those of ``osu_bibw`` add both
  directions, and are halved here;
* a size is what one rank gives: of an all-gather a share of the result, of the others all of it.
  Sizes double from row to row;
* values have two digits after the point. ``-c`` adds a column Validation, ``-z`` percentiles;
* nothing names the ranks, their number or their nodes. ``osu_xccl_*`` print NCCL instead of MPI.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, cast

from ddlbench.interconnect.message_tables import Layout, Table, parse_tables
from ddlbench.interconnect.message_tests import MessageRate, MessageTest, MessageTests, TimedMessage

_LAYOUT = Layout(
    title=re.compile(r"# (OSU (\w+)(?:-\w+)?(?: MANAGED)? (.+?) Test)(?: v[\w.]+)?"),
    heading=re.compile(r"# Size\s+(\S.*)"),
    column=re.compile(
        r"(?:(?:Avg |Min |Max )?Latency|(?:Bi-)?Bandwidth|P\d+ Tail (?:Lat|BW)) ?\((?:us|MB/s)\)"
        r"|Iterations|Validation|Transmit Size"
    ),
)
_ROW = re.compile(r"\d{1,15} \d{1,15}\.\d\d(?: (?:[\d.]{1,18}|Pass|Fail|-))*", re.ASCII)
_LIBRARIES = {"MPI": "mpi", "NCCL": "nccl"}
_TESTS = {
    "Latency": "p2p",
    "Bandwidth": "p2p",
    "Bi-Directional Bandwidth": "p2p",
    "Allreduce Latency": "all_reduce",
    "Broadcast Latency": "broadcast",
    "Allgather Latency": "all_gather",
    "Reduce_scatter Latency": "reduce_scatter",
}
_KNOWN = (
    "osu_latency, osu_bw, osu_bibw, osu_allreduce, osu_bcast, osu_allgather or osu_reduce_scatter"
)


def is_osu(text: str) -> bool:
    """Whether a text has the title of a test."""
    return re.search(r"# OSU \w+(?:-\w+)? .+ Test", text) is not None


def parse_osu(text: str, where: str) -> MessageTests:
    """Parse the output of one or more tests.

    Args:
        text: as captured: lines may begin with a rank, a host or the time.
        where: its name, for messages.

    Raises:
        ConfigError: there is no test that is read here, or one without a row or heading.
    """
    return parse_tables(text, where, _LAYOUT, _test, _KNOWN)


def _test(table: Table) -> tuple[MessageTest, int] | None:
    name, library, kind = table.title.groups()
    if library not in _LIBRARIES or kind not in _TESTS:
        return None
    slowest = next((at for at, word in enumerate(table.columns) if word.startswith("Max ")), 0)
    rows = [words for words in table.rows if _ROW.fullmatch(" ".join(words))]
    values = [(int(words[0]), float(words[1 + slowest])) for words in _doubling(rows)]
    directions = 2 if kind.startswith("Bi-") else 1
    is_rate = kind.endswith("Bandwidth")
    test = MessageTest(
        name,
        cast(Literal["mpi", "nccl"], _LIBRARIES[library]),
        cast(Any, _TESTS[kind]),
        directions,
        () if is_rate else tuple(TimedMessage(size, value / 1e6) for size, value in values),
        tuple(MessageRate(size, 1e6 * value / directions) for size, value in values)
        if is_rate
        else (),
    )
    return test, len(values)


def _doubling(rows: list[list[str]]) -> Iterator[list[str]]:
    """Rows whose sizes grow, and are powers of two times what most of them are."""
    odd = Counter(_odd_part(int(words[0])) for words in rows if int(words[0])).most_common(1)
    largest = -1
    for words in rows:
        size = int(words[0])
        if size > largest and (size == 0 or _odd_part(size) == odd[0][0]):
            largest = size
            yield words


def _odd_part(size: int) -> int:
    return size // (size & -size)
