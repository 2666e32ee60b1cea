"""torchgpipe on CPU: its partitions share one thread and take turns.

::

    partition 0  F0    F1          B1       R0 B0        2 partitions, 2 micro-batches;
    partition 1     F0    F1 B1       R0 B0              R: forward recomputed
                 ------------ time ------------>         never two at a time

    T = t(B) - f(B) - b(B)  +  m (f(B/m) + b(B/m))  +  r f(B/m)
        once a step            the micro-batches       r = m - 1 of them are recomputed

t, f and b are step, forward and backward of the profile, m micro-batches. Loading, the loss and the
update happen once a step. ``checkpoint: always`` recomputes all micro-batches (r = m), ``never``
none (r = 0). m = 1 is model parallelism: T = t(B).

torchgpipe has a worker thread for each device, and all its CPU partitions are on the one device
``cpu``. Autograd goes back through them in one thread, too. Handing a tensor to the next partition
copies nothing there. So there is neither overlap nor bubble nor communication. On GPUs partitions
compute at the same time, so this model does not cover them.

Sources: torchgpipe 0.0.7, ``worker.py``, ``copy.py``, ``gpipe.py`` (Kim et al. 2020, section 3.2.3:
recomputation). The sum is ours.
"""

from __future__ import annotations

from ddlbench.predict.prediction import (
    BuiltInPredictor,
    CellInputs,
    NotPredictable,
    Prediction,
    joined,
)


class TorchgpipeTurns(BuiltInPredictor):
    """The passes of all micro-batches, one after the other."""

    name = "torchgpipe-turns"
    source = "torchgpipe's one thread for all CPU partitions"

    def model(self, inputs: CellInputs) -> Prediction:
        workload, strategy, batch_size = inputs.workload, inputs.strategy, inputs.cell.batch_size
        if workload.device_kind != "cpu":
            raise NotPredictable(f"{self.name} is of CPUs; partitions on GPUs compute at once")
        micro_batches = strategy.micro_batches(inputs.plan)
        whole, micro = workload.step(batch_size), workload.step(batch_size / micro_batches)
        once_s = max(0.0, whole.step_s - whole.forward_s - whole.backward_s)
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
