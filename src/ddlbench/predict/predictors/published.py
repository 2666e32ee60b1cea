"""Predictors that others published: the equations of DDLBench and of the thesis.

DDLBench is Jansen et al. 2020. T is the time of one step. Each class states its equation, and which
part of it had to be reconstructed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from ddlbench.planning.workload import Step, Workload
from ddlbench.predict.links import Hop, Kind
from ddlbench.predict.prediction import (
    BuiltInPredictor,
    CellInputs,
    NotPredictable,
    Prediction,
    joined,
)


def linear_speedup(inputs: CellInputs, workers: int, limits: tuple[str, ...]) -> Prediction:
    """T = T_seq / W: the sequential step with the whole mini-batch over ``workers``."""
    step = inputs.workload.step(inputs.cell.batch_size)
    return Prediction(
        inputs.predictor,
        compute_s=step.step_s / workers,
        limits=limits,
        notes=joined(step.remark),
        interval_s=step.interval(1 / workers, 0.0),
    )


def ring_all_reduce_s(hops: Sequence[Hop], message_bytes: float) -> float:
    """Seconds of an all-reduce of ``message_bytes`` per worker over a ring with these hops."""
    workers = len(hops)
    if workers < 2 or message_bytes == 0:
        return 0.0
    slowest = max(hop.time_s(message_bytes / workers) for hop in hops)
    return 2 * (workers - 1) * slowest


class DdlbenchEq1(BuiltInPredictor):
    """DDLBench Eq. 1: Horovod (Jansen et al. 2020).

    Linear speed-up, and one exposed ring all-reduce::

        T = T_seq / W  +  2 (W-1) max_i ( L_{i,i+1} + min(G, th) / (W BW_{i,i+1}) )

    W workers, G bytes of gradients, th fusion threshold, L and BW latency and bandwidth of
    neighbours in the ring. All all-reduces but the last are assumed to be hidden behind backward.
    The last one is assumed to be full (thesis 5.1.1: "conservative worst case").

    T_seq is of the same work as the W workers do together: W steps of one worker's batch b = B / W,
    as the paper's baseline runs with that batch (Table II). So T_seq / W is t(b).

    Reconstructed: L and BW are those of a point-to-point test. With fusion turned off (th = 0) the
    last message is the last tensor whose gradient is ready.
    """

    name = "ddlbench-eq1"
    source = "DDLBench, Eq. 1"
    kind: ClassVar[Kind] = "p2p"

    def model(self, inputs: CellInputs) -> Prediction:
        if inputs.strategy.micro_batches(inputs.plan) > 1:
            raise NotPredictable(f"{self.name} computes a share at once; write accumulate: 1")
        hops, remarks = inputs.links.ring(self.kind, inputs.plan)
        sums = inputs.step
        step = inputs.workload.step(inputs.cell.batch_size / inputs.plan.world_size)
        exposed_s = ring_all_reduce_s(hops, sums.last_bytes)
        return Prediction(
            self.name,
            compute_s=step.step_s,
            communication_s=sum(ring_all_reduce_s(hops, size) for size in sums.fused),
            exposed_communication_s=exposed_s,
            limits=(
                "only the last fusion buffer is exposed",
                "no cycle time, negotiation, copies or waiting for the slowest worker",
                "replicas do not slow each other down",
            ),
            notes=joined(step.remark, remarks),
            interval_s=step.interval(1.0, exposed_s),
        )


class Thesis51P2p(DdlbenchEq1):
    """Thesis Eq. 5.1: Horovod with measured links.

    One worker's step, and one exposed ring all-reduce over measured links::

        T = T_seq / W  +  2 (W-1) max_i ( L_{i,i+1} + min(G, th) / (W BW_{i,i+1}) )

    The equation is DDLBench's Eq. 1. T_seq comes from the sequential predictor (chapter 4). L and
    BW are measured for every pair of devices and the slowest hop of the ring counts (section
    5.1.2); between nodes the user gives them. With the point-to-point test that the thesis used it
    says what Eq. 1 says here; :class:`Thesis51Transport` has other links.
    """

    name = "thesis-5.1-p2p"
    source = "thesis, Eq. 5.1, p2p test"


class Thesis51Transport(Thesis51P2p):
    """Thesis Eq. 5.1 with the links of the training transport (NCCL, gloo, Horovod)."""

    name = "thesis-5.1-transport"
    source = "thesis, Eq. 5.1, training transport"
    kind = "transport"


class _IdealPipeline(BuiltInPredictor):
    """T_seq (W + m - 1) / (W m) on W equal partitions with m micro-batches, and transfers."""

    def sequential(self, inputs: CellInputs, micro_batches: int) -> tuple[Step, int]:
        """A sequential step, and how many of them T_seq is."""
        raise NotImplementedError

    def transfers_s(
        self, inputs: CellInputs, sizes: Sequence[float], micro_batches: int
    ) -> tuple[float, float, tuple[str, ...]]:
        """Seconds of all transfers and of those that the step waits for; remarks on the links.

        ``sizes`` are the bytes of one micro-batch over each cut, one way.
        """
        raise NotImplementedError

    def model(self, inputs: CellInputs) -> Prediction:
        workload, plan = inputs.workload, inputs.plan
        workers = len(plan.processes[0].devices)
        micro_batches = inputs.strategy.micro_batches(plan)
        partitions = inputs.strategy.stage_blocks(workload, plan)
        samples = inputs.cell.batch_size / micro_batches
        sizes = [samples * blocks[-1].output_bytes for blocks in partitions[:-1]]
        sent_s, exposed_s, remarks = self.transfers_s(inputs, sizes, micro_batches)
        step, steps = self.sequential(inputs, micro_batches)
        sequential_s = steps * step.step_s
        factor = (workers + micro_batches - 1) / (workers * micro_batches)
        return Prediction(
            self.name,
            compute_s=sequential_s / workers,
            communication_s=sent_s,
            exposed_communication_s=exposed_s,
            bubble_s=sequential_s * (factor - 1 / workers),
            limits=_pipeline_limits(workload),
            notes=joined(step.remark, remarks),
            interval_s=step.interval(steps * factor, exposed_s),
        )


def _pipeline_limits(workload: Workload) -> tuple[str, ...]:
    limits = ("partitions take equally long", "no recomputation of activations")
    if workload.compute_kind != "cpu":
        return limits
    return (
        *limits,
        "on CPU all partitions share one process and run one after the other: the model's speed-up "
        "and transfers do not exist there",
    )


def _times_s(hops: Sequence[Hop], sizes: Sequence[float]) -> list[float]:
    return [hop.time_s(size) for hop, size in zip(hops, sizes, strict=True)]


class DdlbenchEq2(_IdealPipeline):
    """DDLBench Eq. 2: GPipe (Jansen et al. 2020).

    The ideal pipeline, and the first micro-batch's transfers::

        T = T_seq (W + m - 1) / (W m)  +  sum_{i=1}^{W-1} ( L_{i,i+1} + A_i / BW_{i,i+1} )
                                       +  sum_{i=2}^{W}   ( L_{i,i-1} + G_i / BW_{i,i-1} )

    W devices, m micro-batches, A_i and G_i activations and gradients of partition i. Only the first
    micro-batch's transfers are exposed. m = 1 is model parallelism.

    Read into it: the paper defines A_i as the activations of partition i, which are all those that
    the partition computes; only those on its border are sent, so A_i is their bytes here.
    Reconstructed: T_seq is the sequential step with the whole mini-batch. A_i and G_i are of one
    micro-batch, as only the first one's transfers count. The gradient over a cut has the bytes of
    the activation over it. The paper's equation has no recomputation.
    """

    name = "ddlbench-eq2"
    source = "DDLBench, Eq. 2"

    def sequential(self, inputs: CellInputs, micro_batches: int) -> tuple[Step, int]:
        return inputs.workload.step(inputs.cell.batch_size), 1

    def transfers_s(
        self, inputs: CellInputs, sizes: Sequence[float], micro_batches: int
    ) -> tuple[float, float, tuple[str, ...]]:
        devices = inputs.plan.processes[0].devices
        forward, remarks = inputs.links.chain("p2p", devices)
        backward, _ = inputs.links.chain("p2p", devices[::-1])
        exposed_s = sum(_times_s(forward, sizes)) + sum(_times_s(backward, sizes[::-1]))
        return micro_batches * exposed_s, exposed_s, remarks


class ModelParallel(DdlbenchEq2):
    """Model parallelism: sequential compute, and every cut crossed twice.

    One device works at a time, so nothing overlaps. While a device waits another one works: this
    time counts as compute, not as bubble::

        T = T_seq  +  sum_{i=1}^{W-1} 2 ( L_i + B A_i / BW_i )

    It is DDLBench's Eq. 2 with one micro-batch ("model parallelism = one micro-batch").
    """

    name = "model-parallel"
    source = "DDLBench, Eq. 2 with one micro-batch"

    def model(self, inputs: CellInputs) -> Prediction:
        ideal = super().model(inputs)
        return replace(ideal, compute_s=ideal.compute_s + ideal.bubble_s, bubble_s=0.0)


class Thesis6(_IdealPipeline):
    """Thesis Eq. 6.1 and 6.2: GPipe with measured partitions and micro-batches.

    The ideal pipeline at the micro-batch size, and transfers that nothing hides::

        T_comp = T_seq (W + m - 1) / (W m)                   T_seq at the micro-batch size (6.1)

        T_comm = 2 ( sum_{i=1}^{W-2} max_{j<=i} c_j                              fill        (6.2)
                   + (m - (W-2)) max_j c_j                                       steady
                   + sum_{i=2}^{W-1} max_{j>=i} c_j )                            drain
        c_j = L_j + mb A_j / BW_j       cut j of W-1; mb samples, A_j bytes a sample

        T = T_comp + T_comm, as torchgpipe was seen not to overlap the two.

    T_seq at the micro-batch size is m sequential steps of mb samples each. As in DDLBench's Eq. 2,
    A_j is defined as all activations of a partition and read as those on its border. Reconstructed:
    with fewer micro-batches than W-2 the steady term is zero, where the equation would make it
    negative. L and BW are those of a point-to-point test between neighbouring devices.
    """

    name = "thesis-6"
    source = "thesis, Eq. 6.1 and 6.2"

    def sequential(self, inputs: CellInputs, micro_batches: int) -> tuple[Step, int]:
        return inputs.workload.step(inputs.cell.batch_size / micro_batches), micro_batches

    def transfers_s(
        self, inputs: CellInputs, sizes: Sequence[float], micro_batches: int
    ) -> tuple[float, float, tuple[str, ...]]:
        hops, remarks = inputs.links.chain("p2p", inputs.plan.processes[0].devices)
        sent_s = communication_s(_times_s(hops, sizes), micro_batches)
        return sent_s, sent_s, remarks


def communication_s(cuts_s: Sequence[float], chunks: int) -> float:
    """Eq. 6.2 for the times c_1 .. c_{W-1} of the cuts; zero for one device."""
    if not cuts_s:
        return 0.0
    workers = len(cuts_s) + 1
    fill = sum(max(cuts_s[:i]) for i in range(1, workers - 1))
    steady = max(0, chunks - (workers - 2)) * max(cuts_s)
    drain = sum(max(cuts_s[i - 1 :]) for i in range(2, workers))
    return 2 * (fill + steady + drain)


class DdlbenchEq3(BuiltInPredictor):
    """DDLBench Eq. 3: PipeDream (Jansen et al. 2020).

    Linear speed-up::

        T = T_seq / W

    The paper assumes an optimal partition, hidden communication, and a start-up that vanishes over
    an epoch. T_seq is the sequential step with the whole mini-batch.
    """

    name = "ddlbench-eq3"
    source = "DDLBench, Eq. 3"

    def model(self, inputs: CellInputs) -> Prediction:
        limits = ("optimal partition", "no communication", "no start-up")
        return linear_speedup(inputs, inputs.cell.devices, limits)


class Sequential(BuiltInPredictor):
    """The sequential statistical predictor (thesis, chapter 4).

    A few batches are run and extrapolated over the epoch::

        T_epoch = (samples / b) * median step of a few batches of size b

    A step takes the profile's median step at the cell's batch size, data loading included.
    Reconstructed: the step at a batch size that the profile did not run is read off straight lines
    between those it ran.
    """

    name = "sequential"
    source = "thesis, ch. 4"

    def model(self, inputs: CellInputs) -> Prediction:
        return linear_speedup(inputs, 1, ("steps later in a run are as those of the profile",))
