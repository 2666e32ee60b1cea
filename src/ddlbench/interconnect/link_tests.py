"""Outputs of link tests that ``ddlbench links`` reads: a line per format, recognised by content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ddlbench.common.errors import ConfigError
from ddlbench.interconnect.iperf3 import is_iperf3, parse_iperf3
from ddlbench.interconnect.message_tests import MessageTests
from ddlbench.interconnect.nccl_tests import NcclTest, is_nccl_tests, parse_nccl_tests
from ddlbench.interconnect.nccl_tests_json import is_nccl_json, parse_nccl_json
from ddlbench.interconnect.nvbandwidth_json import is_nvbandwidth_json, parse_nvbandwidth
from ddlbench.interconnect.nvbandwidth_text import is_nvbandwidth_text, parse_nvbandwidth_text
from ddlbench.interconnect.osu import is_osu, parse_osu
from ddlbench.interconnect.p2p import is_p2p, parse_p2p
from ddlbench.interconnect.perftest import is_perftest, parse_perftest

Copies = dict[str, Any]
"""Copies between the devices of a node: devices, pairs as in links.json, perhaps remarks."""
Reading = NcclTest | Copies | MessageTests


class Format(NamedTuple):
    """What recognises a format, and what reads it.

    Args:
        is_of: whether a text is of the format.
        read: takes a text, its name for messages, and perhaps an operation.
    """

    is_of: Callable[[str], bool]
    read: Callable[[str, str, str | None], Reading]


def _without_operation(
    read: Callable[[str, str], Reading],
) -> Callable[[str, str, str | None], Reading]:
    """A reader of texts that name their operation themselves."""
    return lambda text, where, _operation: read(text, where)


FORMATS: Mapping[str, Format] = {
    "nccl-tests": Format(is_nccl_tests, parse_nccl_tests),
    "nccl-tests' JSON": Format(is_nccl_json, parse_nccl_json),
    "p2pBandwidthLatencyTest": Format(is_p2p, _without_operation(parse_p2p)),
    "nvbandwidth": Format(is_nvbandwidth_text, _without_operation(parse_nvbandwidth_text)),
    "nvbandwidth's JSON": Format(is_nvbandwidth_json, _without_operation(parse_nvbandwidth)),
    "OSU micro-benchmarks": Format(is_osu, _without_operation(parse_osu)),
    "perftest (ib_write_bw, ...)": Format(is_perftest, _without_operation(parse_perftest)),
    "iperf3's JSON": Format(is_iperf3, _without_operation(parse_iperf3)),
}


def format_of(text: str) -> Format | None:
    """The format of a text; None for links.json and what no link test printed."""
    if '"schema_version"' in text:
        return None
    return next((each for each in FORMATS.values() if each.is_of(text)), None)


def read_link_test(text: str, where: str, operation: str | None = None) -> Reading:
    """Read what a link test printed.

    Args:
        text: as captured.
        where: its name, for messages.
        operation: of nccl-tests, where the text is not to tell.

    Raises:
        ConfigError: it is of no known format, or damaged.
    """
    known = format_of(text)
    if known is None:
        raise ConfigError(
            f"{where} is no output of a known link test ({', '.join(FORMATS)}); capture all that "
            "one of them prints"
        )
    return known.read(text, where, operation)
