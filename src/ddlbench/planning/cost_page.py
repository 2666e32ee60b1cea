"""A cost as a terminal shows it."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddlbench.planning.cost import Cost

__all__ = ["render"]


def render(cost: Cost) -> RenderableType:
    """Lay a cost out as a table, with the reasons and warnings below it."""
    table = Table(title=f"What it costs on {cost.site}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for name, value in _lines(cost):
        table.add_row(name, Text(value))
    parts: list[RenderableType] = [table]
    if cost.unsupported_reasons:
        parts.append(Text("Unsupported (no job is submitted):", style="bold"))
        parts += [Text(f"  {count} x {why}") for why, count in cost.unsupported_reasons.items()]
    parts += [Text(f"Warning: {warning}", style="yellow") for warning in cost.warnings]
    return Group(*parts)


def _lines(cost: Cost) -> list[tuple[str, str]]:
    jobs = f"{cost.slurm_jobs:,}" if cost.slurm_jobs else "none: cells run on this machine"
    largest = f"{cost.largest_nodes} node(s), {cost.largest_devices} device(s)"
    return [
        ("cells", f"{cost.cells:,}"),
        ("  done", _with_statuses(cost)),
        ("  to run", f"{cost.to_run:,}"),
        ("  unsupported", f"{cost.unsupported:,}"),
        ("SLURM jobs", jobs if cost.to_run else "none"),
        ("largest job", largest if cost.to_run else "none"),
        ("device-hours, at most", f"{_hours(cost.device_s_upper)}"),
        ("device-hours, expected", _expected(cost)),
        ("disk of a node", f"{cost.node_disk_bytes / 1e9:,.2f} GB"),
        ("download", f"{cost.download_bytes / 1e9:,.2f} GB" if cost.download_bytes else "none"),
    ]


def _with_statuses(cost: Cost) -> str:
    statuses = ", ".join(f"{count:,} {status}" for status, count in cost.done_statuses.items())
    return f"{cost.done:,} ({statuses})" if statuses else f"{cost.done:,}"


def _expected(cost: Cost) -> str:
    if not cost.to_run:
        return _hours(0)
    if cost.device_s_expected is None:
        return "unknown: no cell like these has been measured here"
    known = cost.cells_known_by_strategy + cost.cells_known_by_network
    text = f"{_hours(cost.device_s_expected)} for {known:,} of {cost.to_run:,} cells, measured"
    if cost.cells_known_by_network:
        text += f" ({cost.cells_known_by_network:,} with another strategy)"
    return f"{text}; nothing is known of {cost.cells_unknown:,}" if cost.cells_unknown else text


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f}"
