"""``ddlbench links``: links that were measured, that a text describes, or that are emulated."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click

from ddlbench.commands.measured_links import MeasuredLinks, measured_links, text_of
from ddlbench.commands.options import JSON
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import GB, MB, MBIT_PER_S, MS, duration_text, size_text
from ddlbench.common.screen import Number, WholeNumber, examples, paragraph, table
from ddlbench.emulation import EmulatedNodes, EmulationFailed
from ddlbench.experiment.config import making_command
from ddlbench.experiment.fabric import Backend, LinkCondition
from ddlbench.experiment.links import Links, PairMatrix, read_links
from ddlbench.experiment.paths import links_file
from ddlbench.interconnect.link_tests import Reading, read_link_test
from ddlbench.interconnect.message_tests import MessageTests
from ddlbench.interconnect.pair_matrix import with_slow_pairs
from ddlbench.predict.collective_times import COLLECTIVES, OPERATIONS, Library
from ddlbench.predict.hardware import DeviceSheet, Fabric, System
from ddlbench.predict.link_verdicts import Judged, Measured, judged_pairs, judged_sweep, sentence


@click.group()
def links() -> None:
    """Show, judge and emulate the links between devices."""


@links.command(
    short_help="Print what a test of links printed, as JSON.",
    epilog=examples(
        "ddlbench links read p2p.txt",
        "ddlbench links read nvbandwidth.json",
        "ddlbench links read osu_latency.txt osu_bw.txt",
    ),
)
@click.argument("files", type=click.Path(path_type=Path, allow_dash=True), nargs=-1, required=True)
def read(files: tuple[Path, ...]) -> None:
    """Print as JSON what a test of links printed (bytes per second, seconds).

    FILES is output as captured, whose content tells the program: p2pBandwidthLatencyTest,
    nvbandwidth (with -j or without), nccl-tests (text, or the file of -J), the OSU
    micro-benchmarks, perftest (ib_write_bw, ...), or `iperf3 --json`. - reads standard input. Lines
    may begin with a rank, a host or the time. Of a matrix: row = sender, column = receiver. Several
    files are tests of messages between one pair of ranks: together they give the latency and the
    bandwidth of a link, as the site file takes it.
    """
    readings = [(file, _reading(file)) for file in files]
    of_messages = [reading for _, reading in readings if isinstance(reading, MessageTests)]
    others = [file for file, reading in readings if not isinstance(reading, MessageTests)]
    if others and len(files) > 1:
        raise ConfigError(
            f"{others[0]} is no test of messages between two ranks; give it alone, as only such "
            "tests are read together"
        )
    if of_messages:
        values = MessageTests.joined(of_messages).to_dict()
    elif isinstance(reading := readings[0][1], dict):
        pairs = [with_slow_pairs(PairMatrix.from_dict(pair)) for pair in reading["pairs"]]
        values = {**reading, "pairs": [pair.to_dict() for pair in pairs]}
    else:
        values = asdict(reading)
    for remark in values.get("remarks", ()):
        click.echo(f"{', '.join(map(str, files))}: {remark}", err=True)
    click.echo(json.dumps(values, indent=1, allow_nan=False))


def _reading(file: Path) -> Reading:
    text = text_of(file)
    if '"schema_version"' in text:
        raise ConfigError(
            f"{file} is a file of ddlbench, not what a test printed; `ddlbench links show` reads "
            "a links.json"
        )
    return read_link_test(text, str(file))


@links.command(epilog=examples("ddlbench links show results/mycluster/links/default/links.json"))
@click.argument("links_json", type=click.Path(path_type=Path))
def show(links_json: Path) -> None:
    """Show the fits and the slow pairs of a links.json."""
    site, _, fabric, _ = ("", "", "", "", *links_json.parts)[-4:]
    if links_json == links_file(site, fabric) and not links_json.exists():
        command = making_command(site, [links_file(site, fabric)])
        raise ConfigError(f"{links_json}: no such links file; make it with: {command}")
    measured = read_links(links_json)
    lines = [*_fit_lines(measured), *_pair_lines(measured)]
    for note in measured.notes:
        lines += paragraph(f"note: {note}", hanging="  ")
    click.echo("\n".join(lines))


_POOR_FIT = 0.5


def _fit_lines(links: Links) -> list[str]:
    headings = (
        "operation | transport | group /1 | > from KiB | > latency | > MB/s | > error | > worst"
    )
    rows, poor = [], []
    for sweep in links.sweeps:
        fit = sweep.fit
        head = (sweep.operation, sweep.transport, f"{sweep.nodes}x{sweep.devices_per_node}")
        tail = (f"{fit.median_relative_residual:.1%}", f"{fit.largest_relative_residual:.1%}")
        if not sweep.points:
            tail = ("given", "")
        elif fit.largest_relative_residual > _POOR_FIT:
            poor.append(f"{sweep.operation} {sweep.transport} ({tail[1]})")
        for number, piece in enumerate(fit.pieces):
            beta = piece.beta_s_per_byte
            rows.append(
                (
                    *(head if number == 0 else ("", "", "")),
                    f"{piece.from_bytes / 1024:,.0f}",
                    duration_text(piece.alpha_s) if piece.alpha_s else "none",
                    f"{1e-6 / beta:,.0f}" if beta > 0 else "no limit",
                    *(tail if number == 0 else ("", "")),
                )
            )
    lines = [f"Fits of {links.site}, fabric {links.fabric}", *table(headings, rows)]
    if poor:
        lines += paragraph(
            f"A poor fit, over {_POOR_FIT:.0%} off at some size: {', '.join(poor)}.", hanging="  "
        )
    hidden = [
        f"{each.hidden_share:.0%} on {each.nodes}x{each.devices_per_node}"
        for each in links.overlaps
    ]
    if hidden:
        lines += paragraph(
            f"Computation hides of an all-reduce: {', '.join(hidden)}.", hanging="  "
        )
    idle = [
        f"{each.beside_s / each.alone_s - 1:+.0%} on {each.nodes}x{each.devices_per_node}"
        for each in links.backgrounds
    ]
    if idle:
        lines += paragraph(f"Computation beside idle Horovod: {', '.join(idle)}.", hanging="  ")
    for rate in links.node_rates:
        lines += paragraph(rate.in_words(), hanging="  ")
    return lines


def _pair_lines(links: Links) -> list[str]:
    headings = "matrix | from | to | > MB/s | > of the median"
    rows = []
    for pair in links.pairs:
        words = (pair.scope, pair.method, pair.direction, pair.access, pair.operation)
        for slow in pair.slow_pairs:
            i, j = slow.sender, slow.receiver
            rows.append(
                (
                    " ".join(word for word in words if word),
                    pair.endpoints[i],
                    pair.endpoints[j],
                    f"{MB.of(pair.bandwidth_bytes_per_s[i][j] or 0.0):,.0f}",
                    f"{slow.bandwidth_ratio:.0%}",
                )
            )
    title = "Slow pairs (below 0.8 of their level's median)"
    return [title, *table(headings, rows)] if rows else [f"{title}: none"]


_Answer = tuple[Measured, System, list[Judged]]


@links.command(
    "compare",
    short_help="Say whether measured links are normal.",
    epilog=examples(
        "ddlbench links compare all_reduce.txt --hardware h100-sxm --fabric efa-3200 --nodes 2"
    ),
)
@click.argument("sweep", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--hardware", required=True, help="Device: its name in config/hardware, or a file.")
@click.option("--fabric", help="Its name in config/fabrics, or a file; of several nodes.")
@click.option("--nodes", type=WholeNumber(1), help="Of the sweep; the file's if left out.")
@click.option("--devices-per-node", type=WholeNumber(1), help="The file's if left out, or 8.")
@click.option("--operation", type=click.Choice(OPERATIONS), help="Where the text does not tell.")
@click.option(
    "--collectives",
    default=COLLECTIVES,
    show_default=True,
    help="Library of config/collectives, or a file of `ddlbench calibrate`.",
)
@JSON
def compare_command(
    *,
    sweep: Path,
    hardware: str,
    fabric: str | None,
    collectives: str,
    nodes: int | None,
    devices_per_node: int | None,
    operation: str | None,
    as_json: bool,
) -> None:
    """Say whether SWEEP is normal for a device, a fabric and a number of nodes.

    SWEEP is a links.json, or output of nccl-tests, p2pBandwidthLatencyTest, nvbandwidth (text or
    JSON) or osu_xccl_allreduce; - reads standard input. Expected times come from data sheets and
    published sweeps, with an interval.
    """
    device = DeviceSheet.named(hardware)
    library = Library.load(collectives)
    described = library.with_latency(Fabric.load(fabric)) if fabric else None
    read = measured_links(text_of(sweep), sweep, operation, nodes, devices_per_node)
    answers: list[_Answer] = []
    for sweep_read in (each for each in read.sweeps if each.time_s):
        system = _system(device, described, sweep_read.nodes, sweep_read.devices_per_node)
        answers.append((sweep_read, system, judged_sweep(sweep_read, system, library)))
    if read.pairs:
        system = System(device, None, 1, read.devices)
        pairs = judged_pairs(read.pairs, system, library)
        answers.append((Measured("copies", 1, system.devices_per_node, (), ()), system, pairs))
    if not answers and read.devices == 1:
        raise ConfigError(f"{sweep} is of one GPU, which has no link; give a test of two or more")
    if not answers:
        raise ConfigError(f"{sweep}: {_nothing_to_judge(read, nodes, devices_per_node)}")
    most_nodes = max(system.nodes for _, system, _ in answers)
    of_library = library.remarks(device, Path(fabric or "").stem, most_nodes)
    for remark in (*read.remarks, *_of_other_device(read.names, device), *of_library):
        click.echo(f"{sweep}: {remark}", err=True)
    if as_json:
        click.echo(
            json.dumps(_values(answers, library, hardware, fabric), indent=1, allow_nan=False)
        )
    else:
        click.echo("\n".join(_verdict_lines(answers, library, fabric or "")))


def _nothing_to_judge(read: MeasuredLinks, nodes: int | None, devices: int | None) -> str:
    if read.names:
        return (
            "no direct copy between two devices in it, as they have no peer access; copies through "
            "the host have no data sheet to compare them with"
        )
    which = (
        f" of {nodes or 'any'} nodes with {devices or 'any'} devices" if nodes or devices else ""
    )
    return f"no sweep of NCCL{which} in it; measure one, or give the output of all_reduce_perf"


def _of_other_device(names: Sequence[str], device: DeviceSheet) -> Iterator[str]:
    """A remark if the file names devices of another shipped data sheet."""
    listed = [DeviceSheet.called(name) for name in names]
    if listed and None not in listed and device not in listed:
        yield f"its devices are {', '.join(names)}, and --hardware is {device.description}"


def _system(device: DeviceSheet, fabric: Fabric | None, nodes: int, devices: int) -> System:
    if nodes > 1 and fabric is None:
        raise ConfigError(
            f"the sweep is of {nodes} nodes; give --fabric, one of {', '.join(Fabric.names())}"
        )
    return System(device, fabric if nodes > 1 else None, nodes, devices)


def _values(
    answers: Sequence[_Answer], library: Library, hardware: str, fabric: str | None
) -> dict[str, Any]:
    sweeps = [
        {
            "operation": measured.operation,
            "nodes": system.nodes,
            "devices_per_node": system.devices_per_node,
            "points": [vars(point) for point in judged],
            "sentence": sentence(judged, system, library, fabric or ""),
        }
        for measured, system, judged in answers
    ]
    return {"hardware": hardware, "fabric": fabric, "sweeps": sweeps}


def _verdict_lines(answers: Sequence[_Answer], library: Library, fabric: str) -> Iterator[str]:
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
        yield from paragraph(sentence(judged, system, library, fabric))


def _rate_text(bytes_per_s: float) -> str:
    return GB.text(bytes_per_s, ",.0f") + "/s"


@links.command(
    short_help="Emulate links of a condition, and measure them.",
    epilog=examples("ddlbench links probe --latency-ms 10 --bandwidth-mbit 500 --loss-percent 1"),
)
@click.option("--latency-ms", type=Number(), help="Delay from node to node, one way.")
@click.option("--bandwidth-mbit", type=Number(), help="Rate of each node's link, each direction.")
@click.option("--loss-percent", type=Number(), default=0.0, show_default=True, help="Lost packets.")
@click.option(
    "--mtu", type=WholeNumber(), default=LinkCondition.mtu, show_default=True, help="In bytes."
)
@click.option(
    "--congestion-control",
    default=LinkCondition.congestion_control,
    show_default=True,
    help="Of TCP.",
)
@click.option("--compare", multiple=True, help="Show TCP's goodput with this one too; repeatable.")
@click.option("--backend", type=click.Choice(get_args(Backend)), default="auto", show_default=True)
@click.option("--nodes", type=WholeNumber(1), default=2, show_default=True, help="How many.")
@click.option("--inside-latency-ms", type=Number(), help="Delay inside a node, device to device.")
@click.option("--inside-bandwidth-mbit", type=Number(), help="Rate of each device's link inside.")
@click.option(
    "--devices",
    type=WholeNumber(2),
    default=2,
    show_default=True,
    help="Of each node that has links inside.",
)
@JSON
def probe(
    *,
    bandwidth_mbit: float | None,
    inside_latency_ms: float | None,
    inside_bandwidth_mbit: float | None,
    nodes: int,
    devices: int,
    compare: tuple[str, ...],
    as_json: bool,
    **values: Any,
) -> None:
    """Emulate links of a condition between nodes on this machine, and measure them.

    Says whether the links are as the options describe them.

    Exit status 1 where delay or rate is off by more than 10 %, or the loss is another.
    """
    of_links = {"latency_ms": values.pop("latency_ms"), "bandwidth_mbit_per_s": bandwidth_mbit}
    inside = {"latency_ms": inside_latency_ms, "bandwidth_mbit_per_s": inside_bandwidth_mbit}
    given = {**values, **_known(of_links), **({"inside": _known(inside)} if _known(inside) else {})}
    condition = LinkCondition.from_mapping(given, "links probe")
    try:
        with EmulatedNodes(condition, nodes, devices) as emulated:
            report = emulated.probe(compare)
    except EmulationFailed as error:
        raise ConfigError(f"links probe: {error}") from error
    if as_json:
        click.echo(json.dumps(report, indent=1, allow_nan=False))
    else:
        _show_probe(report)
    if not report["ok"]:
        sys.exit(1)


def _known(values: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _show_probe(report: dict[str, Any]) -> None:
    setting, measured = report["setting"], report["measured"]
    rows = _link_rows(setting, measured) if setting["nodes"] > 1 else []
    if "inside" in measured:
        rows += _link_rows(setting["inside"], measured["inside"], " inside a node")
    if (loss := measured["loss"]) is not None:
        interval = f"{loss['interval']['low']:.3%} to {loss['interval']['high']:.3%}"
        share = f"{loss['share']:.3%} ({interval})"
        rows.append((f"loss ({loss['sent']} packets)", f"{setting['loss']:.3%}", share))
    tests = measured["tcp"]
    rows += [
        (f"TCP, {tcp['congestion_control']}", "", _mbit(tcp["goodput_bits_per_s"])) for tcp in tests
    ]
    lines = [*table("link | > set | > measured", rows), f"made by {measured['links']['backend']}"]
    lines += [f"no goodput of TCP: {tcp['failure']}" for tcp in tests if tcp["failure"]]
    click.echo("\n".join([*lines, *(f"missed: {sentence}" for sentence in report["misses"])]))


def _link_rows(
    setting: dict[str, Any], measured: dict[str, Any], where: str = ""
) -> list[tuple[str, str, str]]:
    """Rows of one kind of links."""
    delay_s, rate = measured["one_way_delay_s"], measured["rate_bits_per_s"]
    round_trip_s = None if delay_s is None else 2 * delay_s
    both_ways = _ms(2 * setting["latency_s"])
    bandwidth = _mbit(setting["bandwidth_bits_per_s"])
    return [
        (f"one-way delay{where}", _ms(setting["latency_s"]), _ms(delay_s)),
        (f"round trip{where or ' (ping)'}", both_ways, _ms(round_trip_s)),
        (f"rate{where or ' (UDP)'}", bandwidth, _mbit(rate)),
    ]


def _ms(seconds: float | None) -> str:
    return MS.text(seconds, ".3f")


def _mbit(bits_per_s: float | None) -> str:
    return MBIT_PER_S.text(bits_per_s, ".1f")
