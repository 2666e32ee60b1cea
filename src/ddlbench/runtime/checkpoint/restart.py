"""Whether a cell goes on where an earlier attempt ended, and what that attempt's end cost.

::

    attempt 1    step 1 ..... 20 | checkpoint | ..... 33 killed       trail: 33 steps, 1.9 s unsaved
    attempt 2    the supervisor finds the trail: 13 steps, 1.9 s lost
                 all ranks go on behind step 20

An attempt that a lost node, preemption or a crash ended leaves its trail and its sets.
They serve only a cell with the same path, plan, data, links and number of ranks; whatever else lies
in the folder of checkpoints is deleted. So are they once the cell has its result: one that is
deleted is measured anew. Only a cell that ran out of time keeps them, and goes on when it is asked
for again. Where the relay of emulated links was the limit, they hold times of that, and go as well.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.document import write_json
from ddlbench.experiment.errors import ConfigError
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
    """How an attempt begins.

    Args:
        order: for the ranks; None where the cell writes no checkpoints.
        earlier: what each attempt before this one lost, as ``checkpointing.attempts`` of the
            result has it.
    """

    order: Order | None = None
    earlier: list[Attempt] = field(default_factory=list)

    def was_refused(self, reports: Sequence[RankReport | RankFailure]) -> bool:
        """Whether a rank could not use its checkpoint; then no set is left, but a note of it is."""
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
    """Look for what earlier attempts left, note what they lost, and say where to begin.

    Args:
        plan: of the cell.
        site: says where checkpoints lie.
        cell_folder: of the cell; they lie in it where the site says nothing.
        dataset_digest: of the staged data.
        run: name of the attempt, which no other one has.

    Raises:
        ConfigError: the folder of checkpoints cannot be written, or is no path on this node.
    """
    if not plan.cell.checkpoint_every_steps:
        return Restart()
    folder = checkpoint_dir(site.checkpoints, site.name, plan.cell.id, cell_folder).resolve()
    try:
        return _look_into(folder, plan, _identity(plan, site, dataset_digest), run)
    except OSError as error:
        raise ConfigError(
            f"site {site.name}: checkpoints cannot be written to {folder} ({error}); name a folder "
            "that all nodes can write in checkpoints"
        ) from error


def _identity(plan: Plan, site: Site, dataset_digest: str | None) -> dict[str, Any]:
    """What a cell has in common with the attempts that it goes on from."""
    fabric = plan.cell.fabric
    return {
        "cell_id": plan.cell.id,
        "plan_digest": plan.digest,
        "dataset_digest": dataset_digest,
        "link": site.fabrics[fabric].to_dict() if site.emulates(fabric) else None,
        "ranks": plan.world_size,
    }


def _look_into(folder: Path, plan: Plan, identity: dict[str, Any], run: str) -> Restart:
    cell = plan.cell
    earlier = _read(folder, identity)
    if earlier is None:
        discard(folder)
        earlier = []
    found = newest(folder, identity)
    kept = 0 if found is None else found.steps
    version = _version(cell)
    reached = read_journal(journal_file(folder))
    if reached is not None:
        by = version if found is None else found.version
        earlier.append(_attempt(kept, reached.steps, reached.unsaved_s, by))
        journal_file(folder).unlink()
    _write(folder, identity, earlier)
    resume = None if found is None else found.folder.name
    return Restart(Order(str(folder), identity, run, resume, version), earlier)


def forget_checkpoints(cell: Cell, site: Site, cell_folder: Path, status: Status) -> None:
    """They have served, or hold what is not valid; not so where the cell only ran out of time."""
    if cell.checkpoint_every_steps and status != Status.TIMEOUT:
        # What is left over of a measured cell does no harm.
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
    told = driver_provenance(cell.seed)
    dirty = "-dirty" if told["git_dirty"] else ""
    commit = f" {told['git_commit']}{dirty}" if told["git_commit"] else ""
    return f"ddlbench {told['packages'].get('ddlbench', 'unknown')}{commit}"


def _read(folder: Path, identity: dict[str, Any]) -> list[Attempt] | None:
    """Earlier attempts at this very cell; None where the folder belongs to another one."""
    try:
        values = json.loads((folder / _ATTEMPTS).read_text(encoding="utf-8"))
        if values["identity"] != identity:
            return None
        return [Attempt.from_dict(attempt) for attempt in values["earlier"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(folder: Path, identity: dict[str, Any], earlier: list[Attempt]) -> None:
    write_json(
        folder / _ATTEMPTS, {"identity": identity, "earlier": [one.to_dict() for one in earlier]}
    )
