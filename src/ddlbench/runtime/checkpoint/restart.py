"""Decide whether a cell resumes from an earlier attempt, and record what that attempt lost.

::

    attempt 1    step 1 ..... 20 | checkpoint | ..... 33 killed     journal: 33 steps, 1.9 s unsaved
    attempt 2    the supervisor reads the journal: 13 steps, 1.9 s lost
                 all ranks resume after step 20

An attempt that ended by a lost node, preemption or a crash leaves its journal and its sets. Only a
cell with the same path, plan, data, links and number of ranks uses them; otherwise they are
deleted. They are also deleted once the cell has its result, so that a deleted result is measured
anew. A cell that ran out of time keeps them, and resumes when it runs again. If the relay of
emulated links was saturated, they hold invalid times and are deleted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ddlbench.common.document import write_json
from ddlbench.common.errors import ConfigError
from ddlbench.common.text import read_json
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import checkpoint_dir
from ddlbench.experiment.result import Attempt
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Status
from ddlbench.planning.plan import Plan
from ddlbench.runtime.checkpoint.store import Order, discard, journal_file, newest, read_journal
from ddlbench.runtime.environment import driver_provenance
from ddlbench.runtime.rank_report import RankFailure, RankReport

_ATTEMPTS = "attempts.json"


@dataclass(frozen=True)
class Restart:
    """How an attempt begins."""

    order: Order | None = None  # None if the cell writes no checkpoints
    earlier: list[Attempt] = field(default_factory=list)  # as in the result

    def was_refused(self, reports: Sequence[RankReport | RankFailure]) -> bool:
        """Whether a rank could not use its checkpoint; then deletes all sets and records why."""
        reasons = [r.reason for r in reports if isinstance(r, RankFailure) and r.refused_checkpoint]
        if self.order is None or self.order.resume is None or not reasons:
            return False
        print(f"{reasons[0]}; the cell is trained from the start", file=sys.stderr)
        folder = Path(self.order.folder)
        discard(folder)
        last = self.earlier[-1] if self.earlier else _attempt(0, 0, 0.0, self.order.version)
        last = replace(last, kept_steps=0, lost_steps=last.reached_steps, refused=reasons[0])
        _write(folder, self.order.identity, [*self.earlier[:-1], last])
        return True


def restart_of(
    plan: Plan, site: Site, cell_folder: Path, dataset_digest: str | None, run: str
) -> Restart:
    """Find the checkpoints of earlier attempts, record what those lost, and choose where to begin.

    Args:
        plan: of the cell.
        site: may name the folder of checkpoints.
        cell_folder: holds the checkpoints if the site names no folder.
        dataset_digest: of the staged data.
        run: unique name of the attempt.

    Raises:
        ConfigError: the folder of checkpoints cannot be written, or is no path on this node.
    """
    if not plan.cell.checkpoint_every_steps:
        return Restart()
    folder = checkpoint_dir(site.checkpoints, site.name, plan.cell.id, cell_folder).resolve()
    try:
        return _resume(folder, plan, _identity(plan, site, dataset_digest), run)
    except OSError as error:
        raise ConfigError(
            f"site {site.name}: checkpoints cannot be written to {folder} ({error}); name a folder "
            "that all nodes can write in checkpoints"
        ) from error


def _identity(plan: Plan, site: Site, dataset_digest: str | None) -> dict[str, Any]:
    """What a cell must have in common with the attempts from which it resumes."""
    fabric = plan.cell.fabric
    return {
        "cell_id": plan.cell.id,
        "plan_digest": plan.digest,
        "dataset_digest": dataset_digest,
        "link": site.fabrics[fabric].to_dict() if site.emulates(fabric) else None,
        "ranks": plan.world_size,
    }


def _resume(folder: Path, plan: Plan, identity: dict[str, Any], run: str) -> Restart:
    earlier = _read(folder, identity)
    if earlier is None:
        discard(folder)
        earlier = []
    last = newest(folder, identity)
    kept = 0 if last is None else last.steps
    version = _version(plan.cell)
    reached = read_journal(journal_file(folder))
    if reached is not None:
        measured_by = version if last is None else last.version
        earlier.append(_attempt(kept, reached.steps, reached.unsaved_s, measured_by))
        journal_file(folder).unlink()
    _write(folder, identity, earlier)
    resume = None if last is None else last.folder.name
    return Restart(Order(str(folder), identity, run, resume, version), earlier)


def forget_checkpoints(cell: Cell, site: Site, cell_folder: Path, status: Status) -> None:
    """Delete a cell's checkpoints, unless it ran out of time and may resume."""
    if cell.checkpoint_every_steps and status != Status.TIMEOUT:
        # If this fails, the leftovers of a measured cell do no harm.
        with suppress(OSError, ConfigError):
            discard(checkpoint_dir(site.checkpoints, site.name, cell.id, cell_folder))


def _attempt(kept: int, reached: int, unsaved_s: float, version: str) -> Attempt:
    lost = max(0, reached - kept)
    return Attempt(
        reached_steps=reached,
        kept_steps=kept,
        lost_steps=lost,
        lost_s=unsaved_s if lost else 0.0,
        version=version,
    )


def _version(cell: Cell) -> str:
    provenance = driver_provenance(cell.seed)
    dirty = "-dirty" if provenance["git_dirty"] else ""
    commit = f" {provenance['git_commit']}{dirty}" if provenance["git_commit"] else ""
    return f"ddlbench {provenance['packages'].get('ddlbench', 'unknown')}{commit}"


def _read(folder: Path, identity: dict[str, Any]) -> list[Attempt] | None:
    """Earlier attempts at the same cell; None if the folder belongs to another cell."""
    try:
        values = read_json(folder / _ATTEMPTS)
        if values["identity"] != identity:
            return None
        return [Attempt.from_dict(attempt) for attempt in values["earlier"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(folder: Path, identity: dict[str, Any], earlier: list[Attempt]) -> None:
    write_json(
        folder / _ATTEMPTS, {"identity": identity, "earlier": [one.to_dict() for one in earlier]}
    )
