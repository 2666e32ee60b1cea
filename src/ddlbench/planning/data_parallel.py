"""Base of data-parallel strategies: each device has the whole network, all-reduces sum gradients.

::

    rank 0    forward | backward ...............|  update       its share of the mini-batch
    rank 1    forward | backward ...............|  update       its share
    messages             |-- m0 --| |-- m1 --| |-m2-|           all-reduces of gradients

A strategy that derives from :class:`DataParallel` and states its messages gets a memory model and
the predictors of data parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason
from ddlbench.planning.gradient_traffic import GradientMessage
from ddlbench.planning.groups import placement_of_groups
from ddlbench.planning.memory import data_parallel_bytes
from ddlbench.planning.plan import Process
from ddlbench.planning.step import Message, Step, summed_gradients, transport_of, worker_tasks
from ddlbench.planning.strategy import Strategy, workers_of

if TYPE_CHECKING:
    from ddlbench.planning.plan import Plan
    from ddlbench.planning.workload import Workload


class DataParallel(Strategy):
    """One process a device, each with an equal share of every mini-batch."""

    family: ClassVar[str] = "data parallel"
    parallelism: ClassVar[str | None] = "data"
    library: ClassVar[str | None] = None  # see planning.step.Step

    def supports(self, cell: Cell) -> str | None:
        return uneven_shares(cell)

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        return data_parallel_placement(cell)

    def gradient_messages(self, workload: Workload, plan: Plan) -> Sequence[GradientMessage]:
        """The sums of gradients of a step, in order; by default one, after the backward pass."""
        return [GradientMessage(workload.parameter_bytes)]

    def fusion_bytes(self, workload: Workload, plan: Plan) -> int | None:
        """Bytes up to which messages that wait are sent as one; None if each is sent alone."""
        return None

    def gathered(self, workload: Workload, plan: Plan) -> Message | None:
        """How ranks that update only a share of the weights send it; None if all update all."""
        return None

    def transport(self, device_kind: str) -> str:
        """Library of the all-reduce, as links.json names it; torch.distributed's by default."""
        return transport_of(device_kind)

    def step(self, workload: Workload, plan: Plan) -> Step | None:
        """Sums leave during the last backward pass; the weights that ranks share follow.

        Raises:
            ConfigError: nobody knows the messages before they are sent.
        """
        count, gathered = self.micro_batches(plan), self.gathered(workload, plan)
        updated = gathered.bytes / workload.parameter_bytes if gathered else 1.0
        tasks = summed_gradients(
            worker_tasks(count), self.gradient_messages(workload, plan), updated
        )
        return Step(
            (*tasks, gathered) if gathered else tuple(tasks),
            plan.cell.batch_size / plan.world_size / count,
            self.transport(workload.device_kind),
            self.library,
            self.fusion_bytes(workload, plan),
        )

    def communication_bytes(self, workload: Workload, plan: Plan) -> int:
        """Memory for sending gradients; by default none."""
        return 0

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        return data_parallel_bytes(workload, plan, self.communication_bytes(workload, plan))


def data_parallel_placement(cell: Cell) -> tuple[Process, ...]:
    """One process a device, each with its own share of every mini-batch."""
    return placement_of_groups(cell, 1)


def uneven_shares(cell: Cell) -> str | None:
    """Why the mini-batch cannot be shared equally; None if it can."""
    workers = workers_of(cell)
    if cell.batch_size % workers:
        return Reason(
            "uneven_batch",
            f"a mini-batch of {cell.batch_size} does not divide over {workers} workers; "
            f"make batch_size a multiple of {workers}",
        )
    return None
