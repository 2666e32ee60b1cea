"""Tests of messages that know no device: of MPI, RDMA or TCP, and the link that they describe.

::

    latency test     time of the shortest message ----> latency_s
                     time of the longest, less that -+
    bandwidth test   rate of the longest message ----+-> bandwidth_bytes_per_s    one way

This is what the site file takes as a link (``interconnect: {links: ...}``). As in measured links
(:mod:`.rank_pairs`), the bandwidth of a latency test is bytes over (time - latency), of messages of
1 MiB and more. The rate of a bandwidth test counts before it: there, many messages are under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ddlbench.experiment.site import GivenLink

_SHORT_BYTES, _LONG_BYTES, _STREAM_BYTES = 1024, 2**20, 2**16
"""A sweep of measured links begins at 1 KiB, its pairs exchange 1 MiB and more, and perftest sends
64 KiB unless told otherwise."""


@dataclass(frozen=True)
class TimedMessage:
    """Messages of one size, in bytes as links.json counts them: the buffer of one rank."""

    message_bytes: int
    time_s: float


@dataclass(frozen=True)
class MessageRate:
    """Messages of one size, many of them under way: bytes per second in one direction."""

    message_bytes: int
    bandwidth_bytes_per_s: float


@dataclass(frozen=True)
class MessageTest:
    """One test.

    Args:
        title: as the program prints it.
        library: what sends.
        operation: p2p: between two ranks, times one way.
        directions: 2 if both sent at once; rates are those of one of them.
        times: by size.
        rates: by size.
    """

    title: str
    library: Literal["mpi", "nccl", "rdma", "tcp"]
    operation: Literal["p2p", "all_reduce", "broadcast", "all_gather", "reduce_scatter"]
    directions: int = 1
    times: tuple[TimedMessage, ...] = ()
    rates: tuple[MessageRate, ...] = ()


@dataclass(frozen=True)
class MessageTests:
    """All tests of one or more texts, in order.

    Args:
        tests: at least one.
        remarks: what a reader should know.
    """

    tests: tuple[MessageTest, ...]
    remarks: tuple[str, ...] = ()

    @classmethod
    def joined(cls, several: Sequence[MessageTests]) -> MessageTests:
        """The tests of several texts."""
        return cls(
            tuple(test for each in several for test in each.tests),
            tuple(remark for each in several for remark in each.remarks),
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values: tests, the link that those between two ranks describe, remarks."""
        pairs = [test for test in self.tests if test.operation == "p2p"]
        link, lacking = _link(pairs) if pairs else (None, [])
        return {
            "tests": [asdict(test) for test in self.tests],
            "link": None if link is None else asdict(link),
            "remarks": [*self.remarks, *lacking],
        }


def _link(pairs: Sequence[MessageTest]) -> tuple[GivenLink | None, list[str]]:
    """The link of tests between two ranks, or what is missing for it."""
    timed = [test for test in pairs if test.times]
    rated = [test for test in pairs if test.rates and test.directions == 1]
    rated = rated or [test for test in pairs if test.rates]
    if len(timed) > 1 or len(rated) > 1:
        kind = "latency" if len(timed) > 1 else "bandwidth"
        return None, [f"no link: several {kind} tests are in it; give those of one pair of ranks"]
    # An empty message is no message: no buffer of a device is touched.
    times = [time for time in timed[0].times if time.message_bytes > 0] if timed else []
    if not times or times[0].message_bytes > _SHORT_BYTES:
        return None, [_lacks("latency", "1 KiB or less", "osu_latency or ib_send_lat")]
    bandwidth = _rate_of_stream(rated) or _rate_of_message(times)
    if bandwidth is None:
        return None, [_lacks("bandwidth", "1 MiB or more", "osu_bw or ib_send_bw")]
    return GivenLink(latency_s=times[0].time_s, bandwidth_bytes_per_s=bandwidth), []


def _lacks(what: str, size: str, programs: str) -> str:
    return (
        f"no link: its {what} is missing (messages of {size}); give the output of {programs}, too"
    )


def _rate_of_stream(rated: Sequence[MessageTest]) -> float | None:
    longest = rated[0].rates[-1] if rated else None
    if longest is None or longest.message_bytes < _STREAM_BYTES:
        return None
    return longest.bandwidth_bytes_per_s or None


def _rate_of_message(times: Sequence[TimedMessage]) -> float | None:
    first, last = times[0], times[-1]
    if last.message_bytes < _LONG_BYTES or last.time_s <= first.time_s:
        return None
    return last.message_bytes / (last.time_s - first.time_s)
