"""What a rank measures after training: the peak of its devices, and the network's operations."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import torch

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.site import Accelerator
from ddlbench.networks.operations import training_flops
from ddlbench.planning.plan import Process
from ddlbench.runtime.peak import peak_flops_per_s

_EMULATED = "computation is emulated, so there are neither operations nor a peak to measure"


def measured_by_rank(
    cell: Cell, process: Process, devices: Sequence[torch.device]
) -> dict[str, Any]:
    """Fields of a rank's report; all ranks call this at once, after everything else.

    A failure costs the number, and not the measurement before it.
    """
    if Accelerator.of_this_process() is not None:
        return {"efficiency_missing": _EMULATED}
    measured: dict[str, Any] = {}
    try:
        if process.shard >= 0:
            measured["peak_flops_per_s"] = peak_flops_per_s(devices, cell.precision)
        if process.rank == 0:
            measured["sample_flops"] = training_flops(cell.network, DATASETS[cell.dataset])
    except Exception as error:  # whatever a network of users or a full device raises
        traceback.print_exc()
        text = " ".join(str(error).split())[:200]
        what = "operations were not counted" if "peak_flops_per_s" in measured else "no peak"
        measured["efficiency_missing"] = f"{what}: {type(error).__name__}: {text}"
    return measured
