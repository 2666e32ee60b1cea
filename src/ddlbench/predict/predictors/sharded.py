"""Data parallelism whose ranks share the weights: the collectives of each block, replayed.

On CPUs torch's FSDP waits for each collective where it stands::

    |-g1-| F1 |-g2-| F2 |-g3-| F3 | B3 |-r3-|-g2-| B2 |-r2-|-g1-| B1 |-r1-| update

    T = k t(B/W) + sum of all gathers + sum of all reduce-scatters + delays

Each follows a computation, so it takes longer than in a sweep, by what the links measured.

On GPUs the next block's weights are gathered while this one computes, and gradients are summed
beside the backward pass, all on one link::

    compute     | F1 | F2 | F3 | B3 | B2   | B1   |
    link   |-g1-|-g2-|-g3-|    |-g2-|-g1-||-r3-|-r2-|-r1-|       one block ahead

Their times are FSDP's own where its messages were swept, with the copies of weights and gradients
and the cost of each tensor; else those of the bare collectives. k is the slow-down of silent
replicas on a node, t(B/W) a sequential step of a rank's share. What the collectives take from
computation beside them on GPUs is not modelled. No paper has this model; the order of messages is
that of Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ddlbench.planning.sharded import ShardedTraffic
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
            shape = (cell.nodes, cell.devices_per_node)
            through = traffic.transport
            if traffic.library and inputs.links.has_swept(traffic.library, cell.nodes):
                through = traffic.library
            gather = inputs.links.collective(ALL_GATHER, *shape, through)
            scatter = inputs.links.collective(REDUCE_SCATTER, *shape, through)
            gather_s, scatter_s = gather.time_s, scatter.time_s
            remarks = joined(gather.notes, scatter.notes)
        sent_s = sum(
            gather_s(unit.shard_bytes) * (1 + unit.gathered_twice) + scatter_s(unit.gradient_bytes)
            for unit in traffic.units
        )
        sent_s += _tensors_s(inputs, traffic)
        if not traffic.overlaps and ranks > 1:
            sent_s += _delays_s(inputs, traffic, through)
        exposed_s = sent_s
        if traffic.overlaps:
            passes_s = slowdown * step.forward_s, slowdown * step.backward_s
            replay = _Replay(_work(inputs, traffic, *passes_s), gather_s, scatter_s)
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


def _tensors_s(inputs: CellInputs, traffic: ShardedTraffic) -> float:
    """What messages of many tensors take longer than those of one, through the library."""
    if traffic.library is None or inputs.plan.world_size < 2:
        return 0.0
    cell = inputs.cell
    gather_s, scatter_s = (
        inputs.links.tensor_s(traffic.library, operation, cell.nodes, cell.devices_per_node)
        for operation in (ALL_GATHER, REDUCE_SCATTER)
    )
    return sum(
        (unit.tensors - 1) * (gather_s * (1 + unit.gathered_twice) + scatter_s)
        for unit in traffic.units
    )


def _delays_s(inputs: CellInputs, traffic: ShardedTraffic, through: str) -> float:
    """What messages take longer because they follow computations."""
    cell = inputs.cell
    gather_s, scatter_s = (
        inputs.links.delay_s(operation, through, cell.nodes, cell.devices_per_node)
        for operation in (ALL_GATHER, REDUCE_SCATTER)
    )
    return sum(gather_s * (1 + unit.gathered_twice) + scatter_s for unit in traffic.units)


@dataclass(frozen=True)
class _Work:
    """A pass over a unit's block, and over blocks without weights behind it.

    Args:
        seconds: of computation.
        gathered: bytes that each rank gives beforehand; 0 if weights are whole already.
        scattered: bytes of gradients that each rank gives afterwards; 0 in the forward pass.
    """

    seconds: float
    gathered: float
    scattered: float


def _work(
    inputs: CellInputs, traffic: ShardedTraffic, forward_s: float, backward_s: float
) -> list[_Work]:
    """What a rank computes and sends, in the order of the step."""
    samples = inputs.cell.batch_size / inputs.plan.world_size
    blocks = inputs.workload.blocks
    begins = [0, *(unit.block for unit in traffic.units[1:]), len(blocks)]

    def seconds(of: str, whole_s: float) -> list[float]:
        times = [getattr(block, of).at(samples) for block in blocks]
        scale = whole_s / (sum(times) or 1.0)
        return [scale * sum(times[a:b]) for a, b in pairwise(begins)]

    units = list(traffic.units)
    there = zip(seconds("forward", forward_s), units, strict=True)
    back = list(zip(seconds("backward", backward_s), units, strict=True))
    return [_Work(time_s, unit.shard_bytes, 0) for time_s, unit in there] + [
        _Work(time_s, unit.shard_bytes if unit.gathered_twice else 0, unit.gradient_bytes)
        for time_s, unit in reversed(back)
    ]


@dataclass
class _Replay:
    """One step on a device that computes beside its link.

    Args:
        work: in the order of the step.
        gather_s, scatter_s: seconds of a message by its bytes.
    """

    work: Sequence[_Work]
    gather_s: _Seconds
    scatter_s: _Seconds

    def end_s(self) -> float:
        """When the passes and all messages have ended.

        Weights of the next block are asked for when a block begins.
        """
        computed = link = there = self._gather_s(self.work[0])
        for work, after in zip(self.work, [*self.work[1:], None], strict=True):
            begin = max(computed, there)
            if after is not None and after.gathered:
                there = link = max(link, begin) + self._gather_s(after)
            computed = begin + work.seconds
            if work.scattered:
                link = max(link, computed) + self.scatter_s(work.scattered)
        return max(computed, link)

    def _gather_s(self, work: _Work) -> float:
        return self.gather_s(work.gathered) if work.gathered else 0.0
