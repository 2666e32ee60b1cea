"""Parts of a result that come about between steps: checkpoints and validation.

::

    | step 1 | ... | step 20 | validate | write a checkpoint | step 21 | ...

Their seconds are in no step and no epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import Attempt, Checkpointing, Timing
from ddlbench.experiment.training import EpochAccuracy
from ddlbench.runtime.rank_report import RankReport


def checkpointing(
    cell: Cell, reports: Sequence[RankReport], timing: Timing, earlier: Sequence[Attempt]
) -> Checkpointing | None:
    """The ``checkpointing`` part of a result; None for a cell without checkpoints."""
    if not cell.checkpoint_every_steps:
        return None
    parts = [report.checkpoints for report in reports if report.checkpoints is not None]
    save_s = [max(seconds) for seconds in zip(*(p.save_s for p in parts), strict=True)]
    elapsed_s = sum(epoch.elapsed_s for epoch in timing.epochs)
    samples = sum(epoch.samples for epoch in timing.epochs)
    with_saves_s = elapsed_s + sum(save_s)
    return Checkpointing(
        every_steps=cell.checkpoint_every_steps,
        save_s=tuple(save_s),
        total_s=sum(save_s),
        bytes=sum(part.bytes for part in parts),
        samples_per_s=samples / with_saves_s if with_saves_s > 0 else None,
        resumed=sum(attempt.kept_steps > 0 for attempt in earlier),
        restore_s=max(part.restore_s for part in parts),
        rehearsal_s=max(part.rehearsal_s for part in parts),
        lost_steps=sum(attempt.lost_steps for attempt in earlier),
        lost_s=sum(attempt.lost_s for attempt in earlier),
        attempts=tuple(earlier),
    )


def checkpoint_notes(part: Checkpointing | None) -> list[str]:
    """The note on a cell that went on from a checkpoint; empty for others."""
    if part is None or not part.resumed:
        return []
    return [
        f"resumed {part.resumed} time(s) from a checkpoint; {part.lost_steps} step(s) "
        "were trained twice and count once"
    ]


def drain_notes(cell: Cell, synchronous: bool, validations: int = 0) -> list[str]:
    """Notes on work under way that checkpoints and ``validations`` of a cell wait for."""
    moments = []
    if cell.checkpoint_every_steps:
        moments.append((f"every {cell.checkpoint_every_steps} steps", "a checkpoint"))
    if validations > 1:
        moments.append(("behind every epoch", "the validation"))
    return [
        f"{when} all that is under way is finished for {what}; that wait is in the steps' times"
        for when, what in ([] if synchronous else moments)
    ]


def accuracies(reports: Sequence[RankReport], timing: Timing) -> tuple[EpochAccuracy, ...]:
    """The ``validation`` part of a result; empty for a cell without validation."""
    elapsed_s = [epoch.elapsed_s for epoch in timing.epochs]
    scores = [score for report in reports for score in report.scores]
    epochs = [score.steps // timing.steps_per_epoch for score in scores]
    return tuple(
        EpochAccuracy(
            epoch=epoch,
            training_s=sum(elapsed_s[:epoch]),
            samples=score.samples,
            correct=score.correct,
            accuracy=score.correct / score.samples,
            loss=score.loss,
        )
        for epoch, score in zip(epochs, scores, strict=True)
    )
