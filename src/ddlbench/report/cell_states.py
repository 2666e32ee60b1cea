"""Where every cell of an experiment stands, and what a terminal shows of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddlbench.common.owner import NOBODY, owner_in, seems_to_live
from ddlbench.common.run_id import Writer
from ddlbench.common.screen import duration_text, named_lines, terminal_width
from ddlbench.common.text import UnreadableJson, read_json, read_object
from ddlbench.experiment.cell import Cell, short_names
from ddlbench.experiment.paths import PROGRESS_FILE, QUEUED_FILE, cell_dir, result_file
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.status import Status
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.records import records_of
from ddlbench.slurm.jobs import NO_ANSWER
from ddlbench.slurm.jobs import states as states_of_jobs


@dataclass(frozen=True)
class CellState:
    """One cell.

    Args:
        cell: of the matrix.
        state: where it stands.
        reason: why it is not ok, what disturbed it, or how it does not train as one device does;
            else empty.
        code: of the reason; empty when it is ok or disturbed, or running.
        finished_s: when its result was written, seconds since the epoch; None without one.
        step_s: median step of a cell that is ok.
        speedup: over its base, where there is one.
    """

    cell: Cell
    state: Status
    reason: str
    code: str
    finished_s: float | None = None
    step_s: float | None = None
    speedup: float | None = None

    @property
    def cell_id(self) -> str:
        """Its path below ``results/<site>/cells/``."""
        return self.cell.id


def states(experiment: str, site: str, rows: list[MatrixRow]) -> list[CellState]:
    """State of every cell of the matrix, in its order."""
    found = []
    queued = _queued(site, rows)
    for row, record in zip(rows, records_of(experiment, site, rows, stale=False), strict=True):
        state = Status(record["status"])
        reason, code = record["reason"] or "", record["reason_code"] or ""
        # A result called unsupported may be made anew, as what was missing is there now.
        if not state.is_result or state == Status.UNSUPPORTED:
            held = _of_lease(cell_dir(site, row.cell.id), state) or queued.get(row.cell.id)
            state, reason, code = held or (state, reason, code)
        said = CellState(row.cell, state, reason, code)
        found.append(_finished(said, site, record) if state == Status.OK else said)
    return found


def _finished(cell: CellState, site: str, record: dict[str, Any]) -> CellState:
    """A cell that is ok, with what its result says."""
    departure = record.get("departure")
    with suppress(OSError):  # deleted since
        return replace(
            cell,
            reason=str(departure or record.get("disturbed") or ""),
            code="other_training" if departure else "",
            finished_s=result_file(site, cell.cell_id).stat().st_mtime,
            step_s=record.get("step_median_s"),
            speedup=record.get("speedup"),
        )
    return cell


def status_lines(cells: Sequence[CellState], *, every_cell: bool = False) -> list[str]:
    """Counts by state; below them what runs, what ended last, and why others have no measurement.

    Args:
        cells: of the matrix.
        every_cell: name every cell; otherwise cells with one reason share a line.
    """
    counts = Counter(cell.state for cell in cells)
    lines = [", ".join(f"{count:,} {state}" for state, count in counts.most_common())]
    names = dict(
        zip(
            (cell.cell_id for cell in cells),
            short_names([cell.cell for cell in cells]),
            strict=True,
        )
    )
    groups: dict[tuple[str, str], list[CellState]] = {}
    for cell in cells:
        shown = every_cell or cell.state not in (Status.NOT_RUN, Status.RUNNING)
        if shown and (cell.state != Status.OK or cell.reason):
            state = (cell.code or "disturbed") if cell.state == Status.OK else str(cell.state)
            groups.setdefault((state, cell.reason), []).append(cell)
    reasons = []
    for (state, reason), members in groups.items():
        named = members if every_cell else members[:_FEW_NAMES]
        listed = ", ".join(names[cell.cell_id] for cell in named)
        if len(members) > len(named):
            listed += f" and {len(members) - len(named)} more"
        reasons.append((state.replace("_", " "), f"{listed}: {reason}"))
    if len(reasons) > _FEW_REASONS and not every_cell:
        more = f"{len(groups) - _FEW_REASONS} more reasons: --all"
        reasons = [*reasons[:_FEW_REASONS], ("", more)]
    widest = max(len(state) for state in (str(Status.RUNNING), *(state for state, _ in reasons)))
    pairs = [] if every_cell else _moving(cells, names, before=widest + 4)
    return [*lines, *named_lines([*pairs, *reasons], "  ")]


_FEW_NAMES = 2
_FEW_REASONS = 6
_FEW_RUNNING = 4


def _moving(
    cells: Sequence[CellState], names: Mapping[str, str], before: int
) -> list[tuple[str, str]]:
    """The cells that run, and while there are others to come the one that ended last.

    Each is one line, which begins with ``before`` characters.
    """
    running = [cell for cell in cells if cell.state == Status.RUNNING]
    shown = running[:_FEW_RUNNING]
    wide = max((len(names[cell.cell_id]) for cell in shown), default=0)
    said = [one.reason for one in shown]
    if wide + max(map(len, said), default=0) > terminal_width() - before - 2:
        said = [reason.partition(", ")[2] or reason for reason in said]  # without its process
    pairs = [
        (str(Status.RUNNING), f"{names[one.cell_id]:{wide}}  {reason}")
        for one, reason in zip(shown, said, strict=True)
    ]
    if len(running) > len(shown):
        pairs.append(("", f"{len(running) - len(shown)} more run: --all"))
    ended = [cell for cell in cells if cell.finished_s is not None]
    if not ended or not {Status.RUNNING, Status.QUEUED, Status.NOT_RUN} & {
        cell.state for cell in cells
    }:
        return pairs
    last = max(ended, key=lambda cell: cell.finished_s or 0.0)
    numbers = [] if last.step_s is None else [f"{duration_text(last.step_s)} a step"]
    if last.cell.strategy == BASE:
        numbers.append("base")
    elif last.speedup is not None:
        numbers.append(f"{last.speedup:.2f}x")
    return [*pairs, ("last ok", f"{names[last.cell_id]:{wide}}  {', '.join(numbers)}")]


def _of_lease(folder: Path, state: Status) -> tuple[Status, str, str] | None:
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
            said = read_json(path)
            return f", step {said['step']}/{said['total']}"
    return ""
