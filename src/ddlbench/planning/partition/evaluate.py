"""What a cost model says of stages that are given, where they are placed.

::

    stage      on one node     the model's stage over the links of a node
               on n nodes      d replicas on each: the stage on d over the links of a node, that n
                               times over those between nodes; uneven: all over those between nodes
    cut        links of a node where both its stages are on that one node, else between nodes
    period     the longest of them

For stages that PipeDream's programme made for one level it is the programme's own period. With two
levels the programme thinks of every node as alike, while ranks are numbered stage by stage, so the
two may differ: this one is of the stages as they run.

Source: :mod:`ddlbench.planning.partition.cost`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlbench.planning.partition.chain import Array, Chain
from ddlbench.planning.partition.cost import CostModel, Level, cost_model
from ddlbench.planning.partition.stages import Stage

__all__ = ["PlacedStage", "StageLinks", "period_of"]


@dataclass(frozen=True)
class PlacedStage:
    """A stage, and the node of each of its replicas."""

    stage: Stage
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class StageLinks:
    """Bytes per second within a node and between nodes; infinite for links that cost nothing."""

    node_bytes_per_s: float
    network_bytes_per_s: float

    def level(self, nodes: set[int]) -> Level:
        """The slowest links among some nodes."""
        return Level(1, self.network_bytes_per_s if len(nodes) > 1 else self.node_bytes_per_s)


def period_of(
    chain: Chain, stages: Sequence[PlacedStage], links: StageLinks, model: str = "released"
) -> tuple[float, float]:
    """The model's seconds per mini-batch, and those of all communication, hidden or not.

    Args:
        chain: the network at the batch size of one replica.
        stages: first to last, all nodes of the chain.
        links: of the machine.
        model: ``released`` or ``paper``.

    Raises:
        ConfigError: there is no such model.
    """
    costs = cost_model(model)
    longest, sent = 0.0, 0.0
    for number, placed in enumerate(stages):
        inside = (placed.stage.first, placed.stage.last - 1)
        time = np.asarray(chain.time_s[inside])
        weights = np.asarray(chain.parameter_bytes[inside])
        longest = max(longest, _stage_s(costs, time, weights, placed, links))
        sent += _stage_s(costs, np.zeros(()), weights, placed, links)
        if number == 0:
            continue
        before = stages[number - 1]
        into = links.level({*before.nodes, *placed.nodes})
        arriving = float(chain.output_bytes[placed.stage.first - 1])
        cuts = [_cut_s(costs, placed, into, (arriving, 0.0))]
        sent += 2 * arriving / into.bandwidth_bytes_per_s
        if number + 1 < len(stages):
            out = links.level({*placed.nodes, *stages[number + 1].nodes})
            leaving = float(chain.output_bytes[placed.stage.last - 1])
            cuts.append(_cut_s(costs, placed, out, (0.0, leaving)))
        longest = max(longest, *cuts)
    return longest, sent


def _stage_s(
    costs: CostModel, time: Array, weights: Array, placed: PlacedStage, links: StageLinks
) -> float:
    replicas, held = placed.stage.replicas, Counter(placed.nodes)
    each, *others = set(held.values())
    if len(held) == 1 or others or each == 1:
        return float(costs.first(time, weights, replicas, links.level(set(held)), 1))
    inside = costs.first(time, weights, each, Level(each, links.node_bytes_per_s), 1)
    between = Level(len(held), links.network_bytes_per_s)
    return float(costs.first(inside, weights, len(held), between, each))


def _cut_s(costs: CostModel, placed: PlacedStage, level: Level, cuts: tuple[float, float]) -> float:
    nothing = np.zeros(())
    arrays = (np.asarray(cuts[0]), np.asarray(cuts[1]))
    return float(costs.other(nothing, nothing, placed.stage.replicas, level, arrays))
