"""A cell of two ranks on this machine that trains until a test lets it end; each test breaks it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from cases.fault_table import ROWS, Row
from local_cells import odd_cell

from ddlbench.experiment.paths import project_root

HERE = Path(__file__).parent
CELL = odd_cell("patient", "ddp")

# As workflow/scripts/stage.py and run_cell.py do it, on a site of two devices.
_SUPERVISOR = """
import sys
from pathlib import Path
from faulty_cell import CELL
from local_cells import local_site
from ddlbench.runtime import lease, watchdog
from ddlbench.runtime.staging import StagingFailed, stage_cell
from ddlbench.runtime.supervise import CellFailed, run_cell
from ddlbench.workflow.run import logged
watchdog._OTHERS_REPORT_S = 1.0  # the other rank waits for the test, and has nothing to report
lease.claim.__kwdefaults__["poll_s"] = 0.2  # the other run of the cell ends soon
results, scratch = map(Path, sys.argv[1:])
folder = results / "cells" / CELL.id
site = local_site(scratch.parent)
with logged(str(folder / "supervisor.log"), CellFailed, StagingFailed):
    run_cell(CELL, site, folder, stage_cell(CELL, site, folder))
"""


class FaultyCell:
    """The cell, in folders of its own.

    Args:
        folder: for notes and scratch.
        results: None for a folder below ``folder``.
    """

    def __init__(self, folder: Path, results: Path | None = None) -> None:
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.scratch, self.results = folder / "scratch", results or folder / "results"
        self.cell = self.results / "cells" / CELL.id
        self.broken_at = 0.0
        self.gone_s: float | None = None
        self._started: list[psutil.Process] = []

    def supervise(self, *prefix: str) -> subprocess.Popen[str]:
        """Start a supervisor; ``prefix`` is a command that becomes it."""
        path = [str(HERE), str(HERE.parent), *sys.path]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "ODD_HANGING": str(self.notes),
            "ODD_HURRY": str(self.notes / "hurry"),
        }
        arguments = ("-c", _SUPERVISOR, str(self.results), str(self.scratch))
        run = subprocess.Popen(
            [*prefix, sys.executable, *arguments],
            cwd=project_root(),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(psutil.Process(run.pid))
        return run

    def start(self, *prefix: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
        """Start a supervisor; returns it and its two ranks once both train."""
        for note in self.notes.glob("begun-*"):
            note.unlink()
        run = self.supervise(*prefix)
        wait_for(lambda: run.poll() is not None or len(list(self.notes.glob("begun-*"))) == 2)
        assert run.poll() is None, run.communicate()[0]
        ranks = self.ranks_of(run)
        self._started += ranks
        return run, sorted(ranks, key=psutil.Process.name)

    def ranks_of(self, run: subprocess.Popen[str]) -> list[psutil.Process]:
        """The workers that a supervisor has started so far."""
        workers = []
        for process in psutil.Process(run.pid).children(recursive=True):
            with suppress(psutil.Error):  # gone since
                if process.name().startswith("rank-"):
                    workers.append(process)
        return workers

    def broken(self) -> None:
        self.broken_at = time.monotonic()

    def wait_until_gone(self, ranks: Sequence[psutil.Process], seconds: float = 60) -> None:
        wait_for(lambda: not any(map(lives, ranks)), seconds)
        self.gone_s = time.monotonic() - self.broken_at

    def run_again(self) -> dict[str, Any]:
        """From now on training ends; the next run's result."""
        (self.notes / "hurry").touch()
        run = self.supervise()
        output, _ = run.communicate(timeout=120)
        assert run.returncode == 0, output
        return self.result()

    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.cell / "result.json").read_text()))

    def failure(self) -> str:
        return str(json.loads((self.cell / "failure.json").read_text())["reason"])

    def lease(self) -> dict[str, Any]:
        return dict(json.loads((self.cell / "lease.json").read_text()))

    def change_lease(self, **values: Any) -> None:
        (self.cell / "lease.json").write_text(json.dumps({**self.lease(), **values}))

    def report(self, fault: str, state: str, then: str, lost: int = 0) -> None:
        """Add this run to the fault table, and hold it to its two zeros."""
        twice = max(0, len(list(self.notes.glob("done-*"))) - 1)
        ROWS.append(Row(fault, "local", state, self.gone_s, then, lost, twice))
        assert (lost, twice) == (0, 0)
        assert not (self.cell / "lease.json").exists()

    def end(self) -> None:
        for process in self._started:
            try:
                process.kill()
                process.wait(10)
            except psutil.Error:
                continue


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("it did not come")
