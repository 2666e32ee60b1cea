"""Boxes of a step that has no schedule of stages: predicted from the profile and links of its site.

All workers do the same, so each row shows the step of one of them; servers update. A message that
travels beside computation lies below its row; one that holds up its rank lies within it.
"""

from __future__ import annotations

from pathlib import Path

from ddlbench.common.errors import ConfigError
from ddlbench.planning.plan import Plan
from ddlbench.planning.step import COMPUTE, Compute
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.prediction import DEFAULT_PREDICTOR, NO_HISTORY, CellInputs, NotPredictable
from ddlbench.predict.step_costs import ALL_TERMS, StepCosts
from ddlbench.predict.step_replay import Replay, Span
from ddlbench.report.timeline.box import Box

_KINDS = {"all_gather": "gather", "broadcast": "gather", "reduce_scatter": "scatter"}
_DRAWN = ("forward", "backward", "update")


def predicted_boxes(plan: Plan, folder: Path, first: int, steps: int) -> tuple[Box, ...]:
    """The boxes of so many steps, one after the other.

    Args:
        plan: of the cell.
        folder: of the cell, below ``<site>/cells/``; the site's profile and links are beside it.
        first: number of the first step.
        steps: how many.

    Raises:
        ConfigError: the site has no profile or links, or the strategy states no step.
    """
    inputs = _inputs(plan, folder)
    step = inputs.step
    if step.alone is not None:
        raise NotPredictable("messages of its step have no places")
    replay = Replay(step, StepCosts(inputs, step, ALL_TERMS))
    boxes = [
        _box(span, process.rank, number, first + turn, turn * replay.end_s)
        for turn in range(steps)
        for process in plan.processes
        for number, span in enumerate(replay.spans)
        if (span.lane == "server") == (process.role == "server")
        and span.end_s > span.begin_s
        and not (isinstance(span.task, Compute) and span.task.phase not in _DRAWN)
    ]
    return tuple(sorted(boxes, key=lambda box: (box.start_s, box.row)))


def _inputs(plan: Plan, folder: Path) -> CellInputs:
    """The site's files that predict the cell."""
    place = folder.resolve()
    depth = len(Path(plan.cell.id).parts)
    if not str(place).endswith(f"/cells/{plan.cell.id}"):
        raise ConfigError("the cell's folder does not lie below results/SITE/cells/")
    site_folder = place.parents[depth]
    files = Inputs(site_folder.name, site_folder.parent)
    workload, links = files.workload(plan.cell), files.links(plan.cell)
    return CellInputs(DEFAULT_PREDICTOR, workload, links, plan, plan.cell, NO_HISTORY)


def _box(span: Span, row: int, number: int, step: int, shift_s: float) -> Box:
    task = span.task
    if isinstance(task, Compute):
        kind: str = task.phase
    elif span.lane == COMPUTE:
        kind = _KINDS.get(task.operation, task.operation)
    else:
        kind = "all_reduce_bucket" if task.sums_gradients else "message"
    beside = span.lane != COMPUTE and not isinstance(task, Compute)
    return Box(
        row=row,
        kind=kind,
        stage=0,
        mini_batch=step,
        micro_batch=number if beside else None,
        start_s=shift_s + span.begin_s,
        end_s=shift_s + span.end_s,
    )
