"""Data, tensor and pipeline parallelism at once (Megatron-LM's three dimensions).

::

    replica 0   stage 0   [ rank 0  rank 1 ]   F0 F1 B0 F2 B1 ..    the ranks of a stage split its
                stage 1   [ rank 2  rank 3 ]      F0 B0 F1 B1 ..    pairs of linear layers
    replica 1   stage 0   [ rank 4  rank 5 ]   of other samples; gradients are summed over replicas
                stage 1   [ rank 6  rank 7 ]

The ranks of a stage are neighbours, as they send most: an all-reduce a pair and pass. Activations
between stages are whole on each of them, and travel from each to its peer in the next stage.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", SC 2021,
section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.experiment.status import Reason
from ddlbench.planning.network_tables import NetworkTraits, linear_pairs, why_not_in_pairs
from ddlbench.planning.pipeline import why_not_in_stages
from ddlbench.planning.plan import Options
from ddlbench.planning.step import GroupOptions
from ddlbench.planning.strategy import Strategy
from ddlbench.strategies.pipelining.descriptor import OneFOneB, PipeliningOptions
from ddlbench.strategies.tensor_parallel.descriptor import weights_with_hooks

if TYPE_CHECKING:
    from ddlbench.planning.pipeline import Pipeline, PipelineRun, PlannedSchedule
    from ddlbench.planning.plan import Plan
    from ddlbench.planning.workload import Workload


@dataclass(frozen=True, kw_only=True)
class DataTensorPipeOptions(PipeliningOptions, GroupOptions):
    """Options of pipelines, and how many devices hold a stage together."""


class DataTensorPipe(OneFOneB):
    """1F1B over stages of several devices, and replicas of all of it, by torch's device mesh."""

    name: ClassVar[str] = "data-tensor-pipe"
    label: ClassVar[str] = "Data + tensor + pipe"
    colour: ClassVar[str] = "#7A5C00"
    marker: ClassVar[str] = "$\\boxplus$"
    executor: ClassVar[str] = "ddlbench.strategies.data_tensor_pipe.executor:DataTensorPipeExecutor"
    not_compiled: ClassVar[str] = "every message within a layer ends what torch can compile"
    predictors: ClassVar[tuple[str, ...]] = ()
    preferred_predictor: ClassVar[Mapping[str, str]] = {}
    options: ClassVar[type[Options]] = DataTensorPipeOptions

    def together(self, cell: Cell) -> int:
        return DataTensorPipeOptions.of_cell(cell).group or cell.devices_per_node

    def supports(self, cell: Cell) -> str | None:
        known = linear_pairs(cell)
        if known is not None:  # a user's own network is checked when it runs
            why = why_not_in_pairs(known, cell.network, self.name, self.together(cell))
            if why is not None:
                return why
        return super().supports(cell)

    def alternatives(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Smaller groups that divide a node."""
        for size in range(cell.devices_per_node // 2, 0, -1):
            if cell.devices_per_node % size == 0:
                yield {"group": size}

    def why_not_network(self, traits: NetworkTraits, plan: Plan) -> Reason | None:
        return why_not_in_stages(traits, super().pipeline_of(plan)) or weights_with_hooks(
            traits, self.label
        )

    def pipeline_of(self, plan: Plan) -> Pipeline | None:  # type: ignore[override]
        """None: memory and times are of stages that one device holds whole."""
        return None

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        return Strategy.memory_bytes(self, workload, plan)

    def schedule_of(self, plan: Plan, mini_batches: int) -> PlannedSchedule | None:  # type: ignore[override]
        """None: a schedule is of pipelines whose stages are one device."""
        return None

    def pipeline_run(self, plan: Plan) -> PipelineRun | None:  # type: ignore[override]
        """None: no model times the messages within its passes yet."""
        return None
