"""PipeDream's own prediction of a plan's stages.

Its partitioner's cost model is applied to the stages of a plan.

::

    released   T = max over stages s of (t_s + 4 (r_s - 1) w_s / (B r_s)) / r_s
                     and, after a cut,  2 a_in / (B r_s),  2 a_out / (B r_s)
    paper      T = max over stages s of max(t_s, 2 (r_s - 1) w_s / B) / r_s,  and cuts of 2 a / B

t_s is the profile's forward and backward time of the stage's blocks for a whole mini-batch. B is
the bandwidth of the measured links, between nodes if a stage or cut spans several nodes. Two
predictors: ``pipeline-period`` has the terms of the released optimizer, which also plans the cells
with ``balance: profile``; ``pipeline-period-paper`` has those of the paper.

Source: PipeDream (Narayanan et al., SOSP 2019), section 3.1, and its release; the terms are in
:mod:`ddlbench.planning.partition.programme`.
"""

from __future__ import annotations

from typing import ClassVar

from ddlbench.planning.partition.profiles import chain_of_blocks
from ddlbench.planning.partition.stages import (
    PlacedStage,
    Reach,
    StageLinks,
    bandwidth_of,
    period_of,
)
from ddlbench.planning.pipeline import Stage
from ddlbench.planning.plan import Plan
from ddlbench.predict.links import LinkTable, Place, places_of
from ddlbench.predict.prediction import (
    BuiltInPredictor,
    CellInputs,
    NotPredictable,
    Prediction,
    joined,
)

_NO_LINKS = StageLinks(float("inf"), float("inf"))


class PipelinePeriod(BuiltInPredictor):
    """The released optimizer's period of the plan's stages."""

    name = "pipeline-period"
    source = "PipeDream's partitioner as released, measured links"
    terms: ClassVar[str] = "released"

    def model(self, inputs: CellInputs) -> Prediction:
        workload, plan, batch_size = inputs.workload, inputs.plan, inputs.cell.batch_size
        pipeline = inputs.strategy.pipeline_of(plan)
        if pipeline is None:
            raise NotPredictable(f"the plan of {inputs.cell.strategy} holds no stages")
        pipeline.check_blocks(len(workload.blocks))
        chain = chain_of_blocks(workload.blocks, batch_size)
        stages = [
            PlacedStage(
                Stage(stage.first, stage.last, len(stage.ranks)),
                tuple(plan.processes[rank].node for rank in stage.ranks),
            )
            for stage in pipeline.stages
        ]
        links = _stage_links(inputs.links, plan) if plan.world_size > 1 else _NO_LINKS
        period_s, sent_s = period_of(chain, stages, links, self.terms)
        free_s, _ = period_of(chain, stages, _NO_LINKS, self.terms)
        compute_s = float(chain.time_s[0, -1]) / plan.world_size
        return Prediction(
            self.name,
            compute_s=compute_s,
            communication_s=sent_s,
            exposed_communication_s=period_s - free_s,
            bubble_s=free_s - compute_s,
            limits=(
                "no latency, no waiting for replicas or receives",
                "no data loading, no optimiser",
                "devices do not slow each other down",
            ),
            notes=joined(workload.extrapolated(batch_size)),
        )


class PipelinePeriodPaper(PipelinePeriod):
    """The paper's period of the plan's stages."""

    name = "pipeline-period-paper"
    source = "PipeDream, section 3.1, measured links"
    terms = "paper"


def _stage_links(table: LinkTable, plan: Plan) -> StageLinks:
    """Bandwidths of the levels that the plan's ranks span, as the partitioner reads them."""
    places = places_of(plan)
    same_node = [place for place in places if place[0] == places[0][0]]
    other_nodes = [place for place in places if place[0] != places[0][0]]
    within = between = float("inf")
    if len(same_node) > 1:
        within = _bandwidth(table, plan, same_node[0], same_node[1])
    if other_nodes:
        between = _bandwidth(table, plan, places[0], other_nodes[0])
    return StageLinks(within, between)


def _bandwidth(table: LinkTable, plan: Plan, source: Place, target: Place) -> float:
    if table.links.fabric == plan.cell.fabric:
        level: Reach = "node" if source[0] == target[0] else "network"
        return bandwidth_of(table.links, level, table.where)
    # The table computes this fabric's links from its condition: its matrices are of another one.
    return table.hop("transport", source, target)[0].bandwidth_bytes_per_s
