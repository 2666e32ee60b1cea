"""``ddlbench interconnect``: read link tests, show measured links."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.units import MB, US

if TYPE_CHECKING:
    from ddlbench.experiment.links import Links

__all__ = ["interconnect"]

_FILE = click.argument("file", type=click.Path(path_type=Path, allow_dash=True))


@click.group()
def interconnect() -> None:
    """Read the output of link tests, and show measured links."""


@interconnect.command("parse-p2p")
@_FILE
def parse_p2p_file(file: Path) -> None:
    """Print the matrices of p2pBandwidthLatencyTest's output as JSON (bytes per second, seconds).

    FILE is its stdout; - reads standard input.
    """
    from ddlbench.interconnect.p2p_text import parse_p2p  # noqa: PLC0415

    _print_parsed(file, parse_p2p)


@interconnect.command("parse-nvbandwidth")
@_FILE
def parse_nvbandwidth_file(file: Path) -> None:
    """Print the device-to-device matrices of `nvbandwidth -j` as JSON (bytes per second, seconds).

    FILE is its stdout; - reads standard input.
    """
    from ddlbench.interconnect.nvbandwidth_json import parse_nvbandwidth  # noqa: PLC0415

    _print_parsed(file, parse_nvbandwidth)


@interconnect.command()
@click.argument("links_json", type=click.Path(path_type=Path))
def show(links_json: Path) -> None:
    """Show the fits and the slow pairs of a links.json."""
    from ddlbench.experiment.links import read_links  # noqa: PLC0415

    links = read_links(links_json)
    console = Console()
    console.print(_fits(links))
    console.print(_pairs(links))
    for note in links.notes:
        console.print(f"note: {note}", highlight=False)


def _print_parsed(file: Path, parse: Callable[[str, str], dict[str, Any]]) -> None:
    from ddlbench.experiment.links import PairMatrix  # noqa: PLC0415
    from ddlbench.interconnect.slow_pairs import with_slow_pairs  # noqa: PLC0415

    parsed = parse(_text(file), str(file))
    parsed["pairs"] = [
        with_slow_pairs(PairMatrix.from_dict(pair)).to_dict() for pair in parsed["pairs"]
    ]
    click.echo(json.dumps(parsed, indent=1, allow_nan=False))


def _text(file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None


def _fits(links: Links) -> Table:
    table = Table(
        title=f"Fits of {links.site}, fabric {links.fabric}",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
    )
    for name in ("operation", "transport", "group"):
        table.add_column(name, no_wrap=True)
    for name in ("from KiB", "latency µs", "MB/s", "error", "worst"):
        table.add_column(name, justify="right")
    for sweep in links.sweeps:
        fit = sweep.fit
        for number, piece in enumerate(fit.pieces):
            head = (
                sweep.operation,
                sweep.transport,
                f"{sweep.nodes}x{sweep.devices_per_node}",
            )
            tail = (
                f"{fit.median_relative_residual:.1%}",
                f"{fit.largest_relative_residual:.1%}",
            )
            if not sweep.points:
                tail = ("given", "")
            beta = piece.beta_s_per_byte
            table.add_row(
                *(head if number == 0 else ("", "", "")),
                f"{piece.from_bytes / 1024:,.0f}",
                f"{US.of(piece.alpha_s):,.1f}",
                f"{1e-6 / beta:,.0f}" if beta > 0 else "-",
                *(tail if number == 0 else ("", "")),
            )
    return table


def _pairs(links: Links) -> Table:
    table = Table(
        title="Slow pairs (below 0.8 of their level's median)",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
    )
    for name in ("matrix", "from", "to"):
        table.add_column(name)
    for name in ("bandwidth (MB/s)", "of the median"):
        table.add_column(name, justify="right")
    for pair in links.pairs:
        words = (
            pair.scope,
            pair.method,
            pair.direction,
            pair.access,
            pair.operation,
        )
        for slow in pair.slow_pairs:
            i, j = slow.sender, slow.receiver
            table.add_row(
                " ".join(word for word in words if word),
                pair.endpoints[i],
                pair.endpoints[j],
                f"{MB.of(pair.bandwidth_bytes_per_s[i][j] or 0.0):,.1f}",
                f"{slow.bandwidth_ratio:.0%}",
            )
    if not table.row_count:
        table.add_row("none", "", "", "", "")
    return table
