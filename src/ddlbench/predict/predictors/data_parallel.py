"""Data parallelism with the messages that a strategy sends: hidden behind backward, or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddlbench.planning.gradient_traffic import GradientMessage, whole_buckets
from ddlbench.predict.prediction import BuiltInPredictor, CellInputs, Prediction, joined
from ddlbench.predict.predictors.published import ring_all_reduce_s
from ddlbench.predict.predictors.worker_step import gather_s, worker_step

AllReduceTime = Callable[[float], float]


class _Ddp(BuiltInPredictor):
    """DDP: an all-reduce of each bucket during backward (Li et al. 2020, section 3.2).

    One worker's step, and buckets that leave while backward runs::

        backward    |---------------------------|
        ready_k         |      |       |        |          when the bucket's last gradient is ready
        all-reduce      |-b0-| |--b1--||--b2---||-b3-|     one after the other
                                                |----|     exposed

        start_k = max(ready_k, end_{k-1});  end_k = start_k + t(S_k)
        T = k t_seq(B/W) + max(0, end_last - k t_backward)

    Gradients fill a bucket, in the order in which they are ready, until it holds
    ``bucket_cap_bytes``. By default torch sends the first bucket earlier, from 1 MiB on
    (``strategies/ddp``). No paper has this model: it applies the idea of Eq. 1 to DDP. Where each
    worker updates its own share of the weights, sending them to all follows
    (:mod:`ddlbench.predict.predictors.worker_step`).
    """

    def all_reduce(self, inputs: CellInputs) -> tuple[AllReduceTime, tuple[str, ...]]:
        """t(S): seconds of an all-reduce over bytes, and remarks."""
        raise NotImplementedError

    def gather(self, inputs: CellInputs) -> tuple[float, tuple[str, ...]]:
        """Seconds in which all workers get the weights that others have updated, and remarks."""
        return gather_s(inputs)

    def slowdown(self, inputs: CellInputs) -> float:
        """The factor k."""
        return 1.0

    def model(self, inputs: CellInputs) -> Prediction:
        time_s, remarks = self.all_reduce(inputs)
        slowdown = self.slowdown(inputs)
        own = worker_step(inputs)
        traffic = inputs.gradient_traffic
        after_s, after_remarks = self.gather(inputs)
        waited_s = exposed_s(traffic.messages, slowdown * own.step.backward_s, time_s) + after_s
        return Prediction(
            self.name,
            compute_s=slowdown * own.step_s,
            communication_s=sum(time_s(size) for size in traffic.sizes) + after_s,
            exposed_communication_s=waited_s,
            limits=("communication does not slow computation down", "no straggling worker"),
            notes=joined(own.step.remark, remarks, after_remarks),
            interval_s=own.interval(slowdown, waited_s),
        )


class DdpBuckets(_Ddp):
    """t(S) is Eq. 1's ring over the links of the training transport, and k = 1.

    These are the terms of Eq. 1 and no others, so it compares with Horovod's predictors on equal
    terms.
    """

    name = "ddp-buckets"
    source = "DDLBench, Eq. 1, a bucket at a time"

    def all_reduce(self, inputs: CellInputs) -> tuple[AllReduceTime, tuple[str, ...]]:
        hops, remarks = inputs.links.ring("transport", inputs.plan)
        return (lambda size: ring_all_reduce_s(hops, size)), remarks

    def gather(self, inputs: CellInputs) -> tuple[float, tuple[str, ...]]:
        """A ring, too: W - 1 times the largest share."""
        hops, remarks = inputs.links.ring("transport", inputs.plan)
        size = inputs.gradient_traffic.gathered_bytes
        if not size:
            return 0.0, ()
        return (len(hops) - 1) * max(hop.time_s(size) for hop in hops), remarks


class DdpAllReduce(_Ddp):
    """t(S) is the fitted sweep of the all-reduce, k the slow-down of as many silent replicas."""

    name = "ddp-all-reduce"
    source = "measured all-reduce, a bucket at a time"

    def all_reduce(self, inputs: CellInputs) -> tuple[AllReduceTime, tuple[str, ...]]:
        links = inputs.links
        if inputs.plan.world_size < 2:
            return (lambda size: 0.0), ()
        cell, transport = inputs.cell, inputs.gradient_traffic.transport
        sweep = links.all_reduce(cell.nodes, cell.devices_per_node, transport)
        return sweep.time_s, sweep.notes

    def slowdown(self, inputs: CellInputs) -> float:
        return inputs.workload.slowdown(inputs.cell.devices_per_node)


def exposed_s(
    messages: Sequence[GradientMessage], backward_s: float, time_s: AllReduceTime
) -> float:
    """Seconds from the end of the backward pass to the end of the last all-reduce."""
    end_s = 0.0
    for message in messages:
        end_s = max(end_s, message.ready_fraction * backward_s) + time_s(message.bytes)
    return max(0.0, end_s - backward_s)


class _Serial(BuiltInPredictor):
    """Data parallelism that hides nothing: compute, then the measured all-reduce of every message.

    One worker's step, then all of its messages::

        |------ k t(B/W) ------|-- t(S_1) --|-- t(S_2) --|        T = k t(B/W) + sum_i t(S_i)

    t(S) is the fitted sweep of the all-reduce that training uses (gloo's for DDP, Horovod's own
    with its cycle, negotiation and copies), k the slow-down of as many silent replicas on a node.

    It describes a device with a single core that computes and sends: on CPU an all-reduce during
    the backward pass takes time away from the backward pass. On GPUs it is an upper bound.

    This model is ours. On CPU test beds the other models of data parallelism predict steps that are
    too short, because they assume hidden communication (docs/validation/README.md).
    """

    def messages(self, inputs: CellInputs) -> tuple[str, Sequence[int]]:
        """The transport of the all-reduces of a step or of a round, and their bytes."""
        traffic = inputs.gradient_traffic
        return traffic.transport, traffic.sizes

    def model(self, inputs: CellInputs) -> Prediction:
        cell, workload = inputs.cell, inputs.workload
        sent_s, remarks = gather_s(inputs)
        if inputs.plan.world_size > 1:
            transport, sizes = self.messages(inputs)
            sweep = inputs.links.all_reduce(cell.nodes, cell.devices_per_node, transport)
            summed_s = sum(sweep.time_s(size) for size in sizes)
            sent_s += summed_s / inputs.strategy.round_steps(cell)
            remarks = joined(sweep.notes, remarks)
        slowdown = workload.slowdown(cell.devices_per_node)
        own = worker_step(inputs)
        return Prediction(
            self.name,
            compute_s=slowdown * own.step_s,
            communication_s=sent_s,
            exposed_communication_s=sent_s,
            limits=("nothing is hidden behind computation", "no straggling worker"),
            notes=joined(own.step.remark, remarks),
            interval_s=own.interval(slowdown, sent_s),
        )


class DdpSerial(_Serial):
    """DDP's buckets, through torch.distributed."""

    name = "ddp-serial"
    source = "measured all-reduce of every bucket, nothing hidden"


class HorovodSerial(_Serial):
    """Horovod's fusion buffers, with its cycle and its copies."""

    name = "horovod-serial"
    source = "measured all-reduce of Horovod, nothing hidden"


class AveragedWeights(_Serial):
    """Ranks that train alone and average all weights once in H steps: the mean step of a round.

    ::

        | k t(B/W) | k t(B/W) | .. | k t(B/W) |-- t(S_1) --|-- t(S_2) --|      a round of H steps

        T = k t(B/W) + (sum_i t(S_i)) / H

    The S_i are all weights in buckets. The outer optimiser's update is not modelled.
    """

    name = "averaged-weights"
    source = "measured all-reduce of all weights, once a round"

    def messages(self, inputs: CellInputs) -> tuple[str, Sequence[int]]:
        transport = "nccl" if inputs.workload.device_kind == "cuda" else "gloo"
        workload = inputs.workload
        in_buckets = whole_buckets(workload.tensors, workload.bucket_bytes)
        return transport, [sum(bucket) for bucket in in_buckets]
