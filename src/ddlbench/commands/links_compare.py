"""``ddlbench links compare``: whether measured links are normal for what they are."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from ddlbench.common.errors import ConfigError
from ddlbench.common.screen import duration_text, examples, paragraph, size_text, table
from ddlbench.common.statistics import GB
from ddlbench.experiment.links import Links, PairMatrix, read_links
from ddlbench.interconnect.nccl_tests import is_nccl_tests, parse_nccl_tests
from ddlbench.interconnect.nvbandwidth_json import parse_nvbandwidth
from ddlbench.interconnect.nvidia_programs import decoded
from ddlbench.interconnect.p2p import is_p2p, parse_p2p
from ddlbench.predict.collective_times import OPERATIONS, Library
from ddlbench.predict.hardware import DeviceSheet, Fabric, System
from ddlbench.predict.link_verdicts import Judged, Measured, judged_pairs, judged_sweep, sentence

_DEVICES_PER_NODE = 8
_GIVEN_RANKS = ("all_gather",)
"""Operations whose message in links.json is what one rank gives, not the whole buffer."""


@dataclass(frozen=True)
class _Read:
    """What a file holds.

    Args:
        sweeps: of collectives.
        pairs: rates of copies in bytes/s, by name.
        devices: of the node whose copies they are.
        remarks: of the reader.
    """

    sweeps: Sequence[Measured] = ()
    pairs: Sequence[tuple[str, float]] = ()
    devices: int = _DEVICES_PER_NODE
    remarks: Sequence[str] = ()


@click.command(
    "compare",
    short_help="Say whether measured links are normal.",
    epilog=examples(
        "ddlbench links compare all_reduce.txt --hardware h100-sxm --fabric efa-3200 --nodes 2"
    ),
)
@click.argument("sweep", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--hardware", required=True, help="Device: its name in config/hardware, or a file.")
@click.option("--fabric", help="Its name in config/fabrics, or a file; of several nodes.")
@click.option("--nodes", type=click.IntRange(1), help="Of the sweep; the file's if left out.")
@click.option("--devices-per-node", type=click.IntRange(1), help="The file's if left out, or 8.")
@click.option("--operation", type=click.Choice(OPERATIONS), help="Where the text does not tell.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def compare(
    *,
    sweep: Path,
    hardware: str,
    fabric: str | None,
    nodes: int | None,
    devices_per_node: int | None,
    operation: str | None,
    as_json: bool,
) -> None:
    """Say whether SWEEP is normal for a device, a fabric and a number of nodes.

    SWEEP is a links.json, the text of nccl-tests or of p2pBandwidthLatencyTest, or the JSON of
    `nvbandwidth -j`; - reads standard input. Expected times come from data sheets and published
    sweeps, with an interval.
    """
    device = DeviceSheet.load(hardware)
    described = Fabric.load(fabric) if fabric else None
    library = Library.load("nccl")
    read = _read(sweep, operation, nodes, devices_per_node)
    answers = []
    for sweep_read in read.sweeps:
        system = _system(device, described, sweep_read.nodes, sweep_read.devices_per_node)
        answers.append((sweep_read, system, judged_sweep(sweep_read, system, library)))
    if read.pairs:
        system = System(device, None, 1, devices_per_node or read.devices)
        pairs = judged_pairs(read.pairs, system, library)
        answers.append((Measured("copies", 1, system.devices_per_node, (), ()), system, pairs))
    if not answers:
        raise ConfigError(
            f"{sweep}: no sweep of NCCL with {nodes or 'any'} node(s) in it; measure one, or "
            "give the output of all_reduce_perf"
        )
    for remark in read.remarks:
        click.echo(f"{sweep}: {remark}", err=True)
    if as_json:
        click.echo(json.dumps(_values(answers, hardware, fabric), indent=1, allow_nan=False))
    else:
        click.echo("\n".join(_lines(answers, fabric or "")))


def _system(device: DeviceSheet, fabric: Fabric | None, nodes: int, devices: int) -> System:
    if nodes > 1 and fabric is None:
        raise ConfigError(
            f"the sweep is of {nodes} nodes; give --fabric, one of {', '.join(Fabric.names())}"
        )
    return System(device, fabric if nodes > 1 else None, nodes, devices)


def _read(
    path: Path, operation: str | None, nodes: int | None, devices_per_node: int | None
) -> _Read:
    text = _text(path)
    if is_nccl_tests(text):
        test = parse_nccl_tests(text, str(path), operation)
        count = nodes or len(test.hosts)
        if not count:
            raise ConfigError(f"{path}: it does not list its nodes; give --nodes")
        devices = devices_per_node or (test.ranks or count * _DEVICES_PER_NODE) // count
        if test.ranks and test.ranks != count * devices:
            raise ConfigError(
                f"{path}: {test.ranks} ranks are not {count} nodes of {devices} devices; give "
                "--nodes and --devices-per-node as they were"
            )
        if count * devices < 2:
            raise ConfigError(f"{path}: one rank sends nothing; give a test of two or more")
        swept = Measured(
            test.operation,
            count,
            devices,
            [point.payload_bytes for point in test.points],
            [point.time_s for point in test.points],
            "nccl-tests",
        )
        return _Read([swept], remarks=test.remarks)
    of_pairs = parse_p2p if is_p2p(text) else parse_nvbandwidth if '"nvbandwidth"' in text else None
    if of_pairs is not None:
        parsed = of_pairs(text, str(path))
        matrices = [PairMatrix.from_dict(pair) for pair in parsed["pairs"]]
        return _Read((), list(_rates(matrices)), len(parsed["devices"]), parsed.get("remarks", ()))
    if str(path) == "-":
        raise ConfigError(
            "-: neither the text of nccl-tests or p2pBandwidthLatencyTest nor nvbandwidth's JSON"
        )
    links = read_links(path)
    of_nodes = [len(pair.endpoints) for pair in links.pairs if pair.scope == "node"]
    devices = max(of_nodes, default=_DEVICES_PER_NODE)
    return _Read(
        list(_sweeps_of(links, nodes, devices_per_node)), list(_rates(links.pairs)), devices
    )


def _text(path: Path) -> str:
    if str(path) == "-":
        return decoded(sys.stdin.buffer.read())
    try:
        return decoded(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _sweeps_of(links: Links, nodes: int | None, devices: int | None) -> Iterator[Measured]:
    """NCCL's sweeps of a links file, of one geometry if it is given."""
    for swept in links.sweeps:
        fits = nodes in (None, swept.nodes) and devices in (None, swept.devices_per_node)
        if swept.transport == "nccl" and swept.operation in OPERATIONS and swept.points and fits:
            factor = swept.ranks if swept.operation in _GIVEN_RANKS else 1
            points = [point for point in swept.points if point.message_bytes > 0]
            yield Measured(
                swept.operation,
                swept.nodes,
                swept.devices_per_node,
                [factor * point.message_bytes for point in points],
                [point.time_s for point in points],
                swept.transport,
            )


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


def _values(
    answers: Sequence[tuple[Measured, System, list[Judged]]], hardware: str, fabric: str | None
) -> dict[str, Any]:
    sweeps = [
        {
            "operation": measured.operation,
            "nodes": system.nodes,
            "devices_per_node": system.devices_per_node,
            "points": [point.to_dict() for point in judged],
            "sentence": sentence(judged, system, fabric or ""),
        }
        for measured, system, judged in answers
    ]
    return {"hardware": hardware, "fabric": fabric, "sweeps": sweeps}


def _lines(answers: Sequence[tuple[Measured, System, list[Judged]]], fabric: str) -> Iterator[str]:
    for place, (measured, system, judged) in enumerate(answers):
        if place:
            yield ""
        text = _rate_text if judged[0].payload_bytes is None else duration_text
        rows = [
            (
                point.what if point.payload_bytes is None else size_text(point.payload_bytes),
                text(point.measured),
                text(point.expected),
                f"{text(point.low)} to {text(point.high)}",
                point.verdict,
            )
            for point in judged
        ]
        yield from table(
            f"{measured.operation} | > measured | > expected | > interval | verdict", rows
        )
        yield from paragraph(sentence(judged, system, fabric))


def _rate_text(bytes_per_s: float) -> str:
    return GB.text(bytes_per_s, ",.0f") + "/s"
