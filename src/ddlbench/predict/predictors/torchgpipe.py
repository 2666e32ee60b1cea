"""torchgpipe's step: one process drives all partitions of a node.

::

    cores       F F F F ... B B B B            partitions and micro-batches, one after the other
    emulated    device 0   F0 F1       R0 B0 R1 B1                          R: recomputation
    devices     device 1      F0 F1 B1 R0 B0

    T = what is done once a step + the end of the last pass

What is done once are loading and the optimiser, on the host. On GPUs copies between devices take
time that nothing measured, so neither model speaks of them.

Sources: torchgpipe 0.0.7; Huang et al. 2019. The models are this project's.
"""

from __future__ import annotations

from ddlbench.planning.schedules import StageDurations, replay
from ddlbench.planning.workload import Step
from ddlbench.predict.prediction import (
    BuiltInPredictor,
    CellInputs,
    NotPredictable,
    Prediction,
    joined,
)
from ddlbench.predict.predictors.pipeline_replay import as_whole_steps, stage_times


def _once_s(whole: Step) -> float:
    """Seconds of a step beside its passes."""
    return max(0.0, whole.step_s - whole.forward_s - whole.backward_s)


class TorchgpipeTurns(BuiltInPredictor):
    """The passes of all micro-batches, one after the other."""

    name = "torchgpipe-turns"
    source = "torchgpipe's one thread for all CPU partitions"

    def model(self, inputs: CellInputs) -> Prediction:
        workload, strategy, batch_size = inputs.workload, inputs.strategy, inputs.cell.batch_size
        if workload.compute_kind != "cpu":
            raise NotPredictable(
                f"{self.name} is of cores of a CPU; partitions on other devices compute at once"
            )
        micro_batches = strategy.micro_batches(inputs.plan)
        whole, micro = workload.step(batch_size), workload.step(batch_size / micro_batches)
        once_s = _once_s(whole)
        passes_s = micro_batches * (micro.forward_s + micro.backward_s)
        recomputed = strategy.recomputed_micro_batches(inputs.plan)
        step_s = once_s + passes_s + recomputed * micro.forward_s
        return Prediction(
            self.name,
            compute_s=step_s,
            limits=(
                "partitions have one core: a process that may use the shares of all its devices is "
                "faster",
                "cutting a mini-batch into micro-batches and joining their outputs costs nothing",
            ),
            notes=joined(whole.remark, micro.remark),
            # The relative uncertainty is that of a step of one micro-batch.
            interval_s=micro.interval(step_s / micro.step_s, 0.0),
        )


class TorchgpipeReplay(BuiltInPredictor):
    """The schedule of a step, replayed with the measured blocks of each partition."""

    name = "torchgpipe-replay"
    source = "replay of torchgpipe's schedule on emulated devices"

    def model(self, inputs: CellInputs) -> Prediction:
        workload, plan, strategy = inputs.workload, inputs.plan, inputs.strategy
        if workload.compute_kind != "emulated":
            raise NotPredictable(
                f"{self.name} is of emulated accelerators; partitions on CPUs take turns, and "
                "copies between GPUs take time"
            )
        planned = strategy.schedule_of(plan, 1)
        if planned is None:
            raise NotPredictable(f"{inputs.cell.strategy} has no schedule to replay")
        batch_size = inputs.cell.batch_size
        samples = batch_size / strategy.micro_batches(plan)
        whole, micro = workload.step(batch_size), workload.step(samples)
        factors = as_whole_steps(workload, samples)
        times = stage_times(workload, plan, samples, batch_size, factors)
        passes = StageDurations(forward_s=times.forward_s, backward_s=times.backward_s)
        timeline = replay(planned.schedule, passes)
        devices = planned.schedule.world_size
        busy_s = sum(map(timeline.busy_s, range(devices))) / devices
        compute_s, bubble_s = _once_s(whole) + busy_s, timeline.end_s - busy_s
        return Prediction(
            self.name,
            compute_s=compute_s,
            bubble_s=bubble_s,
            limits=(
                "the host queues work faster than devices do it",
                "a block takes as long as where its process waits for it",
                "copies between partitions cost nothing",
            ),
            notes=joined(whole.remark, times.notes),
            # The relative uncertainty is that of a step of one micro-batch.
            interval_s=micro.interval((compute_s + bubble_s) / micro.step_s, 0.0),
        )
