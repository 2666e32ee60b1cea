"""A part of the study: checks, one after the other, each of which ends in a row that is kept.

::

    check -> Verdict -> row of part<k>.json -> table
      '-> an error, or no time left: a row, too

``part<k>.json`` is written after every check. A part that is run again repeats what has not passed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from ddlbench.common.document import write_json
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import Result, read_result
from ddlbench.experiment.site import Site
from ddlbench.runtime.staging import stage_cell
from ddlbench.runtime.supervise import run_cell

__all__ = [
    "NotHere",
    "Row",
    "Study",
    "Verdict",
    "in_process",
    "measured",
    "median_step_s",
    "own_environment",
]

Figure = float | int | str | bool | None

PASSED, FAILED, NOT_HERE, NO_TIME = "passed", "failed", "not here", "no time"


class NotHere(RuntimeError):  # noqa: N818 - a state of the machine, shown as such
    """This machine lacks what a check needs; the sentence says what."""


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Args:
        passed: whether it is as it should be.
        figures: numbers and words that it found, under their names with units.
        reason: why it did not pass.
        rows: single measurements behind the figures, one mapping each.
    """

    passed: bool
    figures: Mapping[str, Figure] = field(default_factory=dict)
    reason: str = ""
    rows: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Row:
    """A check that was made; ``status`` is passed, failed, not here or no time."""

    check: str
    status: str
    reason: str
    figures: Mapping[str, Figure]
    seconds: float
    made: str = ""
    rows: tuple[Mapping[str, Any], ...] = ()


class Study:
    """One part on one machine.

    Args:
        part: its number.
        folder: what it finds and what it works with.
        device: "cuda" or "cpu".
        small: fewer and smaller measurements, which show that the part works and no more.
        limit_s: no check begins later than this.
        carried: folder of sources that ``--prepare`` collected; None without one.
    """

    def __init__(
        self,
        part: int,
        folder: Path,
        *,
        device: str,
        small: bool,
        limit_s: float,
        carried: Path | None = None,
    ) -> None:
        self.part, self.folder, self.device, self.small = part, folder, device, small
        self.carried = carried
        self.work = folder / f"part{part}"
        self.work.mkdir(parents=True, exist_ok=True)
        self._end_s = time.monotonic() + limit_s
        self._path = folder / f"part{part}.json"
        self._rows: dict[str, Row] = {}
        if self._path.is_file():
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            if kept["device"] == device and kept["small"] == small:
                self._rows = {entry["check"]: Row(**entry) for entry in kept["checks"]}

    @property
    def rows(self) -> list[Row]:
        """Of all checks so far, in the order in which they were first made."""
        return list(self._rows.values())

    @property
    def left_s(self) -> float:
        """Seconds until the part should end."""
        return self._end_s - time.monotonic()

    def check(self, name: str, make: Callable[[], Verdict], needs_s: float = 10.0) -> None:
        """Make a check unless it has passed before.

        Args:
            name: of its row.
            make: does the work.
            needs_s: with less time left it is not begun.
        """
        before = self._rows.get(name)
        if before is not None and before.status == PASSED:
            return
        if self.left_s < needs_s:
            if before is None:
                self._keep(Row(name, NO_TIME, f"{self.left_s:.0f} s were left", {}, 0.0))
            return
        began = time.monotonic()
        try:
            verdict = make()
            status = PASSED if verdict.passed else FAILED
        except NotHere as error:
            status, verdict = NOT_HERE, Verdict(False, reason=str(error))
        except Exception as error:  # whatever a check meets is a row of the table
            traceback.print_exc()
            status, verdict = (
                FAILED,
                Verdict(False, reason=f"{type(error).__name__}: {_line(error)}"),
            )
        self._keep(
            Row(
                name,
                status,
                verdict.reason,
                verdict.figures,
                seconds=time.monotonic() - began,
                made=datetime.now(UTC).isoformat(timespec="seconds"),
                rows=verdict.rows,
            )
        )

    def _keep(self, row: Row) -> None:
        self._rows[row.check] = row
        print(f"part {self.part}: {row.check}: {row.status} ({row.seconds:.0f} s) {row.reason}",
              flush=True)  # fmt: skip
        write_json(
            self._path,
            {
                "part": self.part,
                "device": self.device,
                "small": self.small,
                "machine": machine(self.device),
                "checks": [asdict(row) for row in self._rows.values()],
            },
        )

    def site(self, devices: int = 1, **keys: Any) -> Site:
        """This machine as a site; several devices of a GPU machine are its one GPU."""
        values: dict[str, Any] = {
            "name": f"one-{self.device}",
            "description": f"one {'GPU' if self.device == 'cuda' else 'machine, CPU'}",
            "device": self.device,
            "launcher": "local",
            "nodes": 1,
            "devices_per_node": devices,
            "cpus_per_device": 1,
            "memory_per_device_mb": None,
            "scratch": str(self.folder / "scratch"),
            "keep_data": True,
            "interface": None,
            "cell_timeout_s": 180.0,
            "hang_timeout_s": 90.0,
            "devices_share_gpu": self.device == "cuda" and devices > 1,
        }
        return Site(**{**values, **keys})

    def run(self, cell: Cell, site: Site, name: str = "cells") -> Result:
        """The cell's result; measured once."""
        folder = self.work / name / cell.id
        path = folder / "result.json"
        if path.is_file():
            return read_result(path)
        return measured(cell, site, folder, self.work)

    def folder_of(self, cell: Cell, name: str = "cells") -> Path:
        """Where :meth:`run` leaves what it measured."""
        return self.work / name / cell.id


def measured(cell: Cell, site: Site, folder: Path, work: Path) -> Result:
    """The result of a cell that is measured now."""
    result = run_cell(cell, site, folder, stage_cell(cell, site, work))
    if result is None:
        raise RuntimeError(f"{folder} has a result of a newer ddlbench")
    return result


def median_step_s(result: Result) -> float:
    """Of all measured steps."""
    if result.timing is None or result.timing.step_s.median_s is None:
        raise RuntimeError(f"{result.cell_id}: {result.status}, no time of a step: {result.reason}")
    return result.timing.step_s.median_s


def in_process(function: Callable[..., Any], *arguments: Any, limit_s: float = 120.0) -> Any:
    """Call a function of a module in a process of its own, which must end in time.

    A GPU's memory, its library handles and its allocator's peaks end with the process.

    Raises:
        TimeoutError: it did not; the process is killed.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        future = pool.submit(function, *arguments)
        try:
            return future.result(timeout=limit_s)
        except TimeoutError:
            for pid in list(pool._processes):
                with suppress(psutil.Error):
                    root = psutil.Process(pid)
                    for process in (*root.children(recursive=True), root):
                        process.kill()
            raise TimeoutError(f"not done within {limit_s:.0f} s") from None
        except BrokenProcessPool:
            raise RuntimeError("its process ended without an answer") from None


def own_environment(**variables: str) -> dict[str, str]:
    """The environment of a program that is started, with further variables."""
    return {**os.environ, **variables}


def machine(device: str) -> dict[str, Any]:
    """What the numbers were measured on."""
    from ddlbench.runtime.environment import driver_provenance  # noqa: PLC0415 - after the wheels

    provenance: dict[str, Any] = dict(driver_provenance(seed=0))
    if device == "cuda" and "gpu" not in _MACHINE:
        _MACHINE.update(in_process(_gpu, limit_s=60))
    return {**provenance, **_MACHINE}


_MACHINE: dict[str, Any] = {}


def _gpu() -> dict[str, Any]:
    import pynvml  # noqa: PLC0415 - only where a GPU is
    import torch  # noqa: PLC0415 - a context of its own, which ends with this process

    pynvml.nvmlInit()
    return {
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "gpu": torch.cuda.get_device_name(0),
        "gpus": torch.cuda.device_count(),
        "gpu_bytes": torch.cuda.get_device_properties(0).total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
    }


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400]
