"""What checkpoints cost a cell, and what was lost between them: a part of its result.

A checkpoint is over when the slowest rank's is. Its seconds are in no step: throughput is given
without them (``timing.samples_per_s``) and with them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result_parts import Attempt, Checkpointing, Timing
from ddlbench.runtime.rank_report import RankReport

__all__ = ["checkpointing", "notes"]


def checkpointing(
    cell: Cell,
    reports: Sequence[RankReport],
    timing: Timing,
    earlier: Sequence[Attempt],
) -> Checkpointing | None:
    """The ``checkpointing`` part of a result; None for a cell without checkpoints.

    Args:
        cell: what was measured.
        reports: one of each rank, all ok.
        timing: the result's.
        earlier: attempts that ended before this one; see :mod:`.restart`.
    """
    if not cell.checkpoint_every_steps:
        return None
    parts = [report.checkpoints for report in reports if report.checkpoints is not None]
    save_s = [max(seconds) for seconds in zip(*(p.save_s for p in parts), strict=True)]
    elapsed_s = sum(epoch.elapsed_s for epoch in timing.epochs)
    samples = sum(epoch.samples for epoch in timing.epochs)
    with_them_s = elapsed_s + sum(save_s)
    return Checkpointing(
        every_steps=cell.checkpoint_every_steps,
        save_s=tuple(save_s),
        total_s=sum(save_s),
        bytes=sum(part.bytes for part in parts),
        samples_per_s=samples / with_them_s if with_them_s > 0 else None,
        resumed=sum(attempt.kept_steps > 0 for attempt in earlier),
        restore_s=max(part.restore_s for part in parts),
        rehearsal_s=max(part.rehearsal_s for part in parts),
        lost_steps=sum(attempt.lost_steps for attempt in earlier),
        lost_s=sum(attempt.lost_s for attempt in earlier),
        attempts=tuple(earlier),
    )


def notes(cell: Cell, synchronous: bool, part: Checkpointing | None) -> list[str]:
    """What a reader of the cell's numbers must know of its checkpoints."""
    found = []
    if cell.checkpoint_every_steps and not synchronous:
        found.append(
            f"every {cell.checkpoint_every_steps} steps all that is under way is finished for a "
            "checkpoint; that wait is in the steps' times"
        )
    if part is not None and part.resumed:
        found.append(
            f"resumed {part.resumed} time(s) from a checkpoint; {part.lost_steps} step(s) "
            "were trained twice and count once"
        )
    return found
