"""Which process of the plan this one is: from our own variables, or from srun's."""

from __future__ import annotations

import os

from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import Process

__all__ = ["own_process"]


def own_process(plan: Plan) -> Process:
    """The entry of the plan for this node and place on the node."""
    node = int(os.environ.get("DDLBENCH_NODE", os.environ.get("SLURM_NODEID", "0")))
    local = int(os.environ.get("DDLBENCH_LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
    return next(p for p in plan.processes if (p.node, p.local_rank) == (node, local))
