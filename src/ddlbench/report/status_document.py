"""``ddlbench status --json``: the state of every cell, for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ddlbench.common.form import Amount, Form, Natural
from ddlbench.experiment.paths import result_file
from ddlbench.experiment.status import Status
from ddlbench.report.terminal import CellState

STATUS_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class CellStatus(Form):
    """One cell."""

    cell_id: str
    """The cell's path below `results/<site>/cells/`."""
    dataset: str
    """Dataset."""
    network: str
    """Network."""
    strategy: str
    """Strategy."""
    geometry: str
    """Nodes x devices a node."""
    repeat: Natural
    """Index of the repetition."""
    state: Status
    """Where it stands; `ok`, `out_of_memory`, `unsupported` and `timeout` are done."""
    reason: str | None
    """Why it is not ok, or why its number is wrong; of a running cell, who runs it; else null."""
    reason_code: str | None
    """What to count reasons by; null without state."""
    finished: str | None
    """When its result was written, in ISO 8601; null unless it is ok."""
    step_median_s: Amount | None
    """Median step; null unless it is ok."""
    speedup: Amount | None
    """Over its base; null where there is none."""
    result: str
    """Its result file, which may not exist yet."""


@dataclass(frozen=True, kw_only=True)
class StatusDocument(Form):
    """What the command prints."""

    schema_version: int = STATUS_VERSION
    """Version of this format."""
    experiment: str
    """Name of the experiment."""
    site: str
    """Name of the site."""
    counts: Mapping[str, Natural]
    """Number of cells by state."""
    done: bool
    """No cell is left to measure."""
    cells: tuple[CellStatus, ...]
    """In the order of the matrix; with `--state` those in that state."""


def status_document(experiment: str, site: str, cells: Sequence[CellState]) -> StatusDocument:
    """The states of an experiment's cells as a document."""
    # A result of a newer ddlbench is not measured again.
    return StatusDocument(
        experiment=experiment,
        site=site,
        counts=dict(Counter(str(cell.state) for cell in cells)),
        done=all(cell.state.is_result or cell.state == Status.NEWER for cell in cells),
        cells=tuple(_status(site, cell) for cell in cells),
    )


def _status(site: str, state: CellState) -> CellStatus:
    cell, finished_s = state.cell, state.finished_s
    made = None if finished_s is None else datetime.fromtimestamp(finished_s, UTC)
    return CellStatus(
        cell_id=cell.id,
        dataset=cell.dataset,
        network=cell.network,
        strategy=cell.strategy,
        geometry=cell.geometry,
        repeat=cell.repeat,
        state=state.state,
        reason=state.reason or None,
        reason_code=state.code or None,
        finished=None if made is None else made.isoformat(timespec="seconds"),
        step_median_s=state.step_s,
        speedup=state.speedup,
        result=str(result_file(site, cell.id)),
    )
