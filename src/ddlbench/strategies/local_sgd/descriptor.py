"""Local SGD, and DiLoCo's outer optimiser.

::

    rank 0    | step | step | step | step |++++++++++++| step | step | ...     H = 4
    rank 1    | step | step | step | step |++++++++++++| step | step | ...
               each on its own share of    all-reduce:
               the mini-batch, no messages  the mean of all weights

Every rank trains its own replica for H steps; then all take the mean of their weights (Stich 2019,
algorithm 1). With ``outer_optimizer: nesterov`` the mean is no new start but a direction: the outer
gradient is the weights before the round minus the mean, and an outer SGD with Nesterov momentum
makes a step along it (Douillard et al. 2023, algorithm 1).

Momentum of the local steps and batch-norm statistics stay local, as in the papers. With H = 1 and
``average`` the weights are those of DDP all the same, with momentum too: all ranks start a step at
the same weights, and the mean of ``m v + g`` is ``m mean(v) + mean(g)``. With H > 1 a gradient is
of weights that have not seen what the other ranks did since the round began.

Sources: S. U. Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; A. Douillard et
al., "DiLoCo", 2023, section 2 (outer learning rate 0.7, momentum 0.9).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Gt, Lt

from ddlbench.common.form import Count, Positive
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason
from ddlbench.planning.data_parallel import data_parallel_placement, uneven_shares
from ddlbench.planning.memory import backward_peak_bytes, data_parallel_bytes
from ddlbench.planning.plan import Options, Plan, Process
from ddlbench.planning.recomputation import RecomputingOptions
from ddlbench.planning.step import (
    Message,
    Step,
    summed_gradients,
    transport_of,
    whole_buckets,
    worker_tasks,
)
from ddlbench.planning.strategy import Strategy

if TYPE_CHECKING:
    from ddlbench.planning.workload import Workload


@dataclass(frozen=True, kw_only=True)
class LocalSgdOptions(RecomputingOptions):
    """Options of local SGD; ``tune`` tries none: a longer round is faster, but trains otherwise."""

    average_every_steps: Count = 4
    """Steps of a round: every rank trains alone, then weights are averaged."""
    outer_optimizer: Literal["average", "nesterov"] = "average"
    """What a round ends with: the mean of all weights, or a step of an outer SGD with Nesterov
    momentum towards it (DiLoCo)."""
    outer_lr: Positive = 0.7
    """Learning rate of the outer SGD; of nesterov only."""
    outer_momentum: Annotated[float, Gt(0), Lt(1)] = 0.9
    """Nesterov momentum of the outer SGD; of nesterov only."""


class LocalSgd(Strategy):
    """Replicas that train alone for H steps and then average their weights."""

    name: ClassVar[str] = "local-sgd"
    replay: ClassVar[str] = "ddlbench.strategies.local_sgd.executor:replay"
    label: ClassVar[str] = "Local SGD"
    family: ClassVar[str] = "data parallel"
    colour: ClassVar[str] = "#5B6C8F"
    marker: ClassVar[str] = "$\\bowtie$"
    executor: ClassVar[str] = "ddlbench.strategies.local_sgd.executor:LocalSgdExecutor"
    not_compiled: ClassVar[str] = ""
    synchronous: ClassVar[bool] = False
    predictors: ClassVar[tuple[str, ...]] = ("averaged-weights",)
    preferred_predictor: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("cpu", "cuda"), "averaged-weights"
    )
    options: ClassVar[type[Options]] = LocalSgdOptions

    def supports(self, cell: Cell) -> str | None:
        unread = {"outer_lr", "outer_momentum"} & dict(cell.options).keys()
        if unread and LocalSgdOptions.of_cell(cell).outer_optimizer == "average":
            return Reason(
                "conflicting_options",
                f"{' and '.join(sorted(unread))} belong to outer_optimizer: nesterov; "
                "outer_optimizer is average",
            )
        return uneven_shares(cell)

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        return data_parallel_placement(cell)

    def round_steps(self, cell: Cell) -> int:
        return LocalSgdOptions.of_cell(cell).average_every_steps

    def step(self, workload: Workload, plan: Plan) -> Step:
        """A round: steps without messages, then all-reduces of all weights in buckets."""
        steps = self.round_steps(plan.cell)
        alone = summed_gradients(worker_tasks(), ())
        averaged = [
            Message("all_reduce", sum(bucket), follows=index == 0)
            for index, bucket in enumerate(whole_buckets(workload.tensors, workload.bucket_bytes))
        ]
        return Step(
            (*alone * steps, *averaged),
            plan.cell.batch_size / plan.world_size,
            transport_of(workload.device_kind),
        )

    def replayed_networks(self, plan: Plan) -> int:
        return plan.world_size

    def is_synchronous(self, cell: Cell, details: Mapping[str, Any] | None = None) -> bool:
        """A mean of weights after one step of SGD is a step with the mean gradient.

        On one device it changes nothing. An outer optimiser does.
        """
        if LocalSgdOptions.of_cell(cell).outer_optimizer != "average":
            return False
        return cell.devices == 1 or (self.round_steps(cell) == 1 and cell.optimizer == "sgd")

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        """Peak bytes of every rank.

        ::

            in a step    weights | states | anchor | activations | gradients
            averaging    weights | states | anchor | gradients | copy of the weights | a tensor

        The anchor, which is the weights before the round, and its momentum are nesterov's only, as
        is the tensor that is being updated. A tensor that fills a bucket alone is summed in place.
        """
        nesterov = LocalSgdOptions.of(plan).outer_optimizer == "nesterov"
        in_buckets = whole_buckets(workload.tensors, workload.bucket_bytes)
        copied = sum(sum(bucket) for bucket in in_buckets if len(bucket) > 1)
        updated = max((tensor.bytes for tensor in workload.tensors), default=0) if nesterov else 0
        share = plan.cell.batch_size / plan.world_size
        averaging = workload.parameter_bytes + copied + updated
        more = max(0.0, averaging - backward_peak_bytes(workload.blocks, share))
        held = 2 * workload.parameter_bytes if nesterov else 0
        return data_parallel_bytes(workload, plan, more + held)
