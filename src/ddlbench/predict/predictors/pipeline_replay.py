"""The schedule of a pipeline, replayed event by event with measured or recorded blocks and links.

::

    end(event) = max over what must have ended before it  +  its duration
    T          = what each further mini-batch adds to the end, in the long run

    pass       k * sum over the stage's blocks of t_f(b), t_b(b), or the halves of t_b(b), b samples
    update     k * t_opt * (weights of the stage / weights)
    load       k * t_load, before the first pass of a step or in each pass of PipeDream's stage 0
    message    L + b A / BW of the hop that it takes, one after the other on a channel; it leaves
               when it is sent and a notice (L) has arrived that its receive is posted; all that
               leaves a node, or enters one, takes turns on its link
    end        of a message: what it costs its ranks of the processor (ddlbench only, and on CPUs);
               so much less of the message is on its way; and the notice waits until the sender's
               thread gets the core on which the sender computes, as the links measured
    all-reduce of a stage's replicas: measured, in buckets of 25 MiB, when the last replica is ready

The schedules are those that the runtime executes (:mod:`ddlbench.planning.schedules`). So are the
moments at which receives are posted and sends are waited for
(:mod:`ddlbench.planning.schedules.events`): torch's GPipe posts a receive where it needs it, so no
message hides behind a pass of its receiver; its 1F1B also waits for sends.

k is the slow-down that the profile measured for as many replicas on a node as compute at the same
time on average: P devices of a node times their share of work in the same replay without messages.
For one mini-batch and the mean rank:

    compute    k * work / ranks
    bubble     k * T without messages - compute         (unequal stages count as bubble)
    exposed    T - k * T without messages

Without messages, on equal stages: GPipe and 1F1B (m + p - 1)(t_f + t_b), interleaved 1F1B
(m + (p - 1) / v)(t_f + t_b) with t of all v stages of a device, PipeDream the longest stage.

Sources: the schedules' own (GPipe: Huang et al. 2019; 1F1B, interleaving: Narayanan et al. 2021;
zero bubble: Qi et al. 2024; PipeDream: Narayanan et al. 2019). The replay is this project's.

torchgpipe's one process drives all partitions of a node::

    cores       F F F F ... B B B B            partitions and micro-batches, one after the other
    emulated    device 0   F0 F1       R0 B0 R1 B1                          R: recomputation
    devices     device 1      F0 F1 B1 R0 B0

    T = what is done once a step + the end of the last pass

What is done once are loading and the optimiser, on the host. On GPUs copies between devices take
time that nothing measured, so neither model speaks of them.

Sources: torchgpipe 0.0.7; Huang et al. 2019. The models are this project's.

``pipeline-recorded`` replays a schedule with passes that a run of another schedule recorded::

    trace.json   forward 3.2 117   stage 2: seconds of each pass  --.
    plan.json    stage 2 = blocks 5 to 7                            >-- factor of blocks 5 to 7
    profile      seconds of blocks 5 to 7 at that micro-batch     --'

A pass in its pipeline runs beside other ranks, their messages and the runtime's own work; the
profile has it alone. One recorded run of another schedule at the same geometry says how much that
is. Its factors then serve any cut of the same network into stages (in the manner of dPRO and
Lumos, which replay recorded operations).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import mul
from pathlib import Path
from statistics import median

from ddlbench.common.statistics import grouped
from ddlbench.experiment.cell import OF_A_STEP
from ddlbench.experiment.spans import TRACE_FILE, spans_in
from ddlbench.planning.pipeline import Pipeline, PipelineRun
from ddlbench.planning.plan import Plan
from ddlbench.planning.planner import kept_plan
from ddlbench.planning.schedules import Event, EventGraph, StageDurations, replay
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Block, Step, Workload
from ddlbench.predict.prediction import (
    BuiltInPredictor,
    CellInputs,
    Measured,
    NotPredictable,
    Prediction,
    joined,
)
from ddlbench.predict.predictors.pipeline_links import PipelineLinks


@dataclass(frozen=True)
class StageTimes:
    """Seconds of passes, of the update and of loading.

    Args:
        passes_s: of one micro- or mini-batch, one number per stage, by kind of pass; with the two
            halves of the backward pass, for schedules that split it, and the optimiser's update.
        load_s: a replica's share of a mini-batch, from the dataset to the first stage.
        notes: what was extrapolated.
    """

    passes_s: Mapping[str, Sequence[float]]
    load_s: float
    notes: tuple[str, ...]

    def of(self, kind: str, stage: int) -> float:
        """Seconds of a pass or update of a stage; 0 of a message or all-reduce."""
        return self.passes_s[kind][stage] if kind in self.passes_s else 0.0


@dataclass(frozen=True)
class BlockFactors:
    """Factors on a profile's times of each block, in the order of the network."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]


def stage_times(
    workload: Workload, plan: Plan, samples: float, loaded: float, factors: BlockFactors
) -> StageTimes:
    """Times of a plan's stages.

    A forward pass is of ``samples``; the first stage loads ``loaded`` of them at a time.

    Raises:
        ConfigError: the plan cuts a network of other blocks than the profile's.
    """
    stages = strategy_of(plan.cell.strategy).stage_blocks(workload, plan)
    step = workload.step(loaded)
    weights = [sum(block.parameter_bytes for block in blocks) for blocks in stages]
    whole = sum(weights) or 1
    ahead_s, back_s = workload.passes_s(samples)
    forward = _of_stages(map(mul, factors.forward, ahead_s), stages)
    backward = _of_stages(map(mul, factors.backward, back_s), stages)
    halves = [
        (
            sum(block.input_share * s for block, s in zip(blocks, seconds, strict=True)),
            sum(block.weight_share * s for block, s in zip(blocks, seconds, strict=True)),
        )
        for blocks, seconds in zip(stages, backward, strict=True)
    ]
    # The first stage sends no gradient of its input: it computes all in the second half.
    halves[0] = (0.0, sum(backward[0]))
    input_s, weight_s = zip(*halves, strict=True)
    return StageTimes(
        passes_s={
            "forward": [*map(sum, forward)],
            "backward": [*map(sum, backward)],
            "backward_input": input_s,
            "backward_weight": weight_s,
            "update": [step.optimizer_s * size / whole for size in weights],
        },
        load_s=step.load_s,
        notes=joined(workload.extrapolated(samples), step.remark),
    )


def _of_stages(blocks_s: Iterator[float], stages: Sequence[Sequence[Block]]) -> list[list[float]]:
    return [[*islice(blocks_s, len(blocks))] for blocks in stages]


def as_profiled(workload: Workload) -> BlockFactors:
    """Blocks take as long as they were timed."""
    ones = (1.0,) * len(workload.blocks)
    return BlockFactors(ones, ones)


def as_whole_steps(workload: Workload, samples: float) -> BlockFactors:
    """Blocks give the shares only; their sum is that of whole steps of so many samples.

    A block that was timed between two cuts costs more than within a step. 1 if no whole step was
    measured.
    """
    whole, count = workload.step(samples), len(workload.blocks)
    forward_s, backward_s = map(sum, workload.passes_s(samples))
    if not (whole.forward_s and whole.backward_s and forward_s and backward_s):
        return as_profiled(workload)
    ahead, back = whole.forward_s / forward_s, whole.backward_s / backward_s
    return BlockFactors((ahead,) * count, (back,) * count)


_LIMITS = (
    "devices of a node share one network card if the links do not tell; messages slow no "
    "computation down",
    "labels and the loss cost nothing",
)
_SPLIT_LIMIT = "the halves of a backward pass are shares of the whole, not measured"


class PipelineReplay(BuiltInPredictor):
    """The schedule replayed with the times of the profile and the links."""

    name = "pipeline-replay"
    source = "replay of the schedule, measured blocks and links"

    def model(self, inputs: CellInputs) -> Prediction:
        return replayed(inputs)


def replayed(
    inputs: CellInputs, *, level: bool = False, recorded: BlockFactors | None = None
) -> Prediction:
    """The schedule of a plan with stages, replayed.

    Args:
        inputs: of a cell whose strategy has a schedule.
        level: block times add up to whole steps, and replicas never make each other faster.
        recorded: factors on block times that were seen beside other ranks, so that no slow-down of
            replicas is added.

    Raises:
        NotPredictable: the plan holds no stages.
    """
    workload, plan, strategy = inputs.workload, inputs.plan, inputs.strategy
    run, pipeline = strategy.pipeline_run(plan), strategy.pipeline_of(plan)
    if run is None or pipeline is None:
        raise NotPredictable(f"the plan of {inputs.cell.strategy} holds no stages to replay")
    timed = as_whole_steps(workload, run.samples) if level else as_profiled(workload)
    factors = recorded or timed
    times = stage_times(workload, plan, run.samples, run.loaded, factors)
    compute = _Compute(run, times)
    work_s = compute.work_s() / plan.world_size
    free_s = run.free.period_s(compute.costs_s(run.free.graph))
    busiest = max(Counter(process.node for process in plan.processes).values())
    slowdown = workload.slowdown(max(1.0, busiest * work_s / free_s)) if free_s else 1.0
    slowdown = max(1.0, slowdown) if level else slowdown
    slowdown = 1.0 if recorded else slowdown
    step_s, sent_s = slowdown * free_s, 0.0
    remarks: tuple[str, ...] = ()
    if plan.world_size > 1:
        stage_blocks = strategy.stage_blocks(workload, plan)
        ends = level and workload.device_kind == "cpu"  # a GPU's queue hides what its host does
        links = PipelineLinks(inputs.links, plan, pipeline, stage_blocks, workload, ends=ends)
        step_s, sent_s = _with_links(run, compute, slowdown, links, workload.device_kind)
        remarks = links.remarks
    exposed_s = max(0.0, step_s - slowdown * free_s)
    compute_s = slowdown * work_s
    return Prediction(
        inputs.predictor,
        compute_s=compute_s,
        communication_s=max(sent_s, exposed_s),  # notices delay, too, and are no messages
        exposed_communication_s=exposed_s,
        bubble_s=step_s - exposed_s - compute_s,
        limits=(*_LIMITS, _SPLIT_LIMIT) if run.splits and not workload.halves_timed else _LIMITS,
        notes=joined(times.notes, remarks),
    )


@dataclass(frozen=True)
class _Compute:
    run: PipelineRun
    times: StageTimes

    def of(self, event: Event) -> float:
        """Seconds of an event; 0 of communication."""
        if event.role == "start":
            graph = self.run.free.graph
            first = event.rank % len(graph.lines) in graph.first_ranks
            return self.times.load_s if first and not self.run.loads_each_pass else 0.0
        if event.role != "action" or event.action is None:
            return 0.0
        kind, stage = event.action.kind, event.action.stage
        loading = self.run.loads_each_pass and kind == "forward" and stage == 0
        return self.times.of(kind, stage) + (self.times.load_s if loading else 0.0)

    def costs_s(self, graph: EventGraph) -> list[float]:
        return [self.of(key) for key in graph.keys]

    def work_s(self) -> float:
        """Seconds of work of all ranks, per mini-batch."""
        graph = self.run.free.graph
        whole = sum(
            count * self.of(key) for key, count in zip(graph.keys, graph.key_counts, strict=True)
        )
        return whole * self.run.pipelines / self.run.free.mini_batches


def _with_links(
    run: PipelineRun, compute: _Compute, slowdown: float, links: PipelineLinks, device_kind: str
) -> tuple[float, float]:
    """Seconds per mini-batch in the long run, and seconds of its messages and all-reduces."""
    ranks = len(run.free.graph.lines)
    kinds = links.kinds(run.real_of(1).graph.keys, ranks, device_kind)
    real = run.real_of(len(kinds.first))
    keys = kinds.originals(real.graph.keys)
    sent, holds = links.times_s(keys, device_kind)
    costs = [slowdown * compute.of(key) + s for key, s in zip(keys, sent, strict=True)]
    shared = Counter(link for held in holds if held for link in held.links)
    crowded = any(count > 1 for count in shared.values())
    period_s = real.period_s(costs, holds if crowded else None)
    return period_s, kinds.sent_s(real.graph, sent) / real.mini_batches


def _once_s(whole: Step) -> float:
    return max(0.0, whole.step_s - whole.forward_s - whole.backward_s)


class TorchgpipeTurns(BuiltInPredictor):
    """The passes of all micro-batches, one after the other."""

    name = "torchgpipe-turns"
    source = "torchgpipe's one thread for all CPU partitions"

    def model(self, inputs: CellInputs) -> Prediction:
        workload, strategy, batch_size = inputs.workload, inputs.strategy, inputs.cell.batch_size
        if workload.compute_kind != "cpu":
            raise NotPredictable(
                f"{self.name} is of cores of a CPU; partitions on other devices compute at once"
            )
        micro_batches = strategy.micro_batches(inputs.plan)
        whole, micro = workload.step(batch_size), workload.step(batch_size / micro_batches)
        once_s = _once_s(whole)
        passes_s = micro_batches * (micro.forward_s + micro.backward_s)
        recomputed = strategy.recomputed_micro_batches(inputs.plan)
        step_s = once_s + passes_s + recomputed * micro.forward_s
        return Prediction(
            self.name,
            compute_s=step_s,
            limits=(
                "partitions have one core: a process that may use the shares of all its devices is "
                "faster",
                "cutting a mini-batch into micro-batches and joining their outputs costs nothing",
            ),
            notes=joined(whole.remark, micro.remark),
            # The relative uncertainty is that of a step of one micro-batch.
            interval_s=micro.interval(step_s / micro.step_s, 0.0),
        )


class TorchgpipeReplay(BuiltInPredictor):
    """The schedule of a step, replayed with the measured blocks of each partition."""

    name = "torchgpipe-replay"
    source = "replay of torchgpipe's schedule on emulated devices"

    def model(self, inputs: CellInputs) -> Prediction:
        workload, plan, strategy = inputs.workload, inputs.plan, inputs.strategy
        if workload.compute_kind != "emulated":
            raise NotPredictable(
                f"{self.name} is of emulated accelerators; partitions on CPUs take turns, and "
                "copies between GPUs take time"
            )
        planned = strategy.schedule_of(plan, 1)
        if planned is None:
            raise NotPredictable(f"{inputs.cell.strategy} has no schedule to replay")
        batch_size = inputs.cell.batch_size
        samples = batch_size / strategy.micro_batches(plan)
        whole, micro = workload.step(batch_size), workload.step(samples)
        factors = as_whole_steps(workload, samples)
        times = stage_times(workload, plan, samples, batch_size, factors)
        passes = StageDurations(
            forward_s=times.passes_s["forward"], backward_s=times.passes_s["backward"]
        )
        timeline = replay(planned.schedule, passes)
        devices = planned.schedule.world_size
        busy_s = sum(map(timeline.busy_s, range(devices))) / devices
        compute_s, bubble_s = _once_s(whole) + busy_s, timeline.end_s - busy_s
        return Prediction(
            self.name,
            compute_s=compute_s,
            bubble_s=bubble_s,
            limits=(
                "the host queues work faster than devices do it",
                "a block takes as long as where its process waits for it",
                "copies between partitions cost nothing",
            ),
            notes=joined(whole.remark, times.notes),
            # The relative uncertainty is that of a step of one micro-batch.
            interval_s=micro.interval((compute_s + bubble_s) / micro.step_s, 0.0),
        )


_PLAN_FILE = "plan.json"
_PASSES = ("forward", "backward", "backward_input", "backward_weight")
# What must be equal for one run to say something of the passes of another.
_ALIKE = tuple(name for name in OF_A_STEP if name not in ("strategy", "options"))


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
        places = range(stage.first, stage.last)
        blocks = [workload.blocks[index] for index in places]
        ahead_s = sum(block.forward.at(pipeline.samples) for block in blocks)
        back_s = sum(block.backward.at(pipeline.samples) for block in blocks)
        for index in places:
            if ahead_s and back_s:
                forward[index] = passes_s["forward", number] / ahead_s
                backward[index] = passes_s["backward", number] / back_s
    return BlockFactors(tuple(forward), tuple(backward))


def _passes_s(trace: Path, plan: Plan) -> Iterator[tuple[tuple[str, int], float]]:
    spans = grouped(((kind, stage), seconds) for kind, stage, seconds in _spans(trace, plan))
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
                rank_stage = plan.processes[span.rank].stage
                stage = rank_stage if span.stage is None else span.stage
                yield span.kind, stage, span.length_s
    # The report says what is wrong with the file.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return
