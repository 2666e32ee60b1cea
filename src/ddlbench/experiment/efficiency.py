"""Parts of result.json that say what a cell made of its devices."""

from __future__ import annotations

from dataclasses import dataclass

from ddlbench.experiment.json_form import SameKeys


@dataclass(frozen=True)
class Efficiency(SameKeys):
    """Operations of a step, and how far they use the devices that train.

    Args:
        flops_per_step: that the network needs for a mini-batch, without recomputation.
        flops_per_s: the same over the median step.
        peak_flops_per_s: that the devices reach together.
        peak_rule: how that was measured.
        devices: that train.
        mfu: model FLOPs utilisation, ``flops_per_s`` over ``peak_flops_per_s``.
        missing: why a number is None; else None.
    """

    flops_per_step: int | None
    flops_per_s: float | None
    peak_flops_per_s: float | None
    peak_rule: str
    devices: int
    mfu: float | None
    missing: str | None


@dataclass(frozen=True)
class Compilation(SameKeys):
    """Compilation of the network before warm-up, of the slowest rank; in no step's time.

    ``graphs_later`` is how many graphs were compiled in warm-up and measured steps.
    """

    compile_s: float
    rule: str
    graphs: int
    graphs_later: int


@dataclass(frozen=True)
class EnergyDomain(SameKeys):
    """Energy of one GPU, or of a host's processors or memory, in the measured steps."""

    host: str
    domain: str
    counted_by: str
    energy_j: float


@dataclass(frozen=True)
class Energy(SameKeys):
    """Energy of the measured steps; None where nothing counted it, and ``missing`` says why."""

    energy_j: float | None
    energy_per_sample_j: float | None
    mean_power_w: float | None
    covers: tuple[str, ...]
    domains: tuple[EnergyDomain, ...]
    missing: tuple[str, ...]
