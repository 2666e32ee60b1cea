"""Operations and energy of a cell: the parts of its result, of what its ranks measured.

::

    ranks    cpu_s, energy_j     around the measured steps
             peak_flops_per_s    after training, all at once
             sample_flops        rank 0, after training
    result   efficiency.mfu  =  batch size * sample_flops / (median step * sum of peaks)

An energy counter belongs to a host or a GPU, which several ranks may read: it counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import Timing
from ddlbench.experiment.spans import Compilation, Efficiency, Energy, EnergyDomain
from ddlbench.runtime.rank_report import RankReport

PEAK_RULE = (
    "products of large square matrices in {} after training, by all ranks that train at once, so "
    "that ranks which share a device or cores share its peak; median of some tenths of a second"
)
COMPILE_RULE = (
    "three steps before warm-up, less three times the last of them, with empty caches of "
    "torch.compile; slowest rank"
)
_OF = {"nvml": "gpu", "rapl": "host"}


def efficiency(cell: Cell, reports: Sequence[RankReport], timing: Timing) -> Efficiency:
    """The ``efficiency`` part of a result."""
    training = [report for report in reports if report.shard >= 0]
    peaks = [r.peak_flops_per_s for r in training if r.peak_flops_per_s is not None]
    peak = sum(peaks) if peaks and len(peaks) == len(training) else None
    per_sample = next((r.sample_flops for r in reports if r.sample_flops is not None), None)
    flops = None if per_sample is None else per_sample * cell.batch_size
    step_s = timing.step_s.median_s
    rate = None if flops is None or not step_s else flops / step_s
    mfu = None if rate is None or peak is None else rate / peak
    missing = next((r.efficiency_missing for r in reports if r.efficiency_missing), None)
    if mfu is None and missing is None:
        missing = "a rank ended before it had measured"
    return Efficiency(
        flops_per_step=flops,
        flops_per_s=rate,
        peak_flops_per_s=peak,
        peak_rule=PEAK_RULE.format(cell.precision),
        devices=sum(len(report.devices) for report in training),
        mfu=mfu,
        missing=missing,
    )


def energy(reports: Sequence[RankReport], timing: Timing) -> Energy:
    """The ``energy`` part of a result."""
    counted: dict[tuple[str, str], float] = {}
    for report in reports:
        for domain, joules in report.energy_j.items():
            key = (report.host, domain)
            counted[key] = max(joules, counted.get(key, 0.0))
    domains = tuple(
        EnergyDomain(host, domain.partition(" ")[2], cast("Any", domain.partition(" ")[0]), joules)
        for (host, domain), joules in sorted(counted.items())
    )
    total = sum(one.energy_j for one in domains) if domains else None
    samples = sum(epoch.samples for epoch in timing.epochs)
    wall_s = max((report.measured_s or 0.0 for report in reports), default=0.0)
    return Energy(
        energy_j=total,
        energy_per_sample_j=None if total is None or not samples else total / samples,
        mean_power_w=None if total is None or not wall_s else total / wall_s,
        covers=tuple(sorted({cast("Any", _OF[one.counted_by]) for one in domains})),
        domains=domains,
        missing=tuple(dict.fromkeys(text for r in reports for text in r.energy_missing)),
    )


def compilation(reports: Sequence[RankReport]) -> Compilation | None:
    """The ``compilation`` part of a result; None for a cell that is not compiled."""
    costs = [report.compilation for report in reports if report.compilation is not None]
    if not costs:
        return None
    return Compilation(
        compile_s=max(cost.compile_s for cost in costs),
        rule=COMPILE_RULE,
        graphs=max(cost.graphs for cost in costs),
        graphs_later=max(cost.graphs_later for cost in costs),
    )


def compilation_notes(part: Compilation | None, device_kind: str) -> list[str]:
    """What a reader of a compiled cell's numbers must know."""
    if part is None:
        return []
    notes = []
    if part.graphs_later:
        notes.append(
            f"torch compiled {part.graphs_later} more graphs after its trial steps: warm-up or "
            "measured steps hold these seconds"
        )
    if device_kind == "cpu":
        notes.append("compiled kernels allocate memory that is not seen on CPUs: no peak")
    return notes
