"""The schedule of a pipeline, replayed with passes that a run of another schedule recorded.

::

    trace.json   forward 3.2 117   stage 2: seconds of each pass  --.
    plan.json    stage 2 = blocks 5 to 7                            >-- factor of blocks 5 to 7
    profile      seconds of blocks 5 to 7 at that micro-batch     --'

A pass in its pipeline runs beside other ranks, their messages and the runtime's own work; the
profile has it alone. One recorded run of another schedule at the same geometry says how much that
is. Its factors then serve any cut of the same network into stages (in the manner of dPRO and
Lumos, which replay recorded operations).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from ddlbench.experiment.spans import TRACE_FILE, spans_in
from ddlbench.planning.pipeline import Pipeline
from ddlbench.planning.plan import Plan
from ddlbench.planning.planner import kept_plan
from ddlbench.planning.workload import Workload
from ddlbench.predict.prediction import (
    BuiltInPredictor,
    CellInputs,
    Measured,
    NotPredictable,
    Prediction,
    joined,
)
from ddlbench.predict.predictors.pipeline_replay import BlockFactors, replayed

_PLAN_FILE = "plan.json"
_PASSES = ("forward", "backward", "backward_input", "backward_weight")
# What must be equal for one run to say something of the passes of another.
_ALIKE = ("dataset", "network", "nodes", "devices_per_node", "fabric", "precision", "batch_size")


class PipelineRecorded(BuiltInPredictor):
    """The schedule replayed with passes that a run of another schedule recorded."""

    name = "pipeline-recorded"
    source = "replay of the schedule, passes recorded in another one's run"

    def model(self, inputs: CellInputs) -> Prediction:
        recorded = _recorded_for(inputs)
        if recorded is None:
            raise NotPredictable(
                f"{self.name} needs a run of another pipeline of {inputs.cell.network} at "
                f"{inputs.cell.geometry}; none is measured"
            )
        replay = replayed(inputs, level=True, recorded=recorded.factors)
        return replace(
            replay, notes=joined(replay.notes, f"passes as recorded in {recorded.cell_id}")
        )


@dataclass(frozen=True)
class _Recorded:
    """What a run says of the blocks."""

    stages: int
    factors: BlockFactors
    cell_id: str


def _recorded_for(inputs: CellInputs) -> _Recorded | None:
    """What the history has recorded of another strategy at the cell's geometry; None if nothing.

    Of several runs the one with the most stages counts, as it tells blocks apart best.
    """
    runs = (
        _recorded(measured, inputs.workload)
        for measured in inputs.history
        if measured.cell.strategy != inputs.cell.strategy
        and all(getattr(measured.cell, name) == getattr(inputs.cell, name) for name in _ALIKE)
    )
    return max((run for run in runs if run), key=lambda run: run.stages, default=None)


def _recorded(measured: Measured, workload: Workload) -> _Recorded | None:
    """What a run says; None if it has no stages, or recorded no passes."""
    if measured.steps_file is None:
        return None
    plan = kept_plan(measured.steps_file.with_name(_PLAN_FILE), measured.cell)
    pipeline = plan.strategy.pipeline_of(plan) if plan else None
    if plan is None or pipeline is None:
        return None
    passes = dict(_passes_s(measured.steps_file.with_name(TRACE_FILE), plan))
    wanted = {(kind, s) for kind in ("forward", "backward") for s in range(len(pipeline.stages))}
    if not wanted <= passes.keys():
        return None
    factors = _factors(workload, pipeline, passes)
    return _Recorded(len(pipeline.stages), factors, measured.cell.id)


def _factors(
    workload: Workload, pipeline: Pipeline, passes_s: Mapping[tuple[str, int], float]
) -> BlockFactors:
    pipeline.check_blocks(len(workload.blocks))
    forward, backward = [1.0] * pipeline.blocks, [1.0] * pipeline.blocks
    for number, stage in enumerate(pipeline.stages):
        own = range(stage.first, stage.last)
        blocks = [workload.blocks[index] for index in own]
        ahead_s = sum(block.forward.at(pipeline.samples) for block in blocks)
        back_s = sum(block.backward.at(pipeline.samples) for block in blocks)
        for index in own:
            if ahead_s and back_s:
                forward[index] = passes_s["forward", number] / ahead_s
                backward[index] = passes_s["backward", number] / back_s
    return BlockFactors(tuple(forward), tuple(backward))


def _passes_s(trace: Path, plan: Plan) -> Iterator[tuple[tuple[str, int], float]]:
    spans: dict[tuple[str, int], list[float]] = defaultdict(list)
    for kind, stage, seconds in _spans(trace, plan):
        spans[kind, stage].append(seconds)
    for stage in {stage for _, stage in spans}:
        halves = [spans.get((f"backward_{half}", stage), []) for half in ("input", "weight")]
        if spans.get(("forward", stage)):
            yield ("forward", stage), median(spans["forward", stage])
        if spans.get(("backward", stage)):
            yield ("backward", stage), median(spans["backward", stage])
        elif all(halves):
            yield ("backward", stage), sum(map(median, halves))


def _spans(trace: Path, plan: Plan) -> Iterator[tuple[str, int, float]]:
    try:
        for span in spans_in(trace.read_text(encoding="utf-8")):
            if span.kind in _PASSES:
                own = plan.processes[span.rank].stage
                stage = own if span.stage is None else span.stage
                yield span.kind, stage, span.length_s
    # The report says what is wrong with the file.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return
