"""Parts of result.json that say what a cell made of its devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddlbench.common.form import Amount, Form, Natural


@dataclass(frozen=True)
class Efficiency(Form):
    """Operations of a step, and how far they use the devices that train."""

    flops_per_step: Natural | None
    """Multiplications and additions of matrix products and convolutions that the network needs for
    a mini-batch, forward and backward, without recomputation."""
    flops_per_s: Amount | None
    """The same over the median step."""
    peak_flops_per_s: Amount | None
    """That the devices reach together: sum over the ranks that train."""
    peak_rule: str
    """How the peak was measured."""
    devices: Natural
    """Devices that train."""
    mfu: Amount | None
    """Model FLOPs utilisation: flops_per_s over peak_flops_per_s."""
    missing: str | None
    """Why a number is null."""


@dataclass(frozen=True)
class Compilation(Form):
    """Compilation of the network before warm-up, of the slowest rank; in no step's time.

    ``graphs_later`` is how many graphs were compiled in warm-up and measured steps.
    """

    compile_s: Amount
    """Seconds of the slowest rank, before warm-up; neither in a step's time nor in prepare_s."""
    rule: str
    """How they were measured."""
    graphs: Natural
    """Graphs that a rank compiled, at most."""
    graphs_later: Natural
    """Graphs that were compiled beside these, in warm-up and measured steps."""


@dataclass(frozen=True)
class EnergyDomain(Form):
    """Energy of one GPU, or of a host's processors or memory, in the measured steps."""

    host: str
    """Name of its host."""
    domain: str
    """UUID of a GPU; RAPL's domain of a host."""
    counted_by: Literal["nvml", "rapl"]
    """Whose counter: the GPU's or the processor's."""
    energy_j: Amount
    """Joules of the whole GPU, package or memory, whoever used it."""


@dataclass(frozen=True)
class Energy(Form):
    """Energy of the measured steps; None where nothing counted it, and ``missing`` says why."""

    energy_j: Amount | None
    """Of all domains, measured region, in joules; null where nothing counted."""
    energy_per_sample_j: Amount | None
    """The same over the samples of the measured epochs."""
    mean_power_w: Amount | None
    """The same over the wall seconds of the measured steps, in watts."""
    covers: tuple[Literal["gpu", "host"], ...]
    """What was counted: GPUs, processors and memory of hosts."""
    domains: tuple[EnergyDomain, ...]
    """Of each counter."""
    missing: tuple[str, ...]
    """Why GPUs or hosts have no counter."""
