"""What stands around the timelines of cells: headings, and how planned and measured came about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddlbench.experiment.result import Result
from ddlbench.report.labels import dataset_label, network_label, strategy_label, workers_label
from ddlbench.report.timeline.cell import CellTimeline
from ddlbench.report.timeline.draw import duration_text
from ddlbench.report.timeline.pages import Shown

__all__ = ["TITLE", "measured_where", "sentences", "shown_windows"]

TITLE = "Which device computes what when, as planned and as measured"


def shown_windows(cell: CellTimeline) -> Iterator[Shown]:
    """The windows of a cell under their headings."""
    options = " ".join(f"{name}={value}" for name, value in cell.cell.options)
    heading = ", ".join(
        filter(
            None,
            [
                f"{strategy_label(cell.cell.strategy)}: {network_label(cell.cell.network)}",
                dataset_label(cell.cell.dataset),
                f"{workers_label(cell.cell.devices)} ({cell.cell.geometry})",
                options,
            ],
        )
    )
    for window in cell.windows:
        yield Shown(
            heading=f"{heading}: {window.title}" if window.title else heading,
            window=window,
            rows=cell.rows,
            cell_id=cell.cell.id,
            not_planned=cell.not_planned,
            in_seconds=cell.in_seconds,
        )


def sentences(cells: Sequence[CellTimeline]) -> list[str]:
    """How the pictures of these cells are to be read."""
    found = []
    if any(cell.planned and cell.in_seconds for cell in cells):
        found.append(
            "Planned: the plan's schedule, each pass as long as the cell's own median of that pass "
            "and stage, messages free; so what differs is waiting, messages and unusual passes."
        )
    if any(cell.planned and not cell.in_seconds for cell in cells):
        found.append(
            "Planned without a measurement: stages are equal, a forward pass takes 1, a backward "
            "pass 2, messages nothing."
        )
    if any(cell.measured for cell in cells):
        found.append(_measured(cells))
        found.append(
            "Numbers are micro-batches, or mini-batches where these are not split. White is the "
            "bubble, or what is not recorded, as loading data. Dots end the counted part."
        )
    if any(len(row.stages) > 1 for cell in cells for row in cell.rows):
        found.append("Passes of a device's later stages are paler.")
    return found


def _measured(cells: Sequence[CellTimeline]) -> str:
    text = f"Measured: {_part(cells)}"
    known = [cell.uncertainty_s for cell in cells if cell.uncertainty_s is not None]
    if known:
        worst = duration_text(max(known)) if max(known) > 0 else "nothing"
        text += f", on rank 0's clock; clocks of ranks may be {worst} apart"
    return f"{text}."


def _part(cells: Sequence[CellTimeline]) -> str:
    """Which part of a run is shown: some strategies record one step, after all timed ones."""
    single = [len({b.mini_batch for b in cell.measured}) == 1 for cell in cells if cell.measured]
    if all(single):
        return "one more step after the timed ones"
    of_run = "the part of the run that took the median time"
    return f"{of_run}; of some, one more step after it" if any(single) else of_run


def measured_where(result: Result | None) -> list[str]:
    """Site, date and commit of a single cell; what its strategy's numbers cannot show there."""
    if result is None:
        return []
    provenance = result.provenance
    parts = [f"Site {result.site}"]
    if provenance.created:
        parts.append(provenance.created[:10])
    if provenance.git_commit:
        dirty = "-dirty" if provenance.git_dirty else ""
        parts.append(f"commit {provenance.git_commit[:7]}{dirty}")
    return [*(f"{note}." for note in result.notes), f"{'; '.join(parts)}."]
