"""Peak memory of a parameter server's processes.

::

    server   its part of the weights and of the momentum | a buffer of the same size for each worker
    worker   weights | buffers | gradients, all the time | the worst moment of one backward pass

A worker has no momentum, but its gradients stay from step to step, as they are sent from where they
lie: a new one is beside them until it is added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddlbench.planning.memory import backward_peak_bytes, persistent_bytes

if TYPE_CHECKING:
    from ddlbench.planning.plan import Plan
    from ddlbench.planning.workload import Workload

__all__ = ["server_and_worker_bytes"]


def server_and_worker_bytes(workload: Workload, plan: Plan) -> tuple[int, ...]:
    """Peak bytes of every rank.

    Args:
        workload: the profile.
        plan: with processes of role ``server`` and ``worker``.
    """
    cell, blocks = plan.cell, workload.blocks
    workers = sum(process.role == "worker" for process in plan.processes)
    weights = sum(block.parameter_bytes for block in blocks)
    copies = workers + (2 if cell.momentum > 0 else 1)
    of_role = {
        "server": weights / (plan.world_size - workers) * copies,
        "worker": persistent_bytes(blocks, 0.0)
        + backward_peak_bytes(blocks, cell.batch_size / workers, gradients_exist=True),
    }
    return tuple(
        round(workload.fixed_memory_bytes + of_role[process.role]) for process in plan.processes
    )
