"""What one data-parallel worker does in a step, beside the all-reduces of gradients.

A worker that accumulates computes its share in n micro-batches of b samples, and updates once::

    T = n t(b) - (n - 1) t_update        one micro-batch after the other

A worker that updates only its share of the weights sends them to all others afterwards::

    rank 0    | forward | backward | update w0 |++ w0 to all ++|
    rank 1    | forward | backward | update w1 |++ w1 to all ++|

``gathered_bytes`` are those of the larger share. They travel in one all-gather, or every rank
broadcasts its own: gloo's two threads send two broadcasts at once, in the order of ranks, and two
that begin on one node share its links and cores (``gloo/broadcast.cc``: a binomial tree)::

    node 0    | from 0: ++++++++ |                      four ranks on two nodes: four broadcasts,
              | from 1: ++++++++ | from 2: ++++++++ |   each as long as two that have the
    node 1                       | from 3: ++++++++ |   links alone
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ddlbench.planning.workload import Step
from ddlbench.predict.collectives import ALL_GATHER, BROADCAST
from ddlbench.predict.prediction import CellInputs

_GLOO_THREADS = 2  # of torch's process group


@dataclass(frozen=True)
class WorkerStep:
    """A worker's computation in a step.

    Args:
        step: a sequential step of what the worker computes at once: its share or a micro-batch.
        step_s: seconds of the worker's whole step, data loading and update included.
    """

    step: Step
    step_s: float

    def interval(self, factor: float, further_s: float) -> tuple[float, float] | None:
        """Interval of ``factor`` times ``step_s`` plus ``further_s``, which counts as certain."""
        return self.step.interval(factor * self.step_s / self.step.step_s, further_s)


def worker_step(inputs: CellInputs) -> WorkerStep:
    """The step of one worker, without messages."""
    count = inputs.strategy.micro_batches(inputs.plan)
    step = inputs.workload.step(inputs.cell.batch_size / inputs.plan.world_size / count)
    saved_s = (count - _updated_share(inputs)) * step.optimizer_s
    return WorkerStep(step, count * step.step_s - saved_s)


def _updated_share(inputs: CellInputs) -> float:
    """Share of the weights that the busiest worker updates."""
    traffic = inputs.strategy.gradient_traffic(inputs.workload, inputs.plan)
    if traffic is None or not traffic.gathered_bytes:
        return 1.0
    return traffic.gathered_bytes / inputs.workload.parameter_bytes


def gather_s(inputs: CellInputs) -> tuple[float, tuple[str, ...]]:
    """Seconds in which all workers get the weights that others have updated, and remarks.

    Raises:
        ConfigError: the collective was not swept.
    """
    traffic = inputs.strategy.gradient_traffic(inputs.workload, inputs.plan)
    if traffic is None or not traffic.gathered_bytes:
        return 0.0, ()
    cell = inputs.cell
    shape = (cell.nodes, cell.devices_per_node, traffic.transport)
    if traffic.gathered_by == ALL_GATHER:
        times = inputs.links.collective(ALL_GATHER, *shape)
        return times.time_s(traffic.gathered_bytes), times.notes
    times = inputs.links.collective(BROADCAST, *shape)
    roots = [process.node for process in inputs.plan.processes]
    turns = _turns(roots, _GLOO_THREADS if traffic.transport == "gloo" else 1)
    return turns * times.time_s(traffic.gathered_bytes), times.notes


def _turns(roots: Sequence[int], at_once: int) -> int:
    """As many broadcasts one after the other take as long as those from these nodes."""
    groups = [roots[first : first + at_once] for first in range(0, len(roots), at_once)]
    return sum(max(Counter(group).values()) for group in groups)
