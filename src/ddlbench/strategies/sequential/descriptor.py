"""The baseline: one device, no communication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason
from ddlbench.planning.data_parallel import data_parallel_placement
from ddlbench.planning.memory import data_parallel_bytes
from ddlbench.planning.plan import Plan, Process
from ddlbench.planning.strategy import Strategy

if TYPE_CHECKING:
    from ddlbench.planning.workload import Workload


class Sequential(Strategy):
    """Plain training on one device: the base of every speed-up."""

    name: ClassVar[str] = "sequential"
    label: ClassVar[str] = "Sequential"
    colour: ClassVar[str] = "#000000"
    marker: ClassVar[str] = "o"
    family: ClassVar[str] = "baseline"
    not_compiled: ClassVar[str] = ""
    executor: ClassVar[str] = "ddlbench.strategies.executor:Executor"
    scales_loss: ClassVar[bool] = True
    predictors: ClassVar[tuple[str, ...]] = ("sequential",)
    preferred_predictor: ClassVar[Mapping[str, str]] = {"cpu": "sequential", "cuda": "sequential"}
    recommended_by: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("thesis", "ddlbench-2020"), "sequential"
    )

    def supports(self, cell: Cell) -> str | None:
        if cell.devices == 1:
            return None
        return Reason("one_device_only", "sequential training uses one device; write 1x1")

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        return data_parallel_placement(cell)

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        return data_parallel_bytes(workload, plan)
