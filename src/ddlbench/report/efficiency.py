"""Columns of the tables that say what a cell made of its devices and links."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from ddlbench.experiment.result import Result


def efficiency_columns(result: Result) -> dict[str, Any]:
    """Operations, messages, processor time, energy and compilation of a result; None if unknown."""
    part, energy = result.efficiency, result.energy
    cpu_s = [rank.cpu_s for rank in result.ranks if rank.cpu_s is not None]
    used = [rank.cpu_utilisation for rank in result.ranks if rank.cpu_utilisation is not None]
    traffic = () if result.communication is None else result.communication.ranks
    sent = [r.sent_bytes_per_step for r in traffic if r.sent_bytes_per_step is not None]
    complete = bool(cpu_s) and len(cpu_s) == len(result.ranks)
    return {
        "mfu": None if part is None else part.mfu,
        "flops_per_s": None if part is None else part.flops_per_s,
        "peak_flops_per_s": None if part is None else part.peak_flops_per_s,
        "sent_bytes": round(max(sent)) if sent else None,
        "cpu_s": sum(cpu_s) if complete else None,
        "cpu_utilisation": fmean(used) if used else None,
        "energy_j": None if energy is None else energy.energy_j,
        "energy_per_sample_j": None if energy is None else energy.energy_per_sample_j,
        "compile_s": None if result.compilation is None else result.compilation.compile_s,
        "energy_of": "" if energy is None else " ".join(energy.covers),
    }
