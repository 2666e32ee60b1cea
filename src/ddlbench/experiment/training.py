"""Parts of result.json that say how a cell trained: its beginning, losses and accuracies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

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
