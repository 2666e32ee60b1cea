"""Base of data-parallel strategies, and the steps of those that share out their weights.

Each device has the whole network, and all-reduces sum gradients::

    rank 0    forward | backward ...............|  update       its share of the mini-batch
    rank 1    forward | backward ...............|  update       its share
    messages             |-- m0 --| |-- m1 --| |-m2-|           all-reduces of gradients

A strategy that derives from :class:`DataParallel` and states its messages gets a memory model and
the predictors of data parallelism.

Where ranks each keep a share of the weights, a step gathers and scatters them::

    forward   | gather 1 | block 1 | gather 2 | block 2 | gather 3 | block 3 |
    backward  | block 3 | scatter 3 | gather 2 | block 2 | scatter 2 | ... | scatter 1 |

A unit is what is gathered at once: one block. A unit that is freed after its forward pass is
gathered again before its backward pass (ZeRO stage 3); one that is kept is not (stage 2).

Sources: S. Rajbhandari et al., "ZeRO", SC 2020, sections 5 and 7.2; Y. Zhao et al., "PyTorch
FSDP", VLDB 2023, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.memory import data_parallel_bytes
from ddlbench.planning.plan import Plan, Process, placement_of_groups
from ddlbench.planning.step import (
    LINK,
    Compute,
    GradientMessage,
    Group,
    Message,
    Step,
    blocking,
    summed_gradients,
    transport_of,
    why_uneven,
    worker_tasks,
)
from ddlbench.planning.strategy import Strategy, workers_of

if TYPE_CHECKING:
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

    def updated_share(self, workload: Workload, plan: Plan) -> float:
        """Largest share of the weights that a rank updates; by default what it sends of them."""
        gathered = self.gathered(workload, plan)
        return gathered.bytes / workload.parameter_bytes if gathered else 1.0

    def transport(self, device_kind: str) -> str:
        """Library of the all-reduce, as links.json names it; torch.distributed's by default."""
        return transport_of(device_kind)

    def step(self, workload: Workload, plan: Plan) -> Step | None:
        """Sums leave during the last backward pass; the weights that ranks share follow.

        Raises:
            ConfigError: nobody knows the messages before they are sent.
        """
        count, gathered = self.micro_batches(plan), self.gathered(workload, plan)
        tasks = summed_gradients(
            worker_tasks(count),
            self.gradient_messages(workload, plan),
            self.updated_share(workload, plan),
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
        sent_bytes = self.communication_bytes(workload, plan)
        return data_parallel_bytes(workload, plan, sent_bytes, self.micro_batches(plan))


def data_parallel_placement(cell: Cell) -> tuple[Process, ...]:
    """One process a device, each with its own share of every mini-batch."""
    return placement_of_groups(cell, 1)


def uneven_shares(cell: Cell) -> str | None:
    """Why the mini-batch cannot be shared equally; None if it can."""
    return why_uneven(cell.batch_size, workers_of(cell))


@dataclass(frozen=True)
class ShardedUnit:
    """The weights that are gathered at once.

    Args:
        block: index of the block that they belong to.
        shard_bytes: that each rank gives to be gathered.
        gradient_bytes: of a rank's whole gradients, which it gives to be summed.
        gathered_twice: its whole weights are freed between the forward and the backward pass.
        tensors: of which they are.
    """

    block: int
    shard_bytes: int
    gradient_bytes: int
    gathered_twice: bool
    tensors: int = 1


def sharded_step(
    workload: Workload,
    plan: Plan,
    units: Sequence[ShardedUnit],
    sharers: int,
    library: str | None = None,
    *,
    micro_batches: int = 1,
) -> Step:
    """Gathers, passes and reduce-scatters of a step, block by block.

    Where groups of ``sharers`` neighbouring ranks have copies of the weights, the ranks with the
    same share of them sum their gradients, too, once a step.

    Each micro-batch gathers the weights and scatters the gradients anew, as a rank has room for its
    share of them only.

    On CPUs each message holds up its rank. On GPUs weights of the next block are gathered when a
    block begins, and gradients are summed beside the backward pass::

        compute     | F1 | F2 | F3 | B3 | B2   | B1   |
        link   |-g1-|-g2-|-g3-|    |-g2-|-r3-|-g1-|-r2-|-r1-|       one block ahead
    """
    begins = [*(unit.block for unit in units[1:]), len(workload.blocks)]
    firsts = [0, *begins[:-1]]
    there = [
        ("forward", unit, range(first, end), True)
        for unit, first, end in zip(units, firsts, begins, strict=True)
    ]
    back = [("backward", unit, blocks, unit.gathered_twice) for _, unit, blocks, _ in there[::-1]]
    passes = [*there, *back]
    over = None
    if sharers < plan.world_size:
        over = Group.widest(plan, range(0, plan.world_size, sharers))
    within = Group.widest(plan, range(sharers))
    tasks: list[Compute | Message] = []
    scattered: list[int] = []
    for remaining in reversed(range(micro_batches)):
        tasks += [Compute("load"), Compute("rest")]
        gathered: tuple[int, ...] = ()
        if passes:
            gathered = (len(tasks),)
            # FSDP waits for the sums of a backward pass before it goes on.
            tasks.append(_gather(passes[0][1], within, tuple(scattered)))
        scattered = []
        for (phase, unit, blocks, _), after in zip(passes, [*passes[1:], None], strict=True):
            weights = gathered
            if after is not None and after[3]:
                gathered = (len(tasks),)
                tasks.append(_gather(after[1], within, weights))
            tasks.append(Compute(phase, blocks=blocks, waits_for=weights))  # type: ignore[arg-type]
            if phase == "backward":
                size, part = unit.gradient_bytes, -(-unit.gradient_bytes // sharers)
                tasks.append(
                    Message("reduce_scatter", size, LINK, (), within, tensors=unit.tensors)
                )
                if over is not None and not remaining:
                    tasks.append(Message("all_reduce", part, LINK, (len(tasks) - 1,), over))
                scattered.append(len(tasks) - 1)
    tasks.append(Compute("update", waits_for=tuple(scattered)))
    beside = tuple(tasks) if workload.device_kind == "cuda" else blocking(tasks)
    samples = plan.cell.batch_size / plan.world_size / micro_batches
    return Step(beside, samples, transport_of(workload.device_kind), library)


def _gather(unit: ShardedUnit, within: Group, waits_for: tuple[int, ...]) -> Message:
    return Message("all_gather", unit.shard_bytes, LINK, waits_for, within, tensors=unit.tensors)


def sharded_bytes(
    workload: Workload,
    plan: Plan,
    units: Sequence[ShardedUnit],
    sharers: int,
    *,
    micro_batches: int = 1,
) -> tuple[int, ...]:
    """Peak bytes of every rank, if ``sharers`` ranks keep a share of the weights each (FSDP2).

    The peak is at the worst of these moments of a unit (``w`` whole weights, ``s`` the share that a
    rank gives, ``g`` whole gradients)::

        all-gather        shares | activations so far | s + w received | w copied out
        backward          shares | activations left   | w | a | g of the unit, r of the last one
        reduce-scatter    shares | activations left   | a | g | g copied in

    FSDP gathers one unit ahead in the backward pass (``a``). On CPUs gloo copies what it scatters.
    Shares are weights, the optimiser's states, and gradients of units that are done: of all, where
    an earlier micro-batch left some. Then a unit's new share exists until it is added.
    """
    blocks, cell = workload.blocks, plan.cell
    share = cell.batch_size / plan.world_size
    samples = share / micro_batches
    kept = {unit.block: unit for unit in units}
    shares = {index: unit.gradient_bytes / sharers for index, unit in kept.items()}
    base = sum(shares.values()) * (1 + cell.optimizer_states)
    base += workload.fixed_memory_bytes + sum(block.buffer_bytes for block in blocks)
    if micro_batches > 1:
        base += sum(shares.values()) + (share - samples) * blocks[0].input_bytes
    saved = whole = peak = 0.0
    for index, block in enumerate(blocks):
        if index in kept:
            gathered = kept[index].shard_bytes * sharers
            peak = max(peak, whole + samples * saved + 2 * gathered + kept[index].shard_bytes)
            whole += 0 if kept[index].gathered_twice else gathered
        saved += block.saved_bytes
    copies = 2 if workload.device_kind == "cuda" else 3
    done = last = ahead = 0.0
    for index in reversed(range(len(blocks))):
        block, unit = blocks[index], kept.get(index)
        passing = block.recomputed_bytes + block.input_bytes + block.output_bytes
        activations = samples * (saved + passing)
        weights = unit.shard_bytes * sharers if unit else 0
        gradients = unit.gradient_bytes if unit else 0
        if unit is not None and unit.gathered_twice:
            gathering = 2 * weights + unit.shard_bytes
            peak = max(peak, whole + done + last + samples * saved + gathering)
            whole += weights
        if unit is not None:
            before = kept.get(max((other for other in kept if other < index), default=-1))
            ahead = before.shard_bytes * sharers if before and before.gathered_twice else 0
        peak = max(peak, whole + ahead + done + last + activations + gradients)
        whole -= weights
        saved -= block.saved_bytes
        if unit is not None:
            reducing = samples * (saved + block.input_bytes) + copies * gradients + shares[index]
            peak = max(peak, whole + ahead + done + reducing)
            done += shares[index] if micro_batches == 1 else 0.0
            last = gradients
    return (round(base + peak),) * plan.world_size
