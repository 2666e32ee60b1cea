"""What is known to crash ranks, looked for before they start."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ddlbench.experiment.status import Reason
from ddlbench.planning.plan import Plan


def why_not_started(plan: Plan, environment: Mapping[str, str] = os.environ) -> Reason | None:
    """Why the ranks of a plan would crash, or would measure something else; None if they start.

    With the debug level DETAIL, torch 2.13 ends in a segmentation fault in DDP's constructor, and
    every collective is checked by another one.
    """
    level = environment.get("TORCH_DISTRIBUTED_DEBUG", "")
    if plan.world_size > 1 and level.upper() == "DETAIL":
        return Reason(
            "wrong_environment",
            f"the environment has TORCH_DISTRIBUTED_DEBUG={level}, which crashes DDP and slows "
            "every collective; unset it, or write INFO, and run again",
        )
    return None
