"""PipeDream, and model parallelism as PipeDream without input pipelining.

::

    r = (2, 1)   rank 0  F0 F2    B0 . F4    B2 . F6 ...      stage 0, replica 0
                 rank 1  F1 F3    B1 . F5    B3 . F7 ...      stage 0, replica 1
                 rank 2     F0 B0 F1 B1 F2 B2 F3 B3 ...       stage 1

There is one process for each device, on any number of nodes; ranks are numbered stage by stage.
Mini-batches are never split: each passes every stage whole, and its number in the run decides on
which replica. The executor carries out the actions of ``schedule``.

Sources: PipeDream (Narayanan et al., SOSP 2019); docs/pipelines.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from ddlbench.common.form import Natural
from ddlbench.common.quantities import counted
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import ComputeKind
from ddlbench.experiment.status import Reason
from ddlbench.planning.memory import pipeline_bytes
from ddlbench.planning.network_tables import NetworkTraits, first_unsupported
from ddlbench.planning.pipeline import (
    Pipeline,
    PipelineRun,
    PlannedSchedule,
    PlannedStage,
    Repeated,
    RunOf,
    flowing,
    why_not_in_stages,
)
from ddlbench.planning.pipeline_stages import (
    StageOptions,
    Stages,
    measured_files,
    stages_of,
    why_no_stages,
)
from ddlbench.planning.plan import (
    BlockSource,
    Options,
    Plan,
    Process,
    RuleText,
    needs_of,
    process_at,
)
from ddlbench.planning.recomputation import RecomputingOptions
from ddlbench.planning.schedules import Schedule, model_parallel, pipedream, weight_version
from ddlbench.planning.schedules.orders import warmups
from ddlbench.planning.strategy import Strategy

if TYPE_CHECKING:
    from ddlbench.planning.workload import Workload


@dataclass(frozen=True, kw_only=True)
class PipeDreamOptions(StageOptions, RecomputingOptions):
    """Options of PipeDream."""

    replicas: Annotated[str | int, RuleText(r"^(auto|[1-9]\d*(\+[1-9]\d*)*)$")] = "auto"
    """Replicas of each stage, as 2+1+1; 'auto' makes every device a stage of its own, with balance
    'profile' what the partitioner finds."""
    extra_warmup: Natural = 0
    """More mini-batches in flight on every stage but the last."""
    vertical_sync: bool = False
    """All stages use the version that the first stage used."""
    stage_all_reduce: Literal["sync", "async"] = "sync"
    """When replicas of a stage wait for the sum of their gradients: at once, or after their next
    backward pass, with weights that are older by one update."""


@dataclass(frozen=True, kw_only=True)
class PipeDreamDetails(PipeDreamOptions):
    """Plan details of PipeDream and of model parallelism, which has no option but balance.

    Args:
        stages: (first block, block after the last, replicas) of each.
        stage_ranks: ranks of each stage's replicas.
        warmups: each stage's forward passes before its first backward pass.
        weight_versions: versions that each stage holds at once.
        learning_rates: of each stage.
    """

    stages: tuple[tuple[int, int, int], ...]
    stage_ranks: tuple[tuple[int, ...], ...]
    warmups: tuple[int, ...] = ()
    weight_versions: tuple[int, ...] = ()
    learning_rates: tuple[float, ...] = ()


class StagedStrategy(Strategy):
    """Base of both strategies: each process computes one stage."""

    not_compiled: ClassVar[str] = "nothing tests that compiled passes keep to its stored weights"
    executor: ClassVar[str] = "ddlbench.strategies.pipedream.executor:PipeDreamExecutor"
    replay: ClassVar[str] = "ddlbench.strategies.pipedream.executor:replay"
    predictors: ClassVar[tuple[str, ...]] = ("pipeline-replay", "pipeline-recorded")
    preferred_predictor: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("cpu", "cuda"), "pipeline-replay"
    )
    options: ClassVar[type[Options]] = StageOptions

    def schedule(
        self, details: dict[str, Any], mini_batches: int, only_rank: int | None = None
    ) -> Schedule:
        """The schedule of ``mini_batches`` of a cell with these plan details.

        With ``only_rank`` it has the actions of that rank only.
        """
        raise NotImplementedError

    def version(self, details: dict[str, Any], schedule: Schedule, stage: int, number: int) -> int:
        """Version (number of updates) of a stage's weights for a mini-batch of the run."""
        return weight_version(schedule, stage, number)

    def replicas(self, cell: Cell) -> tuple[int, ...] | None:
        """Replicas of each stage; None if the plan must choose them."""
        return (1,) * cell.devices

    def supports(self, cell: Cell) -> str | None:
        balance = str(StageOptions.of_cell(cell).balance)
        replicas = self.replicas(cell)
        if replicas is None:
            return None
        return why_no_stages(cell, balance, replicas, self.blocks_of(cell))

    def plan(
        self, cell: Cell, source: BlockSource = None
    ) -> tuple[tuple[Process, ...], dict[str, Any]]:
        """Cut the network, with balance ``profile`` by a profile."""
        balance = str(StageOptions.of_cell(cell).balance)
        blocks = self.blocks_of(cell)
        stages, period_s = stages_of(cell, balance, self.replicas(cell), blocks, source=source)
        details = self.details_of(cell, stages)
        if period_s is not None:
            details["planned_period_s"] = period_s
        return _processes(cell, stages), details

    def measured_inputs(self, cell: Cell, site: str) -> tuple[Path, ...]:
        if StageOptions.of_cell(cell).balance != "profile":
            return ()
        partitioned = self.replicas(cell) is None and cell.devices > 1
        return measured_files(cell, site, with_links=partitioned)

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        return self.plan(cell)[0]

    def details(self, cell: Cell) -> dict[str, Any]:
        return self.plan(cell)[1]

    def pipeline_of(self, plan: Plan) -> Pipeline:
        """A stage has one mini-batch more in flight than its warm-up has."""
        details = PipeDreamDetails.of(plan)
        versions = details.weight_versions or (1,) * len(details.stages)
        waiting = details.warmups or (0,) * len(details.stages)
        under_way = tuple(waiting[process.stage] + 1 for process in plan.processes)
        return Pipeline(
            stages=tuple(
                PlannedStage(first, last, ranks, held)
                for (first, last, _), ranks, held in zip(
                    details.stages, details.stage_ranks, versions, strict=True
                )
            ),
            samples=plan.cell.batch_size,
            in_flight=under_way,
            held=under_way,
        )

    def schedule_of(self, plan: Plan, mini_batches: int) -> PlannedSchedule:
        return PlannedSchedule(self.schedule(plan.details, mini_batches))

    def why_not_network(self, traits: NetworkTraits, plan: Plan) -> Reason | None:
        """A cut needs values with a gradient; versions of weights have no hooks."""
        why = "has none of the hooks of a parameter's gradient"
        instead = "change the gradient within forward, by torch.autograd.Function"
        hooked = first_unsupported("a version of the weights", (traits.hooked, why, instead))
        return hooked or why_not_in_stages(traits, self.pipeline_of(plan))

    def pipeline_run(self, plan: Plan) -> PipelineRun:
        details, samples = PipeDreamDetails.of(plan), plan.cell.batch_size
        counts = tuple(replicas for _, _, replicas in details.stages)
        late = details.stage_all_reduce == "async"
        real_of, free = _run(type(self), counts, details.extra_warmup, late)  # type: ignore[arg-type]
        return PipelineRun(real_of, free, samples, samples, True, 1, False)

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        return pipeline_bytes(workload, plan, self.pipeline_of(plan))

    def details_of(self, cell: Cell, stages: Stages) -> dict[str, Any]:
        """Options, stages ``[first block, end, replicas]``, ranks of each stage."""
        counts = [stage.replicas for stage in stages]
        return {
            **self.option_values(cell),
            "stages": [[stage.first, stage.last, stage.replicas] for stage in stages],
            "stage_ranks": [
                list(range(sum(counts[:stage]), sum(counts[: stage + 1])))
                for stage in range(len(counts))
            ],
        }


class ModelParallelP2p(StagedStrategy):
    """One mini-batch at a time through stages on any number of nodes (DDLBench, figure 5)."""

    name: ClassVar[str] = "model-parallel-p2p"
    label: ClassVar[str] = "Model parallel (P2P)"
    colour: ClassVar[str] = "#4DBB9D"
    marker: ClassVar[str] = "X"
    family: ClassVar[str] = "model"

    def schedule(
        self, details: dict[str, Any], mini_batches: int, only_rank: int | None = None
    ) -> Schedule:
        return model_parallel(len(details["stages"]), mini_batches, only_rank)

    def most_speedup(self, cell: Cell, compute_kind: ComputeKind = "cuda") -> float:
        """One device at a time computes."""
        return 1.0


_PERIODS = ("pipeline-period", "pipeline-period-paper")


class PipeDream(StagedStrategy):
    """1F1B without a flush, weight versions, replicated stages (Narayanan et al., SOSP 2019)."""

    name: ClassVar[str] = "pipedream"
    label: ClassVar[str] = "PipeDream"
    colour: ClassVar[str] = "#E69F00"
    marker: ClassVar[str] = "v"
    family: ClassVar[str] = "pipeline"
    synchronous: ClassVar[bool] = False
    predictors = ("ddlbench-eq3", *StagedStrategy.predictors, *_PERIODS)
    recommended_by: ClassVar[Mapping[str, str]] = {"ddlbench-2020": "ddlbench-eq3"}
    options: ClassVar[type[Options]] = PipeDreamOptions

    def replicas(self, cell: Cell) -> tuple[int, ...] | None:
        options = PipeDreamOptions.of_cell(cell)
        if options.replicas != "auto":
            return tuple(int(count) for count in str(options.replicas).split("+"))
        return None if options.balance == "profile" else (1,) * cell.devices

    def is_synchronous(self, cell: Cell, details: Mapping[str, Any] | None = None) -> bool:
        """A single stage has nothing in flight: it is data parallelism."""
        return details is not None and self._is_data_parallel(details)

    def samples_per_update(self, cell: Cell, details: Mapping[str, Any]) -> int:
        """Each replica of a stage has a mini-batch of its own, and one update sums all of them."""
        return cell.batch_size * max(_counts(details), default=1)

    def ran_as(self, cell: Cell, details: Mapping[str, Any]) -> str:
        text = super().ran_as(cell, details)
        return f"data parallel, {text}" if text and self._is_data_parallel(details) else text

    @staticmethod
    def _is_data_parallel(details: Mapping[str, Any]) -> bool:
        whole = len(_counts(details)) == 1 and not details.get("extra_warmup")
        return whole and details.get("stage_all_reduce") != "async"

    def supports(self, cell: Cell) -> str | None:
        options, replicas = PipeDreamOptions.of_cell(cell), self.replicas(cell)
        if replicas is not None and sum(replicas) != cell.devices:
            return Reason(
                "uneven_groups",
                f"replicas {options.replicas} use {sum(replicas)} of "
                f"{counted(cell.devices, 'device')}; "
                f"write one number for each stage that add up to {cell.devices}",
            )
        if options.vertical_sync and options.stage_all_reduce == "async":
            return Reason(
                "conflicting_options",
                "vertical_sync asks a stage for weights that stage_all_reduce: async does not have "
                "yet; use one of the two",
            )
        return super().supports(cell)

    def schedule(
        self, details: dict[str, Any], mini_batches: int, only_rank: int | None = None
    ) -> Schedule:
        extra = int(details["extra_warmup"])
        return pipedream(_counts(details), mini_batches, extra, only_rank=only_rank)

    def version(self, details: dict[str, Any], schedule: Schedule, stage: int, number: int) -> int:
        """Version (number of updates) of a stage's weights for a mini-batch of the run.

        By default it is ``max(0, b - W_s)`` for a replica's b-th mini-batch. Asynchronous replicas
        are one update behind. With vertical sync, the weights have seen as many mini-batches as
        those of the first stage, rounded down to whole updates of this stage.
        """
        counts = _counts(details)
        if details["vertical_sync"]:
            return weight_version(schedule, 0, number) * counts[0] // counts[stage]
        if details["stage_all_reduce"] == "async" and counts[stage] > 1:
            return max(0, weight_version(schedule, stage, number) - 1)
        return weight_version(schedule, stage, number)

    def details_of(self, cell: Cell, stages: Stages) -> dict[str, Any]:
        details = super().details_of(cell, stages)
        counts = _counts(details)
        settings = {
            name: details[name] for name in ("extra_warmup", "vertical_sync", "stage_all_reduce")
        }
        return {
            **details,
            "warmups": list(warmups(counts, int(details["extra_warmup"]))),
            "weight_versions": [*_versions_held(counts, **settings)],
            "learning_rates": [cell.learning_rate * count / counts[0] for count in counts],
        }


@lru_cache(maxsize=64)
def _versions_held(counts: tuple[int, ...], **settings: int | str) -> list[int]:
    """Most versions of each stage at once: from the oldest in-flight mini-batch's to the newest."""
    strategy, details = PipeDream(), {"stages": [(0, 0, count) for count in counts], **settings}
    latest = {**details, "vertical_sync": False}
    schedule = strategy.schedule(details, 1)  # warm-ups do not depend on the length of a run
    if not settings["vertical_sync"]:
        return [waiting + 1 for waiting in schedule.warmups]
    under_way = [n * waiting for n, waiting in zip(counts, schedule.warmups, strict=True)]
    steady = 3 * max(n + more for n, more in zip(counts, under_way, strict=True))
    return [
        1
        + max(
            strategy.version(latest, schedule, stage, number)
            - strategy.version(details, schedule, stage, max(0, number - more))
            for number in range(steady)
        )
        for stage, more in enumerate(under_way)
    ]


@lru_cache(maxsize=64)
def _run(
    kind: type[StagedStrategy], counts: tuple[int, ...], extra_warmup: int, late: bool
) -> tuple[RunOf, Repeated]:
    shape = {"stages": [(0, 0, count) for count in counts], "extra_warmup": extra_warmup}
    return flowing(lambda mini_batches: kind().schedule(shape, mini_batches), counts, late)


def _counts(details: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(replicas for _, _, replicas in details.get("stages", ()))


def _processes(cell: Cell, stages: Sequence[Any]) -> tuple[Process, ...]:
    """One process for each replica; replicas of a stage take whole mini-batches round-robin."""
    processes: list[Process] = []
    for number, stage in enumerate(stages):
        needs = needs_of(number == 0, number == len(stages) - 1)
        for replica in range(stage.replicas):
            place = {"stage": number, "replica": replica, "turns": stage.replicas}
            processes.append(process_at(cell, len(processes), "stage", needs=needs, **place))
    return tuple(processes)
