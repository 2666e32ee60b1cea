"""Where each cell of an experiment stands: what ``ddlbench status`` says, also as JSON."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ddlbench.common.document import UnreadableJson, read_json, read_object
from ddlbench.common.form import Amount, Form, Natural
from ddlbench.common.owner import NOBODY, Writer, owner_in, seems_to_live
from ddlbench.common.quantities import counted, duration_text, few, ratio_text
from ddlbench.common.screen import named_lines, terminal_width
from ddlbench.experiment.cell import Cell, short_names
from ddlbench.experiment.paths import PROGRESS_FILE, QUEUED_FILE, cell_dir, result_file
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.status import Status
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.measurements import records_of
from ddlbench.slurm.jobs import NO_ANSWER
from ddlbench.slurm.jobs import states as states_of_jobs

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


# Why the number of a cell that is ok is wrong or means little, gravest first: column, and code.
_CODES_OF_OK = {"departure": "other_training", "disturbed": None, "diverged": "diverged"}
_OF_CELL = ("dataset", "network", "strategy", "geometry", "repeat")
_FEW_REASONS = 6
_FEW_RUNNING = 4


def states(experiment: str, site: str, rows: list[MatrixRow]) -> list[CellStatus]:
    """State of every cell of the matrix, in its order."""
    cells = []
    queued = _queued(site, rows)
    for row, record in zip(rows, records_of(experiment, site, rows, stale=False), strict=True):
        cell, state, finished = row.cell, Status(record["status"]), None
        reason, code, result = record["reason"], record["reason_code"], result_file(site, cell.id)
        if state == Status.OK:
            with suppress(OSError):  # deleted since
                written = datetime.fromtimestamp(result.stat().st_mtime, UTC)
                finished = written.isoformat(timespec="seconds")
                known = [(code, record.get(key)) for key, code in _CODES_OF_OK.items()]
                code, reason = next((pair for pair in known if pair[1]), (None, None))
        # An unsupported cell may run again, once what was missing is there.
        elif not state.is_result or state == Status.UNSUPPORTED:
            held = _held(cell_dir(site, cell.id), state) or queued.get(cell.id)
            state, reason, code = held or (state, reason, code)
        cells.append(
            CellStatus(
                cell_id=cell.id,
                **{name: getattr(cell, name) for name in _OF_CELL},
                state=state,
                reason=str(reason) if reason else None,
                reason_code=code or None,
                finished=finished,
                step_median_s=record.get("step_median_s") if finished else None,
                speedup=record.get("speedup") if finished else None,
                result=str(result),
            )
        )
    return cells


def status_document(experiment: str, site: str, cells: Sequence[CellStatus]) -> StatusDocument:
    """The states of an experiment's cells as a document."""
    # A result of a newer ddlbench is not measured again.
    return StatusDocument(
        experiment=experiment,
        site=site,
        counts=dict(Counter(str(cell.state) for cell in cells)),
        done=all(cell.state.is_result or cell.state == Status.NEWER for cell in cells),
        cells=tuple(cells),
    )


def status_lines(cells: Sequence[CellStatus], *, every_cell: bool = False) -> list[str]:
    """Counts by state; below them what runs, what ended last, and why others have no measurement.

    Args:
        cells: of the matrix.
        every_cell: name every cell; otherwise cells with one reason share a line.
    """
    counts = Counter(cell.state for cell in cells)
    lines = [", ".join(f"{count:,} {state}" for state, count in counts.most_common())]
    ids = [cell.cell_id for cell in cells]
    names = dict(zip(ids, short_names([Cell.from_id(name) for name in ids]), strict=True))
    groups: dict[tuple[str, str], list[CellStatus]] = {}
    for cell in cells:
        shown = every_cell or cell.state not in (Status.NOT_RUN, Status.RUNNING)
        if shown and (cell.state != Status.OK or cell.reason):
            ok = cell.state == Status.OK
            state = (cell.reason_code or "disturbed") if ok else str(cell.state)
            groups.setdefault((state, cell.reason or "no reason is given"), []).append(cell)
    reasons = []
    for (state, reason), members in groups.items():
        named = (names[cell.cell_id] for cell in members)
        listed = ", ".join(named) if every_cell else few(named)
        reasons.append((state.replace("_", " "), f"{listed}: {reason}"))
    if len(reasons) > _FEW_REASONS and not every_cell:
        more = f"{counted(len(groups) - _FEW_REASONS, 'more reason')}: --all"
        reasons = [*reasons[:_FEW_REASONS], ("", more)]
    widest = max(len(state) for state in (str(Status.RUNNING), *(state for state, _ in reasons)))
    pairs = [] if every_cell else _progress(cells, names, before=widest + 4)
    return [*lines, *named_lines([*pairs, *reasons], "  ")]


def _progress(
    cells: Sequence[CellStatus], names: Mapping[str, str], before: int
) -> list[tuple[str, str]]:
    """The cells that run and, until all have ended, the cell that ended last.

    Each is one line, which begins with ``before`` characters.
    """
    running = [cell for cell in cells if cell.state == Status.RUNNING]
    shown = running[:_FEW_RUNNING]
    width = max((len(names[cell.cell_id]) for cell in shown), default=0)
    reasons = [cell.reason or "" for cell in shown]
    if width + max(map(len, reasons), default=0) > terminal_width() - before - 2:
        reasons = [reason.partition(", ")[2] or reason for reason in reasons]  # without its process
    pairs = [
        (str(Status.RUNNING), f"{names[cell.cell_id]:{width}}  {reason}")
        for cell, reason in zip(shown, reasons, strict=True)
    ]
    if len(running) > len(shown):
        pairs.append(("", f"{len(running) - len(shown)} more run: --all"))
    ended = [cell for cell in cells if cell.finished]
    unfinished = {Status.RUNNING, Status.QUEUED, Status.NOT_RUN}
    if ended and any(cell.state in unfinished for cell in cells):
        last = max(reversed(ended), key=lambda cell: cell.finished or "")
        pairs.append(("last ok", f"{names[last.cell_id]:{width}}  {_numbers(last)}"))
    return pairs


def _numbers(cell: CellStatus) -> str:
    """``9 ms a step, 1.9x``: what a cell measured."""
    numbers = [] if cell.step_median_s is None else [f"{duration_text(cell.step_median_s)} a step"]
    if cell.strategy == BASE:
        numbers.append("base")
    elif cell.speedup is not None:
        numbers.append(f"{ratio_text(cell.speedup)}x")
    return ", ".join(numbers)


def _held(folder: Path, state: Status) -> tuple[Status, str, str] | None:
    """State, reason and code of a cell that somebody has begun to measure; None if nobody has."""
    owner = owner_in(folder / "lease.json")
    if owner is None or owner == NOBODY:
        return None
    if seems_to_live(owner, folder):
        since_s = max(time.time() - owner.started, 1.0)
        since = f", since {duration_text(since_s)}" if owner.started else ""
        return Status.RUNNING, f"{owner.label}{since}{_step(folder)}", ""
    if state != Status.NOT_RUN:
        return None  # its failure.json tells more
    sentence = f"{owner.label} is gone and has written nothing; the next run measures it again"
    return Status.INTERRUPTED, sentence, "supervisor_lost"


def _queued(site: str, rows: Sequence[MatrixRow]) -> dict[str, tuple[Status, str, str]]:
    """State, reason and code of cells whose SLURM job waits or has just begun.

    The note in a cell's folder names a job; what SLURM says of it decides.
    """
    jobs = {}
    for row in rows:
        with suppress(OSError, UnreadableJson):
            writer = Writer.of(read_object(cell_dir(site, row.cell.id) / QUEUED_FILE))
            if writer is not None and writer.job_id is not None:
                jobs[row.cell.id] = writer.job_id
    known = states_of_jobs(jobs.values())
    queued = {}
    for cell, job_id in jobs.items():
        job = known[job_id]
        if job.state == "PENDING":
            sentence, starts = job.why_pending()
            why = f"SLURM job {job_id}: {sentence}"
            queued[cell] = (Status.QUEUED, why, "" if starts else "never_starts")
        elif job.state != NO_ANSWER and job.may_live:
            queued[cell] = (Status.RUNNING, f"SLURM job {job_id} on {job.nodes or 'nodes'}", "")
    return queued


def _step(folder: Path) -> str:
    """``, step 7/22``: what the supervisor wrote last; empty before the first steps."""
    for path in sorted(folder.glob(f".run-*/{PROGRESS_FILE}"), reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):
            result = read_json(path)
            return f", step {result['step']}/{result['total']}"
    return ""
