"""Peak memory of a parameter server's processes.

::

    server   its part of the weights and of the momentum | a buffer of the same size for each worker
    worker   weights | buffers | gradients, all the time | the worst moment of one backward pass

A worker has no momentum, but its gradients stay from step to step, as they are sent from where they
lie: a new one is beside them until it is added.
"""

from __future__ import annotations

from collections.abc import Callable

from ddlbench.planning.plan import Plan
from ddlbench.predict.workload import Workload

__all__ = ["served_bytes"]


def served_bytes(
    workload: Workload,
    plan: Plan,
    persistent: Callable[..., float],
    backward_peak: Callable[..., float],
) -> tuple[int, ...]:
    """Peak bytes of every rank.

    Args:
        workload: the profile.
        plan: with processes of role ``server`` and ``worker``.
        persistent: bytes of weights, buffers and momentum of blocks.
        backward_peak: bytes at the worst moment of one backward pass.
    """
    cell, blocks = plan.cell, workload.blocks
    workers = sum(process.role == "worker" for process in plan.processes)
    weights = sum(block.parameter_bytes for block in blocks)
    copies = workers + (2 if cell.momentum > 0 else 1)
    found = {
        "server": weights / (plan.world_size - workers) * copies,
        "worker": persistent(blocks, 0.0)
        + backward_peak(blocks, cell.batch_size / workers, gradients_exist=True),
    }
    return tuple(
        round(workload.fixed_memory_bytes + found[process.role]) for process in plan.processes
    )
