"""Peak memory of torchgpipe's partitions: what each micro-batch in flight keeps.

::

    never          everything that autograd saves
    except_last    its input only, but everything for the last micro-batch
    always         its input only; one is recomputed at a time

Source: recomputation as in Huang et al. 2019, section 2.3, and as torchgpipe does it (Kim et al.
2020, section 3.2.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ddlbench.planning.memory import backward_peak_bytes, persistent_bytes

if TYPE_CHECKING:
    from ddlbench.experiment.cell import Cell
    from ddlbench.planning.workload import Block, Workload

__all__ = ["partition_bytes"]


def partition_bytes(
    workload: Workload,
    cell: Cell,
    partitions: Sequence[Sequence[Block]],
    chunks: int,
    checkpoint: str,
) -> tuple[int, ...]:
    """Peak bytes of every partition.

    Args:
        workload: the profile.
        cell: whose mini-batch is cut.
        partitions: blocks of each device.
        chunks: micro-batches of a mini-batch.
        checkpoint: "always", "except_last" or "never".
    """
    micro_batch = cell.batch_size / chunks
    peaks = []
    for blocks in partitions:
        everything = micro_batch * sum(block.saved_bytes for block in blocks)
        boundary = micro_batch * blocks[0].input_bytes
        # What micro-batches keep that wait while the first, then the second, goes backward.
        waiting = everything if checkpoint == "never" else boundary
        first = (chunks - 1) * waiting + backward_peak_bytes(blocks, micro_batch)
        if checkpoint == "always":
            first += boundary
        peak = first
        if chunks > 1:
            recomputed = boundary if checkpoint != "never" else 0.0
            second = (chunks - 2) * waiting + recomputed
            second += backward_peak_bytes(blocks, micro_batch, gradients_exist=True)
            peak = max(first, second)
        persistent = persistent_bytes(blocks, cell.momentum)
        peaks.append(round(workload.fixed_memory_bytes + persistent + peak))
    return tuple(peaks)
