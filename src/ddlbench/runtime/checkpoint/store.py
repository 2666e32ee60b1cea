"""Checkpoints on disk, and the progress journal beside them.

::

    <folder>/step-00000020-<run>/rank0.safetensors     each written whole, by its rank
                                 rank1.safetensors
                                 manifest.json         last, by rank 0: the set may be used
             step-00000040-<run>/rank0.safetensors     torn: it has no manifest
             trail                                     the journal: steps and times of the run
             attempts.json                             attempts that ended early (restart.py)

A set holds a file of each rank, and is complete once its manifest exists. It is used only if its
manifest names the same cell, plan, data and number of ranks, and if every file has the size that
its rank wrote. Two runs never share a set.

The journal says what a kill cost. Rank 0 overwrites its one line after each step. The kernel has
the line at once, so a killed process does not lose it; after a node crash it may be a few seconds
old.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlbench.common.document import write_json
from ddlbench.common.text import read_json

SCHEMA_VERSION = 1
KEPT_SETS = 2  # some file systems report a write that a crash then loses
_MANIFEST = "manifest.json"
_OWN_FILES = ("trail", "attempts.json")


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
    usable = [one for one in _complete_sets(folder) if one.identity == identity]
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
    kept = {one.folder for one in _complete_sets(folder)[-KEPT_SETS:]}
    for path in _sets(folder):
        if path not in kept:
            _remove(path)


def discard(folder: Path) -> None:
    """Delete all sets, the journal and the attempts; and the folder if it is empty then."""
    for path in _sets(folder):
        _remove(path)
    for name in _OWN_FILES:
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # the user keeps other files there
        folder.rmdir()


def _sets(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*-*") if path.is_dir()]


def _complete_sets(folder: Path) -> list[CheckpointSet]:
    return sorted(filter(None, map(read_set, _sets(folder))), key=lambda one: one.steps)


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
    return folder / "trail"


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
