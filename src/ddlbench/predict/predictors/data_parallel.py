"""Data parallelism with the messages that a strategy sends: hidden behind backward, or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.gradient_traffic import GradientMessage
from ddlbench.planning.plan import Plan
from ddlbench.planning.workload import Workload
from ddlbench.predict.links import LinkTable
from ddlbench.predict.prediction import (
    NO_HISTORY,
    History,
    Prediction,
    Predictor,
    joined,
    links_or_error,
    traffic_or_error,
)
from ddlbench.predict.predictors.published import ring_all_reduce_s

AllReduceTime = Callable[[float], float]


class _Ddp(Predictor):
    """DDP: Eq. 1's ring all-reduce, bucket by bucket (Li et al. 2020, section 3.2).

    One worker's step, and buckets that leave while backward runs::

        backward    |---------------------------|
        ready_k         |      |       |        |          when the bucket's last gradient is ready
        all-reduce      |-b0-| |--b1--||--b2---||-b3-|     one after the other
                                                |----|     exposed

        start_k = max(ready_k, end_{k-1});  end_k = start_k + t(S_k)
        T = k t_seq(B/W) + max(0, end_last - k t_backward)

    Gradients fill a bucket, in the order in which they are ready, until it holds
    ``bucket_cap_bytes``; by default torch's first bucket is sent earlier, from 1 MiB on
    (``strategies/ddp``). No published model: it is Eq. 1's idea put to DDP. Two predictors:

    * ``ddp-buckets`` has Eq. 1's terms and no others: t(S) is its ring over the links of the
      training transport, and k = 1. So it compares with the predictors of Horovod on equal terms.
    * ``ddp-all-reduce`` takes t(S) from the fitted sweep of the all-reduce itself, and k from the
      profile: the slow-down of as many silent replicas on a node.
    """

    def all_reduce(
        self, links: LinkTable, workload: Workload, plan: Plan
    ) -> tuple[AllReduceTime, tuple[str, ...]]:
        """Seconds over bytes, and remarks."""
        raise NotImplementedError

    def slowdown(self, workload: Workload, cell: Cell) -> float:
        """The factor k."""
        return 1.0

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the class."""
        time_s, remarks = self.all_reduce(links_or_error(links, self.name), workload, plan)
        slowdown = self.slowdown(workload, cell)
        alone = workload.step(cell.batch_size / plan.world_size)
        traffic = traffic_or_error(self.name, workload, plan)
        waited_s = exposed_s(traffic.messages, slowdown * alone.backward_s, time_s)
        return Prediction(
            self.name,
            compute_s=slowdown * alone.step_s,
            communication_s=sum(time_s(size) for size in traffic.sizes),
            exposed_communication_s=waited_s,
            limits=("communication does not slow computation down", "no straggling worker"),
            notes=joined(alone.remark, remarks),
            interval_s=alone.interval(slowdown, waited_s),
        )


class DdpBuckets(_Ddp):
    """With Eq. 1's ring over the links of the training transport."""

    name: ClassVar[str] = "ddp-buckets"
    source: ClassVar[str] = "DDLBench, Eq. 1, a bucket at a time"

    def all_reduce(
        self, links: LinkTable, workload: Workload, plan: Plan
    ) -> tuple[AllReduceTime, tuple[str, ...]]:
        """Eq. 1's ring."""
        hops, remarks = links.ring("transport", plan)
        return (lambda size: ring_all_reduce_s(hops, size)), remarks


class DdpAllReduce(_Ddp):
    """With the fitted sweep of the all-reduce."""

    name: ClassVar[str] = "ddp-all-reduce"
    source: ClassVar[str] = "measured all-reduce, a bucket at a time"

    def all_reduce(
        self, links: LinkTable, workload: Workload, plan: Plan
    ) -> tuple[AllReduceTime, tuple[str, ...]]:
        """The strategy's own."""
        if plan.world_size < 2:
            return (lambda size: 0.0), ()
        transport = traffic_or_error(self.name, workload, plan).transport
        swept = links.all_reduce(plan.cell.nodes, plan.cell.devices_per_node, transport)
        return swept.time_s, swept.notes

    def slowdown(self, workload: Workload, cell: Cell) -> float:
        """Of as many replicas as a node has devices."""
        return workload.slowdown(cell.devices_per_node)


def exposed_s(
    messages: Sequence[GradientMessage], backward_s: float, time_s: AllReduceTime
) -> float:
    """Seconds that the last all-reduce ends after the backward pass."""
    end_s = 0.0
    for message in messages:
        end_s = max(end_s, message.ready_fraction * backward_s) + time_s(message.bytes)
    return max(0.0, end_s - backward_s)


class _Serial(Predictor):
    """Data parallelism that hides nothing: compute, then the measured all-reduce of every message.

    One worker's step, then all of its messages::

        |------ k t(B/W) ------|-- t(S_1) --|-- t(S_2) --|        T = k t(B/W) + sum_i t(S_i)

    t(S) is the fitted sweep of the all-reduce that training uses (gloo's for DDP, Horovod's own
    with its cycle, negotiation and copies), k the slow-down of as many silent replicas on a node.
    It is what a device does whose only core computes and sends: on CPU an all-reduce during the
    backward pass takes the time that the backward pass loses. On GPUs it is an upper bound.

    Ours, made after the other models of data parallelism were found to be short on CPU test beds by
    what they take to be hidden (docs/validation/README.md).
    """

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the class."""
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
