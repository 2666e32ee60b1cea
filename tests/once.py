"""What is made once in a test run, for all of its processes."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def shared_folder(base: Path) -> Path:
    """A folder of this test run; pytest-xdist gives each process a base within it."""
    return base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Have ``make`` fill a folder, unless a process has done so; others wait for it meanwhile."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if lock.read() != "made":
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            lock.write("made")
    return folder
