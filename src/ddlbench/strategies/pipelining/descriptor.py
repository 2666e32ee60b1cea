"""Synchronous pipelines of torch.distributed.pipelining: one process a device, any number of nodes.

::

    replica 0   rank 0  F0 F1 F2 F3 B0 B1 B2 B3 .. |all-reduce| update      stage 0
                rank 1     F0 B0 F1 B1 F2 B2 F3 B3 |    |     | update      stage 1
    replica 1   rank 2  F0 F1 F2 F3 B0 B1 B2 B3 .. |all-reduce| update      stage 0
                rank 3     F0 B0 F1 B1 F2 B2 F3 B3 |          | update      stage 1

Each replica takes one contiguous part of the mini-batch and cuts it into micro-batches. All
schedules flush: every update uses gradients of the current weights.

Ranks are numbered replica by replica, so a pipeline's stages are on as few nodes as possible. The
executor checks that torch runs :meth:`FlushingPipeline.schedule`.

With tensor parallelism the ranks of a stage split its pairs of linear layers (Narayanan et al., SC
2021, section 3)::

    replica 0   stage 0   [ rank 0  rank 1 ]   F0 F1 B0 F2 B1 ..
                stage 1   [ rank 2  rank 3 ]      F0 B0 F1 B1 ..
    replica 1   stage 0   [ rank 4  rank 5 ]   of other samples
                stage 1   [ rank 6  rank 7 ]

These ranks are neighbours, as they send most: an all-reduce a pair and pass. Activations between
stages are whole on each of them, and travel from each to its peer in the next stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ddlbench.common.form import Count
from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.experiment.site import ComputeKind
from ddlbench.experiment.status import Reason
from ddlbench.planning.memory import pipeline_bytes
from ddlbench.planning.network_tables import NetworkTraits, linear_pairs, why_not_in_pairs
from ddlbench.planning.pipeline import (
    Pipeline,
    PipelineRun,
    PlannedSchedule,
    PlannedStage,
    Repeated,
    RunOf,
    flushing,
    repeated,
    why_not_in_stages,
)
from ddlbench.planning.pipeline_stages import StageOptions, measured_files, stages_of, why_no_stages
from ddlbench.planning.plan import BlockSource, Options, Plan, Process, Tried, needs_of, process_at
from ddlbench.planning.planner import compared_micro_batches, micro_batch_counts
from ddlbench.planning.recomputation import RecomputingOptions
from ddlbench.planning.schedules import (
    InvalidSchedule,
    Schedule,
    StageDurations,
    check,
    gpipe,
    interleaved_1f1b,
    interleaved_zero_bubble,
    one_f_one_b,
    passes_end_s,
    replicate,
    zero_bubble_v,
)
from ddlbench.planning.step import GroupOptions
from ddlbench.planning.strategy import PARADL, Strategy
from ddlbench.strategies.grouped import weights_with_hooks

if TYPE_CHECKING:
    from ddlbench.planning.workload import Workload

_HALVES = "its schedule runs halves of a backward pass apart, and a compiled pass is one piece"


@dataclass(frozen=True, kw_only=True)
class PipeliningOptions(StageOptions):
    """Options of every synchronous pipeline."""

    chunks: Annotated[Count, Tried(2, 8, 16, 32)] = 4
    """Micro-batches that a replica's part of a mini-batch is cut into."""
    replicas: Annotated[Count, Tried(2)] = 1
    """Copies of the whole pipeline that average their gradients."""


@dataclass(frozen=True, kw_only=True)
class InterleavedOptions(PipeliningOptions):
    """Options of pipelines with several stages a device."""

    stages_per_rank: Annotated[Count, Tried(4)] = 2
    """Stages of each device; stage s is on device s modulo the pipeline's devices."""


@dataclass(frozen=True, kw_only=True)
class WholePassOptions(PipeliningOptions, RecomputingOptions):
    """Options of pipelines that run a backward pass in one piece."""


@dataclass(frozen=True, kw_only=True)
class WholePassInterleavedOptions(InterleavedOptions, RecomputingOptions):
    """The same, with several stages a device."""


@dataclass(frozen=True, kw_only=True)
class PipeliningDetails(PipeliningOptions):
    """Plan details of a synchronous pipeline.

    Args:
        stages: (first block, block after the last, replicas) of each.
        stage_ranks: ranks of each stage's replicas.
        schedule: its name.
    """

    stages: tuple[tuple[int, int, int], ...]
    stage_ranks: tuple[tuple[int, ...], ...]
    schedule: str


class FlushingPipeline(Strategy):
    """Base of the pipelines: their processes, stages and schedule; memory and times are unknown."""

    family: ClassVar[str] = "pipeline"
    executor: ClassVar[str] = "ddlbench.strategies.pipelining.executor:PipelineExecutor"
    options: ClassVar[type[Options]] = PipeliningOptions

    def stages_per_rank(self, cell: Cell) -> int:
        return 1

    def together(self, cell: Cell) -> int:
        """Neighbouring devices that hold one stage together, each a part of its weights."""
        return 1

    def ranks(self, cell: Cell) -> int:
        """Ranks of one pipeline."""
        return cell.devices // (PipeliningOptions.of_cell(cell).replicas * self.together(cell))

    def one_pipeline(self, ranks: int, stages_per_rank: int, micro_batches: int) -> Schedule:
        """The schedule of one replica.

        Raises:
            InvalidSchedule: the numbers do not fit.
        """
        raise NotImplementedError

    def pipeline_schedule(self, cell: Cell) -> Schedule:
        """The schedule of one of the cell's replicas, ranks and micro-batches counted within it.

        Raises:
            InvalidSchedule: the numbers do not fit.
        """
        return _schedule_of(type(self), cell)  # type: ignore[arg-type]

    def schedule(self, cell: Cell) -> Schedule:
        """The schedule of one optimiser step, of all ranks of all replicas."""
        return replicate(self.pipeline_schedule(cell), PipeliningOptions.of_cell(cell).replicas)

    def most_speedup(self, cell: Cell, compute_kind: ComputeKind = "cuda") -> float:
        """That of its passes, replayed; p m / (m + p - 1) with a flush and one stage a device."""
        schedule = self.pipeline_schedule(cell)
        stages = schedule.num_stages
        passes = StageDurations(forward_s=[1 / stages] * stages, backward_s=[2 / stages] * stages)
        alone_s = 3 * schedule.micro_batches
        return PipeliningOptions.of_cell(cell).replicas * alone_s / passes_end_s(schedule, passes)

    def supports(self, cell: Cell) -> str | None:
        options = PipeliningOptions.of_cell(cell)
        replicas, chunks = options.replicas, options.chunks
        devices, together = cell.devices, self.together(cell)
        ranks, left = divmod(devices, replicas * together)
        if left:
            each = f" of groups of {together}" if together > 1 else ""
            return Reason(
                "uneven_groups",
                f"{devices} devices do not make {replicas} equal pipelines{each}; "
                f"write replicas that divide {devices // together}",
            )
        if cell.batch_size % (replicas * chunks):
            return Reason(
                "uneven_batch",
                f"a mini-batch of {cell.batch_size} does not divide into {chunks} micro-batches "
                f"on each of {replicas} replicas; "
                f"make batch_size a multiple of {replicas * chunks}",
            )
        stages = ranks * self.stages_per_rank(cell)
        # First, as schedules of more stages than a network has blocks take long to make.
        blocks = self.blocks_of(cell)
        if (why := why_no_stages(cell, str(options.balance), (1,) * stages, blocks)) is not None:
            return why
        try:
            self.pipeline_schedule(cell)
        except InvalidSchedule as error:
            return Reason("invalid_schedule", str(error))
        return None

    def suits(self, cell: Cell) -> bool:
        """With fewer micro-batches than devices some always wait."""
        return PipeliningOptions.of_cell(cell).chunks >= self.ranks(cell)

    def alternatives(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """As many micro-batches as stages or more; they must divide a replica's samples."""
        replicas = PipeliningOptions.of_cell(cell).replicas
        for chunks in micro_batch_counts(cell.batch_size // replicas, self.ranks(cell)):
            yield {"chunks": chunks}

    def refinements(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Other numbers of micro-batches."""
        samples = cell.batch_size // PipeliningOptions.of_cell(cell).replicas
        yield from ({"chunks": n} for n in compared_micro_batches(samples, self.ranks(cell)))

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        schedule = self.pipeline_schedule(cell)
        replicas, together = PipeliningOptions.of_cell(cell).replicas, self.together(cell)
        processes, size = [], schedule.world_size
        for rank in range(cell.devices):
            replica, place = divmod(rank // together, size)
            needs = needs_of(place in schedule.stage_ranks[0], place in schedule.stage_ranks[-1])
            shard = {"shard": replica, "num_shards": replicas}
            processes.append(
                process_at(cell, rank, "stage", stage=place, replica=replica, needs=needs, **shard)
            )
        return tuple(processes)

    def plan(
        self, cell: Cell, source: BlockSource = None
    ) -> tuple[tuple[Process, ...], dict[str, Any]]:
        """The processes, and the details of :class:`PipeliningDetails`."""
        values = self.option_values(cell)
        schedule = self.pipeline_schedule(cell)
        processes = self.placement(cell)
        replicas = PipeliningOptions.of_cell(cell).replicas
        alone = (1,) * schedule.num_stages
        micro_batch = cell.batch_size // (replicas * schedule.micro_batches)
        balance, blocks = str(values["balance"]), self.blocks_of(cell)
        stages, _ = stages_of(cell, balance, alone, blocks, source=source, samples=micro_batch)
        return processes, {
            **values,
            "schedule": schedule.name,
            "stages": [[stage.first, stage.last, replicas] for stage in stages],
            "stage_ranks": [
                [process.rank for process in processes if process.stage == place]
                for (place,) in schedule.stage_ranks
            ],
        }

    def stages_of_plan(self, plan: Plan) -> Pipeline:
        """The stages of a plan, whoever holds them."""
        details, schedule = PipeliningDetails.of(plan), self.pipeline_schedule(plan.cell)
        places = [process.stage for process in plan.processes]
        return Pipeline(
            stages=tuple(
                PlannedStage(first, last, ranks)
                for (first, last, _), ranks in zip(details.stages, details.stage_ranks, strict=True)
            ),
            samples=plan.cell.batch_size / details.replicas / details.chunks,
            in_flight=tuple(schedule.in_flight[place] for place in places),
            held=tuple(schedule.most_held[place] for place in places),
            micro_batches=details.chunks,
        )

    def micro_batches(self, plan: Plan) -> int:
        return PipeliningDetails.of(plan).chunks

    def why_not_network(self, traits: NetworkTraits, plan: Plan) -> Reason | None:
        """A cut needs values with a gradient."""
        return why_not_in_stages(traits, self.stages_of_plan(plan))

    def measured_inputs(self, cell: Cell, site: str) -> tuple[Path, ...]:
        return measured_files(cell, site) if StageOptions.of_cell(cell).balance == "profile" else ()

    def details(self, cell: Cell) -> dict[str, Any]:
        return self.plan(cell)[1]


class SynchronousPipeline(FlushingPipeline):
    """Base of the pipelines whose stages are on one device each; they differ in their schedule."""

    predictors: ClassVar[tuple[str, ...]] = ("pipeline-replay", "pipeline-recorded")
    preferred_predictor: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("cpu", "cuda"), "pipeline-replay"
    )

    def pipeline_of(self, plan: Plan) -> Pipeline:
        return self.stages_of_plan(plan)

    def schedule_of(self, plan: Plan, mini_batches: int) -> PlannedSchedule:
        details = PipeliningDetails.of(plan)
        schedule = repeated(self.schedule(plan.cell), mini_batches)
        return PlannedSchedule(schedule, details.chunks, details.replicas)

    def pipeline_run(self, plan: Plan) -> PipelineRun:
        details = PipeliningDetails.of(plan)
        chunks, pipelines = details.chunks, details.replicas
        ranks = plan.cell.devices // pipelines
        real_of, free = _run(type(self), ranks, len(details.stages) // ranks, chunks, pipelines)  # type: ignore[arg-type]
        loaded = plan.cell.batch_size / pipelines
        actions = (event.action for event in free.graph.keys)
        splits = any(action is not None and action.kind == "backward_input" for action in actions)
        return PipelineRun(real_of, free, loaded / chunks, loaded, False, pipelines, splits)

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        return pipeline_bytes(workload, plan, self.stages_of_plan(plan))


@lru_cache(maxsize=256)  # planning and predicting a cell needs the same one many times
def _schedule_of(kind: type[FlushingPipeline], cell: Cell) -> Schedule:
    strategy, chunks = kind(), PipeliningOptions.of_cell(cell).chunks
    return _proven(kind, strategy.ranks(cell), strategy.stages_per_rank(cell), chunks)  # type: ignore[arg-type]


@cache
def _proven(
    kind: type[FlushingPipeline], ranks: int, stages_per_rank: int, micro_batches: int
) -> Schedule:
    """A schedule that does not deadlock even where every send waits for its receiver."""
    made = kind().one_pipeline(ranks, stages_per_rank, micro_batches)
    try:
        check(made)
    except InvalidSchedule as error:
        raise InvalidSchedule(
            f"{kind.label} on {ranks} devices with {stages_per_rank} stages each and "
            f"{micro_batches} micro-batches comes to a stop where sends wait for their "
            "receivers, as they may over NCCL; choose another number of micro-batches (chunks)"
        ) from error
    return made


@lru_cache(maxsize=128)  # three times those of a question of every strategy
def _run(
    kind: type[SynchronousPipeline], ranks: int, stages_per_rank: int, chunks: int, pipelines: int
) -> tuple[RunOf, Repeated]:
    return flushing(kind().one_pipeline(ranks, stages_per_rank, chunks), pipelines)


class TorchGPipeSchedule(SynchronousPipeline):
    """All forward passes, then all backward passes (Huang et al. 2019), without recomputation."""

    name: ClassVar[str] = "pipe-gpipe"
    not_compiled: ClassVar[str] = ""
    label: ClassVar[str] = "GPipe (torch)"
    colour: ClassVar[str] = "#8F3F00"
    marker: ClassVar[str] = "<"
    options: ClassVar[type[Options]] = WholePassOptions
    parallelism: ClassVar[str | None] = "pipeline"
    predictors: ClassVar[tuple[str, ...]] = ("pipeline-replay", "pipeline-recorded", *PARADL)

    def one_pipeline(self, ranks: int, stages_per_rank: int, micro_batches: int) -> Schedule:
        # As in torch, the first micro-batch goes backward first.
        return gpipe(ranks, micro_batches, last_first=False)


class OneFOneB(SynchronousPipeline):
    """1F1B with a flush (Narayanan et al. 2021)."""

    name: ClassVar[str] = "pipe-1f1b"
    not_compiled: ClassVar[str] = ""
    label: ClassVar[str] = "1F1B"
    colour: ClassVar[str] = "#F0B040"
    marker: ClassVar[str] = ">"
    options: ClassVar[type[Options]] = WholePassOptions

    def one_pipeline(self, ranks: int, stages_per_rank: int, micro_batches: int) -> Schedule:
        return _one_f_one_b(ranks, micro_batches)


def _one_f_one_b(ranks: int, micro_batches: int) -> Schedule:
    if micro_batches < ranks:  # torch refuses it, too
        raise InvalidSchedule(
            f"1F1B needs at least as many micro-batches as stages, and {micro_batches} are "
            f"fewer than {ranks}; raise chunks to {ranks} or more"
        )
    return one_f_one_b(ranks, micro_batches)


class SeveralStagesPerRank(SynchronousPipeline):
    """Base of the pipelines whose devices have as many stages as an option says."""

    options: ClassVar[type[Options]] = InterleavedOptions

    def stages_per_rank(self, cell: Cell) -> int:
        return InterleavedOptions.of_cell(cell).stages_per_rank


class Interleaved1F1B(SeveralStagesPerRank):
    """1F1B on several stages a device (Narayanan et al. 2021, Megatron-LM)."""

    name: ClassVar[str] = "pipe-interleaved"
    not_compiled: ClassVar[str] = ""
    label: ClassVar[str] = "Interleaved 1F1B"
    colour: ClassVar[str] = "#B07800"
    marker: ClassVar[str] = "h"
    options: ClassVar[type[Options]] = WholePassInterleavedOptions

    def one_pipeline(self, ranks: int, stages_per_rank: int, micro_batches: int) -> Schedule:
        return interleaved_1f1b(ranks, stages_per_rank, micro_batches)


class ZeroBubble(SeveralStagesPerRank):
    """Interleaved zero bubble: weight gradients fill the bubble (Qi et al. 2024, ZB-H1)."""

    name: ClassVar[str] = "pipe-zb"
    not_compiled: ClassVar[str] = _HALVES
    label: ClassVar[str] = "Zero bubble"
    colour: ClassVar[str] = "#E8854A"
    marker: ClassVar[str] = "p"

    def one_pipeline(self, ranks: int, stages_per_rank: int, micro_batches: int) -> Schedule:
        return interleaved_zero_bubble(ranks, stages_per_rank, micro_batches)


class ZeroBubbleV(SynchronousPipeline):
    """Zero bubble with two stages a device laid out as a V (Qi et al. 2024, ZB-V)."""

    name: ClassVar[str] = "pipe-zbv"
    not_compiled: ClassVar[str] = _HALVES
    label: ClassVar[str] = "Zero bubble V"
    colour: ClassVar[str] = "#A50F15"
    marker: ClassVar[str] = "*"

    def stages_per_rank(self, cell: Cell) -> int:
        return 2

    def one_pipeline(self, ranks: int, stages_per_rank: int, micro_batches: int) -> Schedule:
        return zero_bubble_v(ranks, micro_batches)


@dataclass(frozen=True, kw_only=True)
class DataTensorPipeOptions(PipeliningOptions, GroupOptions):
    """Options of pipelines, and how many devices hold a stage together."""


class DataTensorPipe(FlushingPipeline):
    """1F1B over stages of several devices, and replicas of all of it, by torch's device mesh.

    No model has the memory and the times of stages that several devices hold together.
    """

    name: ClassVar[str] = "data-tensor-pipe"
    label: ClassVar[str] = "Data + tensor + pipe"
    colour: ClassVar[str] = "#7A5C00"
    marker: ClassVar[str] = "$\\boxplus$"
    executor: ClassVar[str] = "ddlbench.strategies.pipelining.executor:DataTensorPipeExecutor"
    not_compiled: ClassVar[str] = "every message within a layer ends what torch can compile"
    splits_layers: ClassVar[bool] = True
    splits_pairs: ClassVar[bool] = True
    options: ClassVar[type[Options]] = DataTensorPipeOptions

    def one_pipeline(self, ranks: int, stages_per_rank: int, micro_batches: int) -> Schedule:
        return _one_f_one_b(ranks, micro_batches)

    def together(self, cell: Cell) -> int:
        return DataTensorPipeOptions.of_cell(cell).group or cell.devices_per_node

    def supports(self, cell: Cell) -> str | None:
        why = why_not_in_pairs(linear_pairs(cell), cell, self.together(cell))
        return why or super().supports(cell)

    def why_not_layers(self, traits: NetworkTraits, cell: Cell) -> Reason | None:
        return why_not_in_pairs(traits.pairs, cell, self.together(cell))

    def alternatives(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Smaller groups that divide a node."""
        for size in range(cell.devices_per_node // 2, 0, -1):
            if cell.devices_per_node % size == 0:
                yield {"group": size}

    def why_not_network(self, traits: NetworkTraits, plan: Plan) -> Reason | None:
        return super().why_not_network(traits, plan) or weights_with_hooks(traits, self.label)
