"""Horovod's buffer and cycle: what a plan fixes, and what Horovod's autotuner tries.

::

    steps    |-- first samples, dropped --|-- sample --|-- sample --| ... |  best settings kept
    log                                        a row        a row            a row

The autotuner scores settings by bytes a second of all-reduces, and searches by Bayesian methods
(``horovod/common/parameter_manager.cc``). A sample takes dozens of steps, and a search dozens of
samples, so short cells end before it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ddlbench.experiment.site import Accelerator
from ddlbench.planning.plan import Plan
from ddlbench.strategies.horovod.descriptor import HorovodOptions

LOG_NAME = "autotune.csv"


def set_tuning(plan: Plan) -> None:
    """Set Horovod's variables; an autotuner may change only what has no variable."""
    details, own = HorovodOptions.of(plan), dict(plan.cell.options)
    cycle_s = Accelerator.slowed(float(details.cycle_time_s))
    threshold = str(details.fusion_cap(Accelerator.shrunk))
    variables = {
        "fusion_threshold_bytes": ("HOROVOD_FUSION_THRESHOLD", threshold),
        "cycle_time_s": ("HOROVOD_CYCLE_TIME", str(cycle_s * 1e3)),
    }
    for option, (variable, value) in variables.items():
        os.environ.pop(variable, None)
        if option in own or not details.autotune:
            os.environ[variable] = value


class TuningLog:
    """The file in which Horovod's rank 0 writes, from ``hvd.init()`` on, a row a setting tried."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / LOG_NAME
        self._before = 0
        os.environ["HOROVOD_AUTOTUNE_LOG"] = str(self._file)

    def end_warmup(self) -> None:
        """Measured steps follow."""
        self._before = self._rows()

    def details(self) -> dict[str, Any]:
        """The file's name, and how many settings were tried before and in the measured steps."""
        tried = {"before": self._before, "measured": self._rows() - self._before}
        return {"autotune_log": LOG_NAME, "autotune_samples": tried}

    def _rows(self) -> int:
        """Rows below the header."""
        if not self._file.is_file():
            return 0
        return max(0, len(self._file.read_text(encoding="utf-8").splitlines()) - 1)
