"""What stands in the place of a number that a cell does not have."""

from __future__ import annotations

import math
from typing import Any

from ddlbench.experiment.status import Status
from ddlbench.report.comparability import forbids_speedup

__all__ = ["OUT_OF_MEMORY", "mark_without_speedup", "speedup_mark", "status_mark"]

OUT_OF_MEMORY = "OOM"


def status_mark(status: str) -> str:
    """What a cell of this status shows; empty where it was measured."""
    if status == Status.OK:
        return ""
    return OUT_OF_MEMORY if status == Status.OUT_OF_MEMORY else status


def speedup_mark(row: Any, speedup: float) -> str:
    """What a figure shows in the place of a row's speed-up; empty where there is one."""
    status = str(row.status)
    if status != Status.OK or math.isfinite(speedup):
        return status_mark(status)
    return mark_without_speedup(str(row.notes))


def mark_without_speedup(notes: str) -> str:
    """What a measured cell has in the place of a speed-up."""
    return "unlike base" if forbids_speedup(notes) else "no base"
