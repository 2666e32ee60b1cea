"""Data parallelism that hides nothing: compute, then the measured all-reduce of every message.

::

    |------ k t(B/W) ------|-- t(S_1) --|-- t(S_2) --|        T = k t(B/W) + sum_i t(S_i)

t(S) is the fitted sweep of the all-reduce that training uses (gloo's for DDP, Horovod's own with
its cycle, negotiation and copies), k the slow-down of as many silent replicas on a node. It is what
a device does whose only core computes and sends: on CPU an all-reduce during the backward pass
takes the time that the backward pass loses. On GPUs it is an upper bound.

Ours, made after the other models of data parallelism were found to be short on CPU test beds by
what they take to be hidden (docs/validation/README.md).
"""

from __future__ import annotations

from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.workload import Workload
from ddlbench.predict.link_table import LinkTable
from ddlbench.predict.prediction import (
    NO_HISTORY,
    History,
    Prediction,
    Predictor,
    joined,
    links_or_error,
    traffic_or_error,
)

__all__ = ["DdpSerial", "HorovodSerial"]


class _Serial(Predictor):
    """One worker's step, then all of its messages."""

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module."""
        sent_s = 0.0
        remarks: tuple[str, ...] = ()
        if plan.world_size > 1:
            table = links_or_error(links, self.name)
            traffic = traffic_or_error(self.name, workload, plan)
            swept = table.all_reduce(cell.nodes, cell.devices_per_node, traffic.transport)
            sent_s = sum(swept.time_s(size) for size in traffic.sizes)
            remarks = swept.notes
        slowdown = workload.slowdown(cell.devices_per_node)
        alone = workload.step(cell.batch_size / plan.world_size)
        return Prediction(
            self.name,
            compute_s=slowdown * alone.step_s,
            communication_s=sent_s,
            exposed_communication_s=sent_s,
            limits=("nothing is hidden behind computation", "no straggling worker"),
            notes=joined(alone.remark, remarks),
            interval_s=alone.interval(slowdown, sent_s),
        )


class DdpSerial(_Serial):
    """DDP's buckets, through torch.distributed."""

    name: ClassVar[str] = "ddp-serial"
    source: ClassVar[str] = "measured all-reduce of every bucket, nothing hidden"


class HorovodSerial(_Serial):
    """Horovod's fusion buffers, with its cycle and its copies."""

    name: ClassVar[str] = "horovod-serial"
    source: ClassVar[str] = "measured all-reduce of Horovod, nothing hidden"
