"""Read the JSON of iperf3 (``iperf3 --json``): the rate of TCP between two nodes.

Facts from its source (``src/iperf_api.c``, version 3.12) and from its output on loopback:
``end.sum_received`` has the bytes that arrived, of all streams of one direction, and their bits per
second; ``bytes`` and ``seconds`` give the same rate, unless a digit has changed. With ``--bidir``,
``sum_received_bidir_reverse`` is the other direction. A failed test has the key ``error``. Its
``rtt`` is that of the full queue during the test, and no latency.
"""

from __future__ import annotations

from ddlbench.common.captured_text import JsonObject, json_at
from ddlbench.common.errors import ConfigError, shown
from ddlbench.interconnect.message_tests import MessageRate, MessageTest, MessageTests

_REMEDY = "run iperf3 -c HOST --json again"
_RATE_ERROR = 0.01
_BOTH_WAYS = "sum_received_bidir_reverse"


def is_iperf3(text: str) -> bool:
    """Whether a text is the JSON of iperf3."""
    return text.lstrip().startswith("{") and '"iperf 3' in text


def parse_iperf3(text: str, where: str) -> MessageTests:
    """Parse the JSON of one test over TCP.

    Args:
        text: of the file.
        where: its name, for messages.

    Raises:
        ConfigError: it is cut off, has an error, is of UDP, or contradicts itself.
    """
    value, _ = json_at(text.index("{"), text, where, "iperf3 -c HOST --json")
    if error := value.get("error"):
        raise ConfigError(f"{where}: iperf3 reports: {shown(error)}; {_REMEDY}")
    whole = JsonObject(value, where, _REMEDY)
    start, end = whole.inner("start").inner("test_start"), whole.inner("end")
    protocol, size = start.take("protocol", str), start.take("blksize", int)
    if protocol != "TCP":
        raise ConfigError(f"{where} is of {protocol}, whose rate the sender sets; run it over TCP")
    both = ("sum_received", _BOTH_WAYS) if _BOTH_WAYS in end.value else ("sum_received",)
    rates = [_rate(end.inner(name)) for name in both]
    rate = MessageRate(size, sum(rates) / len(rates))
    return MessageTests((MessageTest("iperf3, TCP", "tcp", "p2p", len(rates), (), (rate,)),))


def _rate(total: JsonObject) -> float:
    """Bytes per second of one direction."""
    bits, count, seconds = (
        total.take(key, int, float) for key in ("bits_per_second", "bytes", "seconds")
    )
    if not (seconds > 0 and abs(8 * count / seconds - bits) <= _RATE_ERROR * bits):
        raise ConfigError(
            f"{total.where} has {count} bytes in {seconds} s, and {bits} bits per second; {_REMEDY}"
        )
    return float(bits) / 8
