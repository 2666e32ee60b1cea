"""How far a run is, in a file that outlives it: what a kill costs is read from here.

Rank 0 overwrites one line a step. The line is the kernel's at once, so no kill of the process loses
it; only a node that goes down may leave it a few seconds old.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProgressJournal", "Reached", "journal_file", "read_journal"]


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
