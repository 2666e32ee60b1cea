"""What a file of measured links holds: sweeps of collectives, and rates of copies in a node.

A file is a links.json, or output of a link test (:mod:`ddlbench.interconnect.link_tests`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ddlbench.common.captured_text import decoded
from ddlbench.common.document import refuse_compressed
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.experiment.links import Links, PairMatrix, read_links
from ddlbench.interconnect.link_tests import format_of, read_link_test
from ddlbench.interconnect.message_tests import MessageTests
from ddlbench.interconnect.nccl_tests import NcclTest
from ddlbench.predict.collective_times import OPERATIONS
from ddlbench.predict.link_verdicts import Measured

_DEVICES_PER_NODE = 8
_GIVEN_RANKS = ("all_gather",)
"""Operations whose message in links.json is what one rank gives, not the whole buffer."""


def text_of(path: Path) -> str:
    """The text of a file, or of standard input for ``-``.

    Raises:
        ConfigError: it cannot be read, or is compressed.
    """
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    refuse_compressed(content, path)
    return decoded(content)


@dataclass(frozen=True)
class MeasuredLinks:
    """What a file holds.

    Args:
        sweeps: of collectives.
        pairs: rates of copies in bytes/s, by name.
        devices: of the node whose copies they are.
        names: of the devices, each once, if the file has them.
        remarks: of the reader.
    """

    sweeps: Sequence[Measured] = ()
    pairs: Sequence[tuple[str, float]] = ()
    devices: int = _DEVICES_PER_NODE
    names: Sequence[str] = ()
    remarks: Sequence[str] = ()


def is_links_file(text: str, path: Path) -> bool:
    """Whether a text is to be read as a links.json."""
    return format_of(text) is None and str(path) != "-" and text.lstrip().startswith("{")


def measured_links(
    text: str,
    path: Path,
    operation: str | None = None,
    nodes: int | None = None,
    devices_per_node: int | None = None,
) -> MeasuredLinks:
    """Read a file of measured links.

    Args:
        text: of the file.
        path: its name, or ``-``.
        operation: where the text does not tell.
        nodes: where the text does not tell; of a links.json, only such sweeps.
        devices_per_node: the same.

    Raises:
        ConfigError: it is of no known format, or damaged, or denies what is given.
    """
    known = is_links_file(text, path)
    reading = read_links(path) if known else read_link_test(text, str(path), operation)
    if isinstance(reading, NcclTest):
        return _of_nccl_tests(reading, path, nodes, devices_per_node)
    if isinstance(reading, dict):
        matrices = [PairMatrix.from_dict(pair) for pair in reading["pairs"]]
        devices = len(reading["devices"])
        _check_one_node(path, devices, nodes, devices_per_node)
        names = tuple(dict.fromkeys(reading["devices"]))
        return MeasuredLinks((), list(_rates(matrices)), devices, names, reading.get("remarks", ()))
    if isinstance(reading, MessageTests):
        return _of_messages(reading, path, nodes, devices_per_node)
    of_nodes = [len(pair.endpoints) for pair in reading.pairs if pair.scope == "node"]
    return MeasuredLinks(
        list(_sweeps_of(reading, nodes, devices_per_node)),
        list(_rates(reading.pairs)),
        max(of_nodes, default=_DEVICES_PER_NODE),
    )


def _of_nccl_tests(
    test: NcclTest, path: Path, nodes: int | None, devices_per_node: int | None
) -> MeasuredLinks:
    count = nodes or len(test.hosts)
    if not count:
        raise ConfigError(f"{path}: it does not list its nodes; give --nodes")
    if test.hosts and count != len(test.hosts):
        raise ConfigError(
            f"{path}: its ranks are on {counted(len(test.hosts), 'node')} "
            f"({', '.join(test.hosts[:3])}), not on {count}; leave --nodes out"
        )
    devices = devices_per_node or (test.ranks or count * _DEVICES_PER_NODE) // count
    if test.ranks and test.ranks != count * devices:
        raise ConfigError(
            f"{path}: {test.ranks} ranks are not {count} nodes of {devices} devices; give "
            "--nodes and --devices-per-node as they were"
        )
    if count * devices < 2:
        raise ConfigError(f"{path}: one rank sends nothing; give a test of two or more")
    test.check_ranks(count * devices, str(path))
    swept = Measured(
        test.operation,
        count,
        devices,
        [point.payload_bytes for point in test.points],
        [point.time_s for point in test.points],
        "nccl-tests",
    )
    return MeasuredLinks([swept], names=test.devices, remarks=test.remarks)


def _of_messages(
    reading: MessageTests, path: Path, nodes: int | None, devices_per_node: int | None
) -> MeasuredLinks:
    """The collectives of NCCL in tests of messages."""
    tests = [test for test in reading.tests if test.library == "nccl" and test.operation != "p2p"]
    if not tests:
        raise ConfigError(
            f"{path} has {reading.tests[0].title}, and expected times are those of NCCL's "
            "collectives; give nccl-tests' output, or that of osu_xccl_allreduce (`ddlbench links "
            "read` reads this file)"
        )
    if nodes is None:
        raise ConfigError(f"{path}: it does not list its nodes; give --nodes")
    devices = devices_per_node or _DEVICES_PER_NODE
    if nodes * devices < 2:
        raise ConfigError(f"{path}: one rank sends nothing; give a test of two or more")
    return MeasuredLinks(
        [
            _measured(
                test.operation,
                nodes,
                devices,
                [(time.message_bytes, time.time_s) for time in test.times],
                test.title,
            )
            for test in tests
        ],
        remarks=reading.remarks,
    )


def _check_one_node(path: Path, devices: int, nodes: int | None, per_node: int | None) -> None:
    """Refuse options that a file of copies within a node contradicts."""
    if nodes not in (None, 1):
        raise ConfigError(f"{path} holds copies within one node; leave --nodes out")
    if per_node not in (None, devices):
        raise ConfigError(f"{path} is of {devices} devices; leave --devices-per-node out")


def _sweeps_of(links: Links, nodes: int | None, devices: int | None) -> Iterator[Measured]:
    """NCCL's sweeps of a links file, of one geometry if it is given."""
    for swept in links.sweeps:
        fits = nodes in (None, swept.nodes) and devices in (None, swept.devices_per_node)
        if swept.transport == "nccl" and swept.operation in OPERATIONS and swept.points and fits:
            points = [(point.message_bytes, point.time_s) for point in swept.points]
            yield _measured(
                swept.operation, swept.nodes, swept.devices_per_node, points, swept.transport
            )


def _measured(
    operation: str, nodes: int, devices: int, points: Iterable[tuple[int, float]], name: str
) -> Measured:
    """A sweep without empty messages; its sizes are what one rank gives, as in links.json."""
    factor = nodes * devices if operation in _GIVEN_RANKS else 1
    sent = [(factor * size, time_s) for size, time_s in points if size > 0]
    sizes, times_s = [size for size, _ in sent], [time_s for _, time_s in sent]
    return Measured(operation, nodes, devices, sizes, times_s, name)


def _rates(matrices: Sequence[PairMatrix]) -> Iterator[tuple[str, float]]:
    """The median and the slowest pair of each matrix of direct copies in one direction."""
    for matrix in matrices:
        if matrix.method not in ("nvbandwidth", "p2pBandwidthLatencyTest"):
            continue
        if matrix.direction != "unidirectional" or matrix.access == "staged":
            continue
        rates = {
            f"{row} to {column}": rate
            for row, rates in enumerate(matrix.bandwidth_bytes_per_s)
            for column, rate in enumerate(rates)
            if row != column and rate
        }
        if rates:
            slowest = min(rates, key=lambda pair: rates[pair])
            operation = matrix.operation or "copy"
            yield f"{operation}, median", median(rates.values())
            yield f"{operation}, {slowest} (slowest)", rates[slowest]
