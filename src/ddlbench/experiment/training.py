"""Parts of result.json: how a cell trained, and what it made of its devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import MaxLen

from ddlbench.common.form import Amount, Count, Form, Natural, Share

FIRST_STEPS = 8
"""Most steps whose losses are kept; rounding has grown little until then."""


@dataclass(frozen=True, kw_only=True)
class Training(Form):
    """The beginning of a cell's training, to be compared with that of one device."""

    initial_digest: str | None
    """Of the weights and buffers that every rank began with; several, joined by +, where ranks
    differ; null if unknown."""
    first_loss: Annotated[tuple[float | None, ...], MaxLen(8)]
    """Of the mini-batch of each of the first 8 steps, warm-up included; null for NaN and infinity;
    empty where no rank reports losses."""
    replayed_loss: tuple[float | None, ...] = ()
    """The same losses as a replay on one device gives them; of stale strategies, and empty
    elsewhere."""
    samples_per_pass: Count
    """That one forward pass sees; a batch norm takes its statistics of these."""
    batch_norm: bool
    """A layer normalises over the samples of a pass."""
    random: bool
    """The network draws random numbers, for instance for dropout."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What torch says of its settings after the warm-up (threads, determinism, default type,
    precision, cuDNN)."""


@dataclass(frozen=True)
class Loss(Form):
    """Loss of the measured steps; None if it is no number."""

    first: float | None
    """Of the first step."""
    last: float | None
    """Of the last step."""
    mean_last_epoch: float | None
    """Mean over the last epoch."""


@dataclass(frozen=True)
class EpochAccuracy(Form):
    """What the network classified of the validation split after ``training_s`` of training."""

    epoch: Count
    """Measured epochs that were done."""
    training_s: Amount
    """Sum of these epochs' `elapsed_s`: without warm-up, validation, checkpoints and staging."""
    samples: Count
    """Images of the validation split."""
    correct: Natural
    """Of these, with the highest output at their label."""
    accuracy: Share
    """Correct over samples."""
    loss: float | None
    """Mean loss over these images; null if it is no number."""


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
    counted_by: Literal["nvml", "amdsmi", "rapl"]
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
