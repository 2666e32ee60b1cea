"""Data parallelism whose ranks share the weights: the collectives of each block, replayed.

On CPUs torch's FSDP waits for each collective where it stands::

    |-g1-| F1 |-g2-| F2 |-g3-| F3 | B3 |-r3-|-g2-| B2 |-r2-|-g1-| B1 |-r1-| update

    T = k t(B/W) + sum of all gathers + sum of all reduce-scatters

On GPUs the next block's weights are gathered while this one computes, and gradients are summed
beside the backward pass, all on one link::

    compute   | F1 | F2   | F3  | B3 | B2   | B1 |      |
    link   |g1|g2|  g3 |        |g2  |r3|g1| r2 | r1 |        one block ahead

k is the slow-down of silent replicas on a node, t(B/W) a sequential step of a rank's share. What
the collectives take from computation beside them on GPUs is not modelled. No paper has this model;
the order of messages is that of Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ddlbench.planning.sharded import ShardedTraffic, ShardedUnit
from ddlbench.predict.collectives import ALL_GATHER, REDUCE_SCATTER
from ddlbench.predict.prediction import (
    BuiltInPredictor,
    CellInputs,
    NotPredictable,
    Prediction,
    joined,
)

_Seconds = Callable[[float], float]


def _nothing(_size: float) -> float:
    return 0.0


class Sharded(BuiltInPredictor):
    """Measured all-gathers and reduce-scatters of every block, in the order of the step."""

    name = "sharded"
    source = "measured collectives of every block, replayed"

    def model(self, inputs: CellInputs) -> Prediction:
        traffic = inputs.strategy.sharded_traffic(inputs.workload, inputs.plan)
        if traffic is None:
            raise NotPredictable(
                f"{self.name} is of ranks that share the weights; {inputs.cell.strategy} does not "
                "share them"
            )
        ranks = inputs.plan.world_size
        workload, cell = inputs.workload, inputs.cell
        step = workload.step(cell.batch_size / ranks)
        slowdown = max(1.0, workload.slowdown(cell.devices_per_node))
        gather_s: _Seconds = _nothing
        scatter_s: _Seconds = _nothing
        remarks: tuple[str, ...] = ()
        if ranks > 1:
            shape = (cell.nodes, cell.devices_per_node, traffic.transport)
            gather = inputs.links.collective(ALL_GATHER, *shape)
            scatter = inputs.links.collective(REDUCE_SCATTER, *shape)
            gather_s, scatter_s = gather.time_s, scatter.time_s
            remarks = joined(gather.notes, scatter.notes)
        sent_s = sum(
            gather_s(unit.shard_bytes) * (1 + unit.gathered_twice) + scatter_s(unit.gradient_bytes)
            for unit in traffic.units
        )
        exposed_s = sent_s
        if traffic.overlaps:
            passes_s = slowdown * step.forward_s, slowdown * step.backward_s
            replay = _Replay(*_shares(inputs, traffic), *passes_s, gather_s, scatter_s)
            exposed_s = max(0.0, replay.end_s() - sum(passes_s))
        limits = ["no straggling worker"]
        if traffic.overlaps:
            limits.insert(0, "communication does not slow computation down")
        return Prediction(
            self.name,
            compute_s=slowdown * step.step_s,
            communication_s=sent_s,
            exposed_communication_s=min(exposed_s, sent_s),
            limits=tuple(limits),
            notes=joined(step.remark, remarks),
            interval_s=step.interval(slowdown, exposed_s),
        )


def _shares(
    inputs: CellInputs, traffic: ShardedTraffic
) -> tuple[list[tuple[float, ShardedUnit | None]], list[tuple[float, ShardedUnit | None]]]:
    """Each block's share of the forward and of the backward pass, with its unit."""
    samples = inputs.cell.batch_size / inputs.plan.world_size
    blocks = inputs.workload.blocks
    units = {unit.block: unit for unit in traffic.units}
    shares = []
    for times in (
        [b.forward.at(samples) for b in blocks],
        [b.backward.at(samples) for b in blocks],
    ):
        total = sum(times) or 1.0
        shares.append([(time / total, units.get(index)) for index, time in enumerate(times)])
    return shares[0], shares[1]


@dataclass
class _Replay:
    """One step on a device that computes beside its link.

    Args:
        forward, backward: each block's share of the pass, and its unit, in the network's order.
        forward_s, backward_s: of the passes.
        gather_s, scatter_s: seconds of a message by its bytes.
    """

    forward: list[tuple[float, ShardedUnit | None]]
    backward: list[tuple[float, ShardedUnit | None]]
    forward_s: float
    backward_s: float
    gather_s: _Seconds
    scatter_s: _Seconds

    def end_s(self) -> float:
        """When the passes and all messages have ended."""
        computed = before = link = 0.0  # before: when the block before this one began
        for seconds, unit, gathers, scatters in self._blocks():
            if unit is not None and gathers:
                link = max(link, before) + self.gather_s(unit.shard_bytes)
                computed = max(computed, link)
            before = computed
            computed += seconds
            if unit is not None and scatters:
                link = max(link, computed) + self.scatter_s(unit.gradient_bytes)
        return max(computed, link)

    def _blocks(self) -> Iterator[tuple[float, ShardedUnit | None, bool, bool]]:
        """Seconds, unit, whether it is gathered before and summed after; in the step's order."""
        for share, unit in self.forward:
            yield share * self.forward_s, unit, True, False
        for share, unit in reversed(self.backward):
            yield share * self.backward_s, unit, unit is not None and unit.gathered_twice, True
