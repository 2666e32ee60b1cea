"""PipeDream's own prediction: the period that its partitioner's cost model gives a plan's stages.

::

    released   T = max over stages s of (t_s + 4 (r_s - 1) w_s / (B r_s)) / r_s
                     and, behind a cut, 2 a_in / (B r_s),  2 a_out / (B r_s)
    paper      T = max over stages s of max(t_s, 2 (r_s - 1) w_s / B) / r_s,  and cuts of 2 a / B

t_s is the profile's forward and backward time of the stage's blocks for a whole mini-batch, B the
bandwidth of the links that were measured, between nodes where a stage or cut spans several. Two
predictors: ``pipeline-period`` has the released optimizer's terms, which plan the cells with
``balance: profile``; ``pipeline-period-paper`` those of the paper.

Source: PipeDream (Narayanan et al., SOSP 2019), section 3.1, and its release; the terms are in
:mod:`ddlbench.planning.partition.cost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.partition import Chain, Node, Stage
from ddlbench.planning.partition.stages import PlacedStage, StageLinks, period_of
from ddlbench.planning.pipeline import Pipeline
from ddlbench.planning.pipeline_stages import Reach, bandwidth_of
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.links import LinkTable, Place
from ddlbench.predict.prediction import (
    NO_HISTORY,
    History,
    NotPredictable,
    Prediction,
    Predictor,
    joined,
    links_or_error,
)

_NO_LINKS = StageLinks(float("inf"), float("inf"))
_LIMITS = (
    "no latency, no waiting for replicas or receives",
    "no data loading, no optimiser",
    "devices do not slow each other down",
)


class PipelinePeriod(Predictor):
    """The released optimizer's period of the plan's stages."""

    name: ClassVar[str] = "pipeline-period"
    source: ClassVar[str] = "PipeDream's partitioner as released, measured links"
    model: ClassVar[str] = "released"

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module."""
        pipeline = strategy_of(cell.strategy).pipeline_of(plan)
        if pipeline is None:
            raise NotPredictable(f"the plan of {cell.strategy} holds no stages")
        pipeline.check_blocks(len(workload.blocks))
        chain, stages = _chain(workload, cell.batch_size), _placed(plan, pipeline)
        speeds = _NO_LINKS
        if plan.world_size > 1:
            speeds = _speeds(links_or_error(links, self.name), plan)
        period_s, sent_s = period_of(chain, stages, speeds, self.model)
        free_s, _ = period_of(chain, stages, _NO_LINKS, self.model)
        compute_s = float(chain.time_s[0, -1]) / plan.world_size
        return Prediction(
            self.name,
            compute_s=compute_s,
            communication_s=sent_s,
            exposed_communication_s=period_s - free_s,
            bubble_s=free_s - compute_s,
            limits=_LIMITS,
            notes=joined(_outside(workload, cell.batch_size)),
        )


class PipelinePeriodPaper(PipelinePeriod):
    """The paper's period of the plan's stages."""

    name: ClassVar[str] = "pipeline-period-paper"
    source: ClassVar[str] = "PipeDream, section 3.1, measured links"
    model: ClassVar[str] = "paper"


def _chain(workload: Workload, samples: int) -> Chain:
    return Chain(
        tuple(
            Node(
                name=block.name,
                time_s=block.forward.at(samples) + block.backward.at(samples),
                output_bytes=block.output_bytes * samples,
                saved_bytes=block.saved_bytes * samples,
                parameter_bytes=float(block.parameter_bytes),
            )
            for block in workload.blocks
        )
    )


def _placed(plan: Plan, pipeline: Pipeline) -> list[PlacedStage]:
    nodes = [process.node for process in plan.processes]
    return [
        PlacedStage(
            Stage(stage.first, stage.last, len(stage.ranks)),
            tuple(nodes[rank] for rank in stage.ranks),
        )
        for stage in pipeline.stages
    ]


def _speeds(table: LinkTable, plan: Plan) -> StageLinks:
    """Bandwidths of the levels that the plan's ranks span, as the partitioner reads them."""
    places: list[Place] = [(p.node, p.devices[0]) for p in plan.processes]
    nodes = {node for node, _ in places}
    own = [p for p in places if p[0] == places[0][0]]
    within = _bandwidth(table, plan, own[:2]) if len(own) > 1 else float("inf")
    if len(nodes) == 1:
        return StageLinks(within, float("inf"))
    apart = [places[0], next(place for place in places if place[0] != places[0][0])]
    return StageLinks(within, _bandwidth(table, plan, apart))


def _bandwidth(table: LinkTable, plan: Plan, ends: Sequence[Place]) -> float:
    if table.links.fabric == plan.cell.fabric:
        level: Reach = "node" if ends[0][0] == ends[1][0] else "network"
        return bandwidth_of(table.links, level, table.where)
    # Links that are computed from a fabric's condition hold the matrices of another one.
    return table.hop("transport", ends[0], ends[1])[0].bandwidth_bytes_per_s


def _outside(workload: Workload, samples: int) -> str | None:
    if any(block.forward.extrapolates(samples) for block in workload.blocks):
        return f"times of blocks at {samples} samples are extrapolated"
    return None
