"""Checkpoints on disk, the progress journal beside them, and the attempts of a cell to finish.

::

    <folder>/step-00000020-<run>/rank0.safetensors     each written whole, by its rank
                                 rank1.safetensors
                                 manifest.json         last, by rank 0: the set may be used
             step-00000040-<run>/rank0.safetensors     torn: it has no manifest
             trail                                     the journal: steps and times of the run
             attempts.json                             attempts that ended early

A set holds a file of each rank, and is complete once its manifest exists. It is used only if its
manifest names the same cell, plan, data and number of ranks, and if every file has the size that
its rank wrote. Two runs never share a set.

The journal says what a kill cost. Rank 0 overwrites its one line after each step. The kernel has
the line at once, so a killed process does not lose it; after a node crash it may be a few seconds
old.

A cell may resume from an earlier attempt, which is recorded with what it lost::

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

import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ddlbench.common.document import read_json, write_json
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import checkpoint_dir
from ddlbench.experiment.result import Attempt
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Status
from ddlbench.planning.plan import Plan
from ddlbench.runtime.environment import driver_provenance
from ddlbench.runtime.rank_report import RankFailure, RankReport

SCHEMA_VERSION = 2
KEPT_SETS = 2  # some file systems report a write that a crash then loses
_MANIFEST, _JOURNAL, _ATTEMPTS = "manifest.json", "trail", "attempts.json"


@dataclass(frozen=True)
class Order:
    """The supervisor's instructions on checkpoints to every rank."""

    folder: str  # of the sets; all nodes see it
    identity: dict[str, Any]  # of the cell; a set is used only if it has the same one
    run: str  # unique name of this run
    resume: str | None  # name of the set to resume from; None to train from the start
    version: str  # of the measuring code, for the record


@dataclass(frozen=True)
class CheckpointSet:
    """A complete set."""

    folder: Path
    identity: dict[str, Any]  # of its cell
    steps: int  # measured steps that were done
    save_s: float  # seconds that writing it took
    version: str  # of the code that wrote it


def set_folder(folder: Path, steps: int, run: str) -> Path:
    """Folder of a run's set after ``steps`` measured steps."""
    return folder / f"step-{steps:08d}-{run}"


def rank_file(in_set: Path, rank: int) -> Path:
    """The file of one rank."""
    return in_set / f"rank{rank}.safetensors"


def complete(in_set: Path, steps: int, order: Order, *, sizes: list[int], save_s: float) -> None:
    """Write the manifest of a set whose files exist with ``sizes`` in bytes, in order of ranks."""
    _flush(in_set)  # the names of the files must be on disk before the manifest
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "steps": steps,
        "identity": order.identity,
        "version": order.version,
        "save_s": save_s,
        "files": [
            {"name": rank_file(in_set, rank).name, "bytes": size} for rank, size in enumerate(sizes)
        ],
    }
    write_json(in_set / _MANIFEST, manifest)
    _flush(in_set)


def newest(folder: Path, identity: dict[str, Any]) -> CheckpointSet | None:
    """The complete set of ``identity`` with the most steps; None if there is none."""
    usable = [entry for entry in _complete_sets(folder) if entry.identity == identity]
    return usable[-1] if usable else None


def read_set(path: Path) -> CheckpointSet | None:
    """The set in a folder; None if it is torn, or of another version."""
    try:
        manifest = read_json(path / _MANIFEST)
        if manifest["schema_version"] != SCHEMA_VERSION:
            return None
        for file in manifest["files"]:
            # Only the name, as a manifest must not point outside its folder.
            if (path / Path(file["name"]).name).stat().st_size != file["bytes"]:
                return None
        return CheckpointSet(
            folder=path,
            identity=dict(manifest["identity"]),
            steps=int(manifest["steps"]),
            save_s=float(manifest["save_s"]),
            version=str(manifest["version"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def prune(folder: Path) -> None:
    """Delete torn sets and all complete ones but the newest ``KEPT_SETS``."""
    kept = {entry.folder for entry in _complete_sets(folder)[-KEPT_SETS:]}
    for path in _sets(folder):
        if path not in kept:
            _remove(path)


def discard(folder: Path) -> None:
    """Delete all sets, the journal and the attempts; and the folder if it is empty then."""
    for path in _sets(folder):
        _remove(path)
    for name in (_JOURNAL, _ATTEMPTS):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # the user keeps other files there
        folder.rmdir()


def _sets(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*-*") if path.is_dir()]


def _complete_sets(folder: Path) -> list[CheckpointSet]:
    return sorted(filter(None, map(read_set, _sets(folder))), key=lambda entry: entry.steps)


def _remove(path: Path) -> None:
    (path / _MANIFEST).unlink(missing_ok=True)  # first, so that a half-deleted set is torn
    shutil.rmtree(path, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Write the names of a folder's files to disk, if the file system can."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def journal_file(folder: Path) -> Path:
    """Journal of the run with checkpoints in ``folder``."""
    return folder / _JOURNAL


class ProgressJournal:
    """Writes the journal of a run that begins with ``steps`` measured steps done."""

    def __init__(self, path: Path, steps: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
        self.kept(steps)

    def kept(self, steps: int) -> None:
        """Record that a checkpoint holds ``steps`` steps; later ones can be lost."""
        self._since = time.time()
        self.reach(steps)

    def reach(self, steps: int) -> None:
        line = f"{steps:20d} {self._since:20.6f} {time.time():20.6f}\n"
        os.pwrite(self._file, line.encode(), 0)


@dataclass(frozen=True)
class Reached:
    """The last entry of a journal."""

    steps: int  # measured steps done
    unsaved_s: float  # since the last checkpoint, or since the measured steps began


def read_journal(path: Path) -> Reached | None:
    """The journal's entry; None if there is no journal or it cannot be read."""
    try:
        steps, since, now = path.read_text(encoding="ascii").split()
        return Reached(int(steps), max(0.0, float(now) - float(since)))
    except (OSError, ValueError):
        return None


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
        _write_attempts(folder, self.order.identity, [*self.earlier[:-1], last])
        return True


def restart_of(
    plan: Plan, site: Site, cell_folder: Path, dataset_digest: str | None, run: str
) -> Restart:
    """Find the checkpoints of earlier attempts, record what those lost, and choose where to begin.

    ``cell_folder`` holds the checkpoints if the site names no folder. ``run`` is the unique name of
    this attempt.

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
    earlier = _earlier_attempts(folder, identity)
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
    _write_attempts(folder, identity, earlier)
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


def _earlier_attempts(folder: Path, identity: dict[str, Any]) -> list[Attempt] | None:
    """Earlier attempts at the same cell; None if the folder belongs to another cell."""
    try:
        values = read_json(folder / _ATTEMPTS)
        if values["identity"] != identity:
            return None
        return [Attempt.from_dict(attempt) for attempt in values["earlier"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_attempts(folder: Path, identity: dict[str, Any], earlier: list[Attempt]) -> None:
    write_json(
        folder / _ATTEMPTS,
        {"identity": identity, "earlier": [attempt.to_dict() for attempt in earlier]},
    )
