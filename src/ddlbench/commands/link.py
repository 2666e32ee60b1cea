"""``ddlbench link``: emulated links, made and measured."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.fabric import BACKENDS, LinkCondition
from ddlbench.experiment.units import MBIT_PER_S, MS

__all__ = ["link"]


@click.group()
def link() -> None:
    """Emulate slow links between nodes on this machine."""


@link.command()
@click.option("--latency-ms", type=float, required=True, help="Delay from node to node, one way.")
@click.option("--bandwidth-mbit", type=float, help="Rate of each node's link, each direction.")
@click.option("--loss-percent", type=float, default=0.0, show_default=True, help="Lost packets.")
@click.option("--mtu", type=int, default=LinkCondition.mtu, show_default=True, help="In bytes.")
@click.option(
    "--congestion-control",
    default=LinkCondition.congestion_control,
    show_default=True,
    help="Of TCP.",
)
@click.option("--compare", multiple=True, help="Show TCP's goodput with this one too; repeatable.")
@click.option("--backend", type=click.Choice(BACKENDS), default="auto", show_default=True)
@click.option("--nodes", type=click.IntRange(2), default=2, show_default=True, help="How many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def probe(
    bandwidth_mbit: float | None,
    nodes: int,
    compare: tuple[str, ...],
    as_json: bool,
    **values: Any,
) -> None:
    """Make links of a condition, measure them, and say whether they are what was asked for.

    Exit status 1 where delay or rate is off by more than 10 %, or the loss is another.
    """
    from ddlbench.interconnect.emulation import EmulatedNodes, EmulationFailed  # noqa: PLC0415

    given = {"bandwidth_mbit_per_s": bandwidth_mbit, **values}
    condition = LinkCondition.from_mapping(given, "link probe")
    try:
        with EmulatedNodes(condition, nodes) as emulated:
            found = emulated.probe(compare)
    except EmulationFailed as error:
        raise ConfigError(f"link probe: {error}") from error
    if as_json:
        click.echo(json.dumps(found, indent=1, allow_nan=False))
    else:
        _show(found)
    if not found["ok"]:
        sys.exit(1)


def _show(found: dict[str, Any]) -> None:
    setting, measured = found["setting"], found["measured"]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("link")
    for name in ("set", "measured"):
        table.add_column(name, justify="right")
    delay_s, loss = measured["one_way_delay_s"], measured["loss"]
    table.add_row("one-way delay", _ms(setting["latency_s"]), _ms(delay_s))
    round_trip_s = None if delay_s is None else 2 * delay_s
    table.add_row("round trip (ping)", _ms(2 * setting["latency_s"]), _ms(round_trip_s))
    rate = measured["rate_bits_per_s"]
    table.add_row("rate (UDP)", _mbit(setting["bandwidth_bits_per_s"]), _mbit(rate))
    table.add_row(
        f"loss ({loss['sent']} packets)",
        f"{setting['loss']:.3%}",
        f"{loss['share']:.3%} ({loss['interval']['low']:.3%} to {loss['interval']['high']:.3%})",
    )
    failures: list[str] = []
    for tcp in measured["tcp"]:
        table.add_row(f"TCP, {tcp['congestion_control']}", "", _mbit(tcp["goodput_bits_per_s"]))
        failures += [tcp["failure"]] if tcp["failure"] else []
    console = Console()
    console.print(table)
    console.print(f"made by {measured['links']['backend']}", highlight=False)
    for sentence in failures:
        console.print(f"no goodput of TCP: {sentence}", highlight=False, soft_wrap=True)
    for sentence in found["misses"]:
        console.print(f"missed: {sentence}", highlight=False, soft_wrap=True)


def _ms(seconds: float | None) -> str:
    return MS.text(seconds, ".3f")


def _mbit(bits_per_s: float | None) -> str:
    return MBIT_PER_S.text(bits_per_s, ".1f")
