"""Predictors that others published: the equations of DDLBench and of the thesis.

DDLBench is Jansen et al. 2020. T is the time of one step. Each class tells its equation, and what
of it had to be reconstructed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.links import Hop, Kind, LinkTable
from ddlbench.predict.prediction import (
    NO_HISTORY,
    History,
    Prediction,
    Predictor,
    joined,
    links_or_error,
    traffic_or_error,
)


def ring_all_reduce_s(hops: Sequence[Hop], message_bytes: float) -> float:
    """Seconds of an all-reduce of ``message_bytes`` a worker over a ring with these hops."""
    workers = len(hops)
    if workers < 2 or message_bytes == 0:
        return 0.0
    slowest = max(hop.time_s(message_bytes / workers) for hop in hops)
    return 2 * (workers - 1) * slowest


RING_LIMITS = (
    "only the last fusion buffer is exposed",
    "no cycle time, negotiation, copies or waiting for the slowest worker",
    "replicas do not slow each other down",
)


class DdlbenchEq1(Predictor):
    """DDLBench Eq. 1: Horovod (Jansen et al. 2020).

    Linear speed-up, and one exposed ring all-reduce::

        T = T_seq / W  +  2 (W-1) max_i ( L_{i,i+1} + min(G, th) / (W BW_{i,i+1}) )

    W workers, G bytes of gradients, th fusion threshold, L and BW latency and bandwidth of
    neighbours in the ring. All all-reduces but the last are taken to be hidden behind backward; the
    last is taken to be full (thesis 5.1.1: "conservative worst case").

    What is reconstructed: T_seq is the sequential step with the whole mini-batch of the cell, so
    that T_seq / W is linear speed-up; L and BW are those of a point-to-point test. With fusion
    turned off (th = 0) the last message is the last tensor whose gradient is ready.
    """

    name: ClassVar[str] = "ddlbench-eq1"
    source: ClassVar[str] = "DDLBench, Eq. 1"

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the class."""
        hops, remarks = links_or_error(links, self.name).ring("p2p", plan)
        traffic = traffic_or_error(self.name, workload, plan)
        sequential = workload.step(cell.batch_size)
        workers = plan.world_size
        exposed_s = ring_all_reduce_s(hops, traffic.last_bytes)
        return Prediction(
            self.name,
            compute_s=sequential.step_s / workers,
            communication_s=sum(ring_all_reduce_s(hops, size) for size in traffic.sizes),
            exposed_communication_s=exposed_s,
            limits=RING_LIMITS,
            notes=joined(sequential.remark, remarks),
            interval_s=sequential.interval(1 / workers, exposed_s),
        )


class _Thesis51(Predictor):
    """Thesis Eq. 5.1: Horovod with measured links.

    One worker's step, and one exposed ring all-reduce over measured links::

        T = T_seq / W  +  2 (W-1) max_i ( L_{i,i+1} + min(G, th) / (W BW_{i,i+1}) )

    The equation is DDLBench's Eq. 1. T_seq comes from the sequential predictor (chapter 4) at the
    batch of one worker, b = B / W, as DDLBench's baseline has one worker's batch: the sequential
    time of W such batches over W is t(b). L and BW are measured for every pair of devices and the
    slowest hop of the ring counts (section 5.1.2); between nodes the user gives them.

    Two predictors: ``p2p`` reads the point-to-point test that the thesis used, ``transport`` what
    training itself sends through (NCCL, gloo, Horovod). What is reconstructed: t(b) keeps the
    launch costs and the optimiser of a whole step, which T_seq(B) / W would divide.
    """

    kind: ClassVar[Kind]

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the class."""
        hops, remarks = links_or_error(links, self.name).ring(self.kind, plan)
        traffic = traffic_or_error(self.name, workload, plan)
        alone = workload.step(cell.batch_size / plan.world_size)
        exposed_s = ring_all_reduce_s(hops, traffic.last_bytes)
        return Prediction(
            self.name,
            compute_s=alone.step_s,
            communication_s=sum(ring_all_reduce_s(hops, size) for size in traffic.sizes),
            exposed_communication_s=exposed_s,
            limits=RING_LIMITS,
            notes=joined(alone.remark, remarks),
            interval_s=alone.interval(1.0, exposed_s),
        )


class Thesis51P2p(_Thesis51):
    """With the links of a point-to-point test."""

    name: ClassVar[str] = "thesis-5.1-p2p"
    source: ClassVar[str] = "thesis, Eq. 5.1, p2p test"
    kind: ClassVar[Kind] = "p2p"


class Thesis51Transport(_Thesis51):
    """With the links of the training transport."""

    name: ClassVar[str] = "thesis-5.1-transport"
    source: ClassVar[str] = "thesis, Eq. 5.1, training transport"
    kind: ClassVar[Kind] = "transport"


CPU_LIMIT = (
    "on CPU all partitions share one process and run one after the other: the model's speed-up "
    "and transfers do not exist there"
)


class DdlbenchEq2(Predictor):
    """DDLBench Eq. 2: GPipe (Jansen et al. 2020).

    The ideal pipeline, and the first micro-batch's transfers::

        T = T_seq (W + m - 1) / (W m)  +  sum_{i=1}^{W-1} ( L_{i,i+1} + A_i / BW_{i,i+1} )
                                       +  sum_{i=2}^{W}   ( L_{i,i-1} + G_i / BW_{i,i-1} )

    W devices, m micro-batches, A_i bytes of activations that device i sends on, G_i of gradients
    that it sends back. Only the first micro-batch's transfers are exposed. m = 1 is model
    parallelism.

    What is reconstructed: T_seq is the sequential step with the whole mini-batch; A_i and G_i are
    of one micro-batch, as only the first one's transfers count; the gradient that crosses a cut has
    the bytes of the activation that crossed it. Recomputation is not in the paper's equation.
    """

    name: ClassVar[str] = "ddlbench-eq2"
    source: ClassVar[str] = "DDLBench, Eq. 2"

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the class."""
        table = links_or_error(links, self.name)
        strategy, devices = strategy_of(cell.strategy), plan.processes[0].devices
        chunks = strategy.micro_batches(plan)
        micro_batch = cell.batch_size / chunks
        partitions = strategy.stage_blocks(workload, plan)
        there, remarks = table.chain("p2p", devices)
        back, _ = table.chain("p2p", devices[::-1])
        sizes = [micro_batch * blocks[-1].output_bytes for blocks in partitions[:-1]]
        exposed_s = sum(hop.time_s(size) for hop, size in zip(there, sizes, strict=True)) + sum(
            hop.time_s(size) for hop, size in zip(back, reversed(sizes), strict=True)
        )
        sequential = workload.step(cell.batch_size)
        workers = len(devices)
        factor = (workers + chunks - 1) / (workers * chunks)
        return Prediction(
            self.name,
            compute_s=sequential.step_s / workers,
            communication_s=chunks * exposed_s,
            exposed_communication_s=exposed_s,
            bubble_s=sequential.step_s * (factor - 1 / workers),
            limits=pipeline_limits(workload),
            notes=joined(sequential.remark, remarks),
            interval_s=sequential.interval(factor, exposed_s),
        )


def pipeline_limits(workload: Workload) -> tuple[str, ...]:
    """What the papers' pipeline equations leave out."""
    limits = ("partitions take equally long", "no recomputation of activations")
    return (*limits, CPU_LIMIT) if workload.device_kind == "cpu" else limits


class ModelParallel(Predictor):
    """Model parallelism: sequential compute, and every cut crossed twice.

    Eq. 2 with one micro-batch: nothing overlaps, so waiting is work elsewhere, not bubble::

        T = T_seq  +  sum_{i=1}^{W-1} 2 ( L_i + B A_i / BW_i )         one device works at a time

    It is DDLBench's Eq. 2 with one micro-batch ("model parallelism = one micro-batch"), in which
    the gradient that crosses a cut has the bytes of the activation.
    """

    name: ClassVar[str] = "model-parallel"
    source: ClassVar[str] = "DDLBench, Eq. 2 with one micro-batch"

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the class."""
        ideal = DdlbenchEq2().predict(workload, links, plan, cell, history)
        return Prediction(
            self.name,
            compute_s=ideal.compute_s + ideal.bubble_s,
            communication_s=ideal.communication_s,
            exposed_communication_s=ideal.exposed_communication_s,
            limits=ideal.limits,
            notes=ideal.notes,
            interval_s=ideal.interval_s,
        )


class Thesis6(Predictor):
    """Thesis Eq. 6.1 and 6.2: GPipe with measured partitions and micro-batches.

    The ideal pipeline at the micro-batch size, and transfers that nothing hides::

        T_comp = T_seq (W + m - 1) / (W m)                   T_seq at the micro-batch size (6.1)

        T_comm = 2 ( sum_{i=1}^{W-2} max_{j<=i} c_j                              fill        (6.2)
                   + (m - (W-2)) max_j c_j                                       steady
                   + sum_{i=2}^{W-1} max_{j>=i} c_j )                            drain
        c_j = L_j + mb A_j / BW_j       cut j of W-1; mb samples, A_j bytes a sample

        T = T_comp + T_comm, as torchgpipe was seen not to overlap the two.

    T_seq at the micro-batch size is m sequential steps of mb samples each. What is reconstructed:
    with fewer micro-batches than W-2 the steady term is taken as zero, where the equation would
    have it below zero; L and BW are those of a point-to-point test between neighbouring devices.
    """

    name: ClassVar[str] = "thesis-6"
    source: ClassVar[str] = "thesis, Eq. 6.1 and 6.2"

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the class."""
        strategy, devices = strategy_of(cell.strategy), plan.processes[0].devices
        workers, chunks = len(devices), strategy.micro_batches(plan)
        micro_batch = cell.batch_size / chunks
        partitions = strategy.stage_blocks(workload, plan)
        hops, remarks = links_or_error(links, self.name).chain("p2p", devices)
        cuts = [
            hop.time_s(micro_batch * blocks[-1].output_bytes)
            for hop, blocks in zip(hops, partitions[:-1], strict=True)
        ]
        transfers_s = communication_s(cuts, chunks)
        one = workload.step(micro_batch)
        sequential_s = chunks * one.step_s
        factor = (workers + chunks - 1) / (workers * chunks)
        return Prediction(
            self.name,
            compute_s=sequential_s / workers,
            communication_s=transfers_s,
            exposed_communication_s=transfers_s,
            bubble_s=sequential_s * (factor - 1 / workers),
            limits=pipeline_limits(workload),
            notes=joined(one.remark, remarks),
            interval_s=one.interval(chunks * factor, transfers_s),
        )


def communication_s(cuts_s: Sequence[float], chunks: int) -> float:
    """Eq. 6.2 for the times c_1 .. c_{W-1} of the cuts; zero for one device."""
    if not cuts_s:
        return 0.0
    workers = len(cuts_s) + 1
    fill = sum(max(cuts_s[:i]) for i in range(1, workers - 1))
    steady = max(0, chunks - (workers - 2)) * max(cuts_s)
    drain = sum(max(cuts_s[i - 1 :]) for i in range(2, workers))
    return 2 * (fill + steady + drain)


class DdlbenchEq3(Predictor):
    """DDLBench Eq. 3: PipeDream (Jansen et al. 2020).

    Linear speed-up::

        T = T_seq / W

    The partition is taken to be optimal, communication hidden, and start-up to vanish over an
    epoch. T_seq is the sequential step with the whole mini-batch.
    """

    name: ClassVar[str] = "ddlbench-eq3"
    source: ClassVar[str] = "DDLBench, Eq. 3"

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the class."""
        sequential = workload.step(cell.batch_size)
        return Prediction(
            self.name,
            compute_s=sequential.step_s / cell.devices,
            limits=("optimal partition", "no communication", "no start-up"),
            notes=joined(sequential.remark),
            interval_s=sequential.interval(1 / cell.devices, 0.0),
        )


class Sequential(Predictor):
    """The sequential statistical predictor (thesis, chapter 4).

    A sequential step takes as long as those of the profile.

    A few batches are run and extrapolated over the epoch::

        T_epoch = (samples / b) * median step of a few batches of size b

    Per step that is the profile's median step at the cell's batch, data loading included. What is
    reconstructed: a batch size that the profile did not run is read off a line through those it
    ran.
    """

    name: ClassVar[str] = "sequential"
    source: ClassVar[str] = "thesis, ch. 4"

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the class."""
        step = workload.step(cell.batch_size)
        return Prediction(
            self.name,
            compute_s=step.step_s,
            limits=("steps later in a run are as those of the profile",),
            notes=joined(step.remark),
            interval_s=step.interval(1.0, 0.0),
        )
