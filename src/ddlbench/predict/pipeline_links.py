"""What the messages and all-reduces of a planned pipeline take over the links of a fabric."""

from __future__ import annotations

from collections.abc import Sequence

from ddlbench.planning.gradient_buckets import DEFAULT_BUCKET_BYTES, fused
from ddlbench.planning.pipeline import Pipeline
from ddlbench.planning.plan import Plan
from ddlbench.planning.schedules import Event
from ddlbench.planning.workload import Block
from ddlbench.predict.link_table import AllReduce, Hop, LinkTable, Place

__all__ = ["PipelineLinks"]


class PipelineLinks:
    """Times of a plan's communication.

    Args:
        table: the links of the cell's fabric.
        plan: who runs where.
        pipeline: its stages.
        blocks: of each stage.

    Attributes:
        remarks: what stood in for links that were not measured.
    """

    def __init__(
        self, table: LinkTable, plan: Plan, pipeline: Pipeline, blocks: Sequence[Sequence[Block]]
    ) -> None:
        self._table, self._pipeline = table, pipeline
        self._sent_bytes = [pipeline.samples * stage[-1].output_bytes for stage in blocks]
        self._weight_bytes = [sum(block.parameter_bytes for block in stage) for stage in blocks]
        self._places: list[Place] = [(p.node, p.devices[0]) for p in plan.processes]
        self._remarks: dict[str, None] = {}

    @property
    def remarks(self) -> tuple[str, ...]:
        """Each once, in the order in which they came up."""
        return tuple(self._remarks)

    def time_s(self, event: Event, device_kind: str) -> float:
        """Seconds of a message, of word of a posted receive, or of an all-reduce; else 0."""
        action, peer = event.action, event.peer
        if event.role == "notice" and peer is not None:
            return self._hop(event.rank, peer).latency_s
        if action is None:
            return 0.0
        if event.role == "message" and peer is not None:
            cut = action.stage - (1 if action.kind == "send_gradient" else 0)
            return self._hop(event.rank, peer).time_s(self._sent_bytes[cut])
        if action.kind == "all_reduce":
            return self._sum_s(action.stage, "nccl" if device_kind == "cuda" else "gloo")
        return 0.0

    def _hop(self, source: int, target: int) -> Hop:
        hop, remark = self._table.hop("transport", self._places[source], self._places[target])
        if remark:
            self._remarks[remark] = None
        return hop

    def _sum_s(self, stage: int, transport: str) -> float:
        """All buckets of a stage, one after the other."""
        reduce = self._all_reduce(self._pipeline.stages[stage].ranks, transport)
        self._remarks.update(dict.fromkeys(reduce.notes))
        sizes = fused(self._weight_bytes[stage], DEFAULT_BUCKET_BYTES)
        return sum(reduce.time_s(size) for size in sizes if size)

    def _all_reduce(self, ranks: Sequence[int], transport: str) -> AllReduce:
        """Over the nodes of the ranks; where these do not share them evenly, one rank a node."""
        nodes = len({self._places[rank][0] for rank in ranks})
        even = len(ranks) % nodes == 0
        shape = (nodes, len(ranks) // nodes) if even or nodes == 1 else (len(ranks), 1)
        return self._table.all_reduce(*shape, transport)
