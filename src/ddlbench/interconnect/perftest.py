"""Read linux-rdma's perftest: ``ib_write_bw``, ``ib_send_lat`` and their like.

::

                        RDMA_Write BW Test
     #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
     65536      5000             11030.78            11030.45            0.176487

                        Send Latency Test
     #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec] ...
     2       1000          1.10           2.05         1.11               1.12

Facts from its source (``src/perftest_resources.c`` and ``perftest_parameters.h``, versions 4 to 6):

* a MB is 2^20 bytes, whether it is called MB or MiB; with ``--report_gbits`` the unit is 1e9 bits
  (``format_factor``). The average counts here;
* the rate of messages times their size is the rate of bytes, and a median lies between the
  extremes: if not, a digit has changed;
* a bidirectional test adds both directions, and is halved here;
* ``t_typical`` is the median, half a round trip of Send and Write (``rtt_factor``). With ``-D`` the
  columns are ``t_avg[usec]`` and ``tps average``. Times of Read and Atomic are whole ones, and are
  not read.
"""

from __future__ import annotations

import re

from ddlbench.interconnect.message_tables import Layout, Table, parse_tables
from ddlbench.interconnect.message_tests import MessageRate, MessageTest, MessageTests, TimedMessage
from ddlbench.interconnect.nvidia_programs import is_printed_number, printed_number

_LAYOUT = Layout(
    title=re.compile(r"((RDMA_Write|RDMA_Read|Send|Atomic\w*)(?: .+)? (?:BW|Latency) Test)"),
    heading=re.compile(r"#bytes\s+(#iterations\s.*\S)"),
    column=re.compile(r"#\w+|(?:BW )?\w+\[[\w/%]+\]|tps average"),
)
_UNITS = {"MB/sec": 2.0**20, "MiB/sec": 2.0**20, "Gb/sec": 1e9 / 8}
_AVERAGE = re.compile(r"BW average\[(.+)\]")
_LEAST, _MEDIAN, _MOST, _MEAN = (f"t_{name}[usec]" for name in ("min", "typical", "max", "avg"))
_MESSAGE_RATE = "MsgRate[Mpps]"
_RATE_ERROR, _LAST_DIGIT_PER_S = 0.02, 1.0
"""Of bytes by messages: relative, and the last digit of a rate of messages (1e-6 Mpps)."""
_LARGEST = 1e15


def is_perftest(text: str) -> bool:
    """Whether a text has the heading of a table."""
    return re.search(r"#bytes\s+#iterations\s", text) is not None


def parse_perftest(text: str, where: str) -> MessageTests:
    """Parse the output of one or more tests, of either side.

    Args:
        text: as captured: lines may begin with a rank, a host or the time.
        where: its name, for messages.

    Raises:
        ConfigError: there is no test that is read here, or one without a row or heading.
    """
    known = "ib_write_bw, ib_send_bw, ib_read_bw, ib_write_lat or ib_send_lat, in microseconds"
    return parse_tables(text, where, _LAYOUT, _test, known)


def _test(table: Table) -> tuple[MessageTest, int] | None:
    name, verb = table.title.groups()
    rows = [words for words in table.rows if all(map(_is_number, words))]
    directions = 2 if "Bidirectional" in name else 1
    times: list[TimedMessage] = []
    rates: list[MessageRate] = []
    if name.endswith("BW Test"):
        rates = [rate for words in rows if (rate := _rate(table.columns, words, directions))]
    elif verb in ("RDMA_Write", "Send") and "cycles" not in " ".join(table.columns):
        times = [time for words in rows if (time := _time(table.columns, words))]
    else:
        return None
    test = MessageTest(name, "rdma", "p2p", directions, tuple(times), tuple(rates))
    return test, len(times) + len(rates)


def _is_number(word: str) -> bool:
    value = printed_number(word) if is_printed_number(word) else None
    return value is not None and abs(value) < _LARGEST


def _time(columns: list[str], words: list[str]) -> TimedMessage | None:
    """The median of a row, or its mean with -D; None if it is not between the extremes."""
    times = dict(zip(columns, map(float, words[1:]), strict=True))
    time_us = times.get(_MEDIAN, times.get(_MEAN, -1.0))
    if time_us <= 0 or not times.get(_LEAST, 0.0) <= time_us <= times.get(_MOST, _LARGEST):
        return None
    return TimedMessage(int(words[0]), time_us / 1e6)


def _rate(columns: list[str], words: list[str], directions: int) -> MessageRate | None:
    """The rate of a row; None if that of its messages is another one."""
    unit_at = next((at for at, word in enumerate(columns) if _AVERAGE.fullmatch(word)), None)
    if unit_at is None or (match := _AVERAGE.fullmatch(columns[unit_at])) is None:
        return None
    size, rate = int(words[0]), float(words[1 + unit_at]) * _UNITS.get(match[1], 0.0)
    if _MESSAGE_RATE in columns:
        messages_per_s = 1e6 * float(words[1 + columns.index(_MESSAGE_RATE)])
        if abs(size * messages_per_s - rate) > _RATE_ERROR * rate + size * _LAST_DIGIT_PER_S:
            return None
    return MessageRate(size, rate / directions) if rate > 0 else None
