"""torchgpipe on CPU: its partitions share one thread and take turns.

::

    partition 0  F0    F1          B1       R0 B0        2 partitions, 2 micro-batches;
    partition 1     F0    F1 B1       R0 B0              R: forward recomputed
                 ------------ time ------------>         never two at a time

    T = t(B) - f(B) - b(B)  +  m (f(B/m) + b(B/m))  +  r f(B/m)
        once a step            the micro-batches       r = m - 1 of them are recomputed

t, f and b are step, forward and backward of the profile, m micro-batches; what is done once a step
is loading, the loss and the update. ``checkpoint: always`` recomputes all micro-batches (r = m),
``never`` none (r = 0). m = 1 is model parallelism: T = t(B).

torchgpipe has a worker thread for each device, and all its CPU partitions are on the one device
``cpu``; autograd goes back through them in one thread, too. Handing a tensor to the next partition
copies nothing there. So there is neither overlap nor bubble nor communication. On GPUs partitions
do compute at once: there the predictor says nothing.

Sources: torchgpipe 0.0.7, ``worker.py``, ``copy.py``, ``gpipe.py`` (Kim et al. 2020, section 3.2.3:
recomputation). The sum is ours.
"""

from __future__ import annotations

from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.links import LinkTable
from ddlbench.predict.prediction import (
    NO_HISTORY,
    History,
    NotPredictable,
    Prediction,
    Predictor,
    joined,
)

_LIMITS = (
    "partitions have one core: a process that may use the shares of all its devices is faster",
    "cutting a mini-batch into micro-batches and joining their outputs costs nothing",
)


class TorchgpipeTurns(Predictor):
    """The passes of all micro-batches, one after the other."""

    name: ClassVar[str] = "torchgpipe-turns"
    source: ClassVar[str] = "torchgpipe's one thread for all CPU partitions"

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module."""
        if workload.device_kind != "cpu":
            raise NotPredictable(f"{self.name} is of CPUs; partitions on GPUs compute at once")
        strategy = strategy_of(cell.strategy)
        chunks = strategy.micro_batches(plan)
        whole, one = workload.step(cell.batch_size), workload.step(cell.batch_size / chunks)
        once_s = max(0.0, whole.step_s - whole.forward_s - whole.backward_s)
        passes_s = chunks * (one.forward_s + one.backward_s)
        step_s = once_s + passes_s + strategy.recomputed_micro_batches(plan) * one.forward_s
        return Prediction(
            self.name,
            compute_s=step_s,
            limits=_LIMITS,
            notes=joined(whole.remark, one.remark),
            # As uncertain, relative to its length, as a step of one micro-batch.
            interval_s=one.interval(step_s / one.step_s, 0.0),
        )
