"""Whether a cell waits for its data: a step's mean wait for data beside its mean length.

A cell is input-bound when a fifth of its step is waiting for data. There TensorFlow's profiler says
"highly input-bound" (``op_stats_to_input_pipeline_analysis.cc``,
``kHighlyInfeedBoundThresholdInPercent``).

On CUDA the host waits. Its device may compute meanwhile, so the words are others there.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from ddlbench.common.screen import two_digits
from ddlbench.common.statistics import TIMES, unit_for
from ddlbench.experiment.status import Status

INPUT_BOUND_SHARE = 0.2


def input_bound(row: Mapping[Hashable, Any]) -> str:
    """``input-bound: 24 of 44 ms``; empty of a cell that does not wait so long, or is not known.

    Args:
        row: of the measurements or of the summary.
    """
    wait_s, per_s = row["load_step_s"], row["samples_per_s"]
    if row["status"] != Status.OK or pd.isna(wait_s) or pd.isna(per_s) or per_s <= 0:
        return ""
    step_s = float(row["batch_size"]) / float(per_s)
    if wait_s < INPUT_BOUND_SHARE * step_s:
        return ""
    unit = unit_for(step_s, TIMES)
    words = "host waits for data" if "cuda" in str(row["device_kind"]) else "input-bound"
    return f"{words}: {two_digits(unit.of(wait_s))} of {two_digits(unit.of(step_s))} {unit.name}"
