"""Parts of result.json that say how a cell trained: its beginning, losses and accuracies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddlbench.experiment.json_form import SameKeys

FIRST_STEPS = 8
"""Most steps whose losses are kept; rounding has grown little until then."""


@dataclass(frozen=True, kw_only=True)
class Training(SameKeys):
    """The beginning of a cell's training, to be compared with that of one device.

    Args:
        initial_digest: of the weights and buffers that every rank began with; those of the ranks,
            joined by ``+``, where they differ; None if unknown.
        first_loss: of the mini-batch of each first step, warm-up included, the mean over the ranks
            that report losses; None for NaN and infinity. Empty where no rank does.
        replayed_loss: the same losses as a replay on one device gives them; of stale strategies.
        samples_per_pass: that one forward pass sees; a batch norm takes its statistics of these.
        batch_norm: whether a layer normalises over the samples of a pass.
        random: whether the network draws random numbers, for instance for dropout.
        settings: that torch said it has after the warm-up, by their names.
    """

    initial_digest: str | None
    first_loss: tuple[float | None, ...]
    replayed_loss: tuple[float | None, ...] = ()
    samples_per_pass: int
    batch_norm: bool
    random: bool
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Loss(SameKeys):
    """Loss of the measured steps; None if it is no number."""

    first: float | None
    last: float | None
    mean_last_epoch: float | None


@dataclass(frozen=True)
class EpochAccuracy(SameKeys):
    """What the network classified of the validation split after ``training_s`` of training."""

    epoch: int
    training_s: float
    samples: int
    correct: int
    accuracy: float
    loss: float | None
