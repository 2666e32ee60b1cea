"""Checkpoints on disk, and the trail beside them that says how far the run is.

::

    <folder>/step-00000020-<run>/rank0.safetensors     each written whole, by its rank
                                 rank1.safetensors
                                 manifest.json         last, by rank 0: the set may be used
             step-00000040-<run>/rank0.safetensors     torn: it has no manifest
             trail                                     how far the run is
             attempts.json                             attempts that ended early (restart.py)

A set holds a file of each rank, and is complete once its manifest is there. It is used only if its
manifest names the cell, the plan, the data and the number of ranks that are asked for, and every
file has the size that its rank wrote. Two runs never share a set.

What a kill costs is read from the trail. Rank 0 overwrites one line a step. The line is the
kernel's at once, so no kill of the process loses it; only a node that goes down may leave it a few
seconds old.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlbench.experiment.document import write_json

SCHEMA_VERSION = 1
# The newest may be lost with a file system that lied about having written it.
KEPT_SETS = 2
_MANIFEST = "manifest.json"
_OWN_FILES = ("trail", "attempts.json")


@dataclass(frozen=True)
class Order:
    """What the supervisor tells every rank of checkpoints.

    Args:
        folder: where sets lie; all nodes see it.
        identity: of the cell: what a set must agree with to be used.
        run: name of this run, which no other run has.
        resume: name of the set to go on from; None to train from the start.
        version: of the measuring code, for the record.
    """

    folder: str
    identity: dict[str, Any]
    run: str
    resume: str | None
    version: str


@dataclass(frozen=True)
class CheckpointSet:
    """A complete set.

    Args:
        folder: that holds it.
        identity: of the cell that it belongs to.
        steps: measured steps that were done.
        save_s: seconds that it took to write it.
        version: of the code that wrote it.
    """

    folder: Path
    identity: dict[str, Any]
    steps: int
    save_s: float
    version: str


def set_folder(folder: Path, steps: int, run: str) -> Path:
    """Where a run puts what it has after so many measured steps."""
    return folder / f"step-{steps:08d}-{run}"


def rank_file(in_set: Path, rank: int) -> Path:
    """The file of one rank."""
    return in_set / f"rank{rank}.safetensors"


def complete(in_set: Path, steps: int, order: Order, *, sizes: list[int], save_s: float) -> None:
    """Write the manifest; every rank's file is there, with the size that its rank gives."""
    _flush(in_set)  # the files' names, before the one that vouches for them
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
    """The complete set with the most steps that belongs to ``identity``; None without one."""
    found = filter(None, map(read_set, _sets(folder)))
    usable = [one for one in found if one.identity == identity]
    return max(usable, key=lambda one: one.steps, default=None)


def read_set(path: Path) -> CheckpointSet | None:
    """The set in a folder; None where it is torn, or of another version."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
        if manifest["schema_version"] != SCHEMA_VERSION:
            return None
        for file in manifest["files"]:
            # Only the name: a manifest must not lead out of its folder.
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
    """Delete all sets but the newest ``KEPT_SETS`` complete ones, torn ones included."""
    whole = sorted(filter(None, map(read_set, _sets(folder))), key=lambda one: one.steps)
    kept = {one.folder for one in whole[-KEPT_SETS:]}
    for path in _sets(folder):
        if path not in kept:
            _remove(path)


def discard(folder: Path) -> None:
    """Delete whatever of checkpoints lies in ``folder``, and it too if nothing else is there."""
    for path in _sets(folder):
        _remove(path)
    for name in _OWN_FILES:
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # somebody keeps other things there
        folder.rmdir()


def _sets(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*-*") if path.is_dir()]


def _remove(path: Path) -> None:
    """Its manifest first: a set that is half deleted is torn."""
    (path / _MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def _flush(folder: Path) -> None:
    """Bring the names of a folder to disk, where the file system can."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def journal_file(folder: Path) -> Path:
    """Where the run with checkpoints in ``folder`` leaves its trail."""
    return folder / "trail"


class ProgressJournal:
    """Writes the trail.

    Args:
        path: of the file; its folder is made.
        steps: measured steps that are done already.
    """

    def __init__(self, path: Path, steps: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
        self.kept(steps)

    def kept(self, steps: int) -> None:
        """So many steps are in a checkpoint: what comes now can be lost."""
        self._since = time.time()
        self.reach(steps)

    def reach(self, steps: int) -> None:
        """So many measured steps are done."""
        line = f"{steps:20d} {self._since:20.6f} {time.time():20.6f}\n"
        os.pwrite(self._file, line.encode(), 0)


@dataclass(frozen=True)
class Reached:
    """Where a run was when it was last heard of.

    Args:
        steps: measured steps done.
        unsaved_s: seconds since its last checkpoint, or since its measured steps began.
    """

    steps: int
    unsaved_s: float


def read_journal(path: Path) -> Reached | None:
    """What the trail says; None where there is none, or none that can be read."""
    try:
        steps, since, now = path.read_text(encoding="ascii").split()
        return Reached(int(steps), max(0.0, float(now) - float(since)))
    except (OSError, ValueError):
        return None
