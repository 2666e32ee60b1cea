"""``ddlbench links``: links that were measured, that a text describes, or that are emulated."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from ddlbench.commands.links_compare import compare
from ddlbench.common.errors import ConfigError
from ddlbench.common.screen import Number, duration_text, examples, paragraph, table
from ddlbench.common.statistics import MB, MBIT_PER_S, MS
from ddlbench.emulation import EmulatedNodes, EmulationFailed
from ddlbench.experiment.fabric import Backend, LinkCondition
from ddlbench.experiment.links import Links, PairMatrix, read_links
from ddlbench.interconnect.nvbandwidth_json import parse_nvbandwidth
from ddlbench.interconnect.nvidia_programs import decoded
from ddlbench.interconnect.p2p import parse_p2p
from ddlbench.interconnect.pair_matrix import with_slow_pairs

_FILE = click.argument("file", type=click.Path(path_type=Path, allow_dash=True))


@click.group()
def links() -> None:
    """Show, judge and emulate the links between devices."""


links.add_command(compare)


@links.command(
    "parse-p2p",
    short_help="Print p2pBandwidthLatencyTest's output as JSON.",
    epilog=examples("ddlbench links parse-p2p p2p.txt"),
)
@_FILE
def parse_p2p_file(file: Path) -> None:
    """Print the matrices of p2pBandwidthLatencyTest's output as JSON (bytes per second, seconds).

    FILE is its stdout, as captured; - reads standard input. Lines may begin with a rank, a host or
    the time. Row = sender, column = receiver.
    """
    _print_parsed(file, parse_p2p)


@links.command(
    "parse-nvbandwidth",
    short_help="Print `nvbandwidth -j` output as JSON.",
    epilog=examples("ddlbench links parse-nvbandwidth nvbandwidth.json"),
)
@_FILE
def parse_nvbandwidth_file(file: Path) -> None:
    """Print the device-to-device matrices of `nvbandwidth -j` as JSON (bytes per second, seconds).

    FILE is its stdout, as captured; - reads standard input. Lines may begin with a rank, a host or
    the time. Row = sender, column = receiver.
    """
    _print_parsed(file, parse_nvbandwidth)


@links.command(epilog=examples("ddlbench links show results/mycluster/links/default/links.json"))
@click.argument("links_json", type=click.Path(path_type=Path))
def show(links_json: Path) -> None:
    """Show the fits and the slow pairs of a links.json."""
    measured = read_links(links_json)
    lines = [*_fit_lines(measured), *_pair_lines(measured)]
    for note in measured.notes:
        lines += paragraph(f"note: {note}", hanging="  ")
    click.echo("\n".join(lines))


def _print_parsed(file: Path, parse: Callable[[str, str], dict[str, Any]]) -> None:
    parsed = parse(_text(file), str(file))
    parsed["pairs"] = [
        with_slow_pairs(PairMatrix.from_dict(pair)).to_dict() for pair in parsed["pairs"]
    ]
    for remark in parsed.get("remarks", ()):
        click.echo(f"{file}: {remark}", err=True)
    click.echo(json.dumps(parsed, indent=1, allow_nan=False))


def _text(file: Path) -> str:
    if str(file) == "-":
        return decoded(sys.stdin.buffer.read())
    try:
        return decoded(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None


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


@links.command(
    short_help="Emulate links of a condition, and measure them.",
    epilog=examples("ddlbench links probe --latency-ms 10 --bandwidth-mbit 500 --loss-percent 1"),
)
@click.option("--latency-ms", type=Number(), help="Delay from node to node, one way.")
@click.option("--bandwidth-mbit", type=Number(), help="Rate of each node's link, each direction.")
@click.option("--loss-percent", type=Number(), default=0.0, show_default=True, help="Lost packets.")
@click.option("--mtu", type=int, default=LinkCondition.mtu, show_default=True, help="In bytes.")
@click.option(
    "--congestion-control",
    default=LinkCondition.congestion_control,
    show_default=True,
    help="Of TCP.",
)
@click.option("--compare", multiple=True, help="Show TCP's goodput with this one too; repeatable.")
@click.option("--backend", type=click.Choice(get_args(Backend)), default="auto", show_default=True)
@click.option("--nodes", type=click.IntRange(1), default=2, show_default=True, help="How many.")
@click.option("--inside-latency-ms", type=Number(), help="Delay inside a node, device to device.")
@click.option("--inside-bandwidth-mbit", type=Number(), help="Rate of each device's link inside.")
@click.option(
    "--devices",
    type=click.IntRange(2),
    default=2,
    show_default=True,
    help="Of each node that has links inside.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
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
