"""Tensor parallelism of pairs of linear layers, also by groups that share the mini-batch.

Of each attention a device has some heads, of each perceptron some hidden features. So a pair of
linear layers costs one all-reduce forward and one backward, where two layers split by filters cost
two each way.

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism" (2019), section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason
from ddlbench.planning.network_tables import NetworkTraits, linear_pairs, why_not_in_pairs
from ddlbench.planning.plan import Options, Plan
from ddlbench.planning.step import Compute, Group, GroupOptions, Message, Step, transport_of
from ddlbench.strategies.grouped import GroupDetails, Grouped, weights_with_hooks
from ddlbench.strategies.tensor_parallel.shares import DeviceShare

if TYPE_CHECKING:
    from ddlbench.planning.workload import Workload


class TensorParallel(Grouped):
    """All devices split every pair of linear layers (Megatron-LM), by torch's DTensor."""

    name: ClassVar[str] = "tensor-parallel"
    label: ClassVar[str] = "Tensor"
    colour: ClassVar[str] = "#6A3D9A"
    marker: ClassVar[str] = "$\\bigstar$"
    executor: ClassVar[str] = "ddlbench.strategies.tensor_parallel.executor:TensorParallelExecutor"
    predictors: ClassVar[tuple[str, ...]] = ("linear-pairs",)
    # As the splits, not ranked by a recommender of single models on CPUs, where the host's time for
    # DTensor's operations is not modelled.
    preferred_predictor: ClassVar[Mapping[str, str]] = {"cuda": "linear-pairs"}

    def limit(self, cell: Cell) -> str | None:
        known = linear_pairs(cell)
        if known is None:
            return None
        return why_not_in_pairs(known, cell.network, self.name, self.group_size(cell))

    def why_not_network(self, traits: NetworkTraits, plan: Plan) -> Reason | None:
        return weights_with_hooks(traits, self.label)

    def step(self, workload: Workload, plan: Plan) -> Step:
        """Both passes with an all-reduce a pair, sums of gradients over groups, the update."""
        share, details = _share(workload, plan), GroupDetails.of(plan)
        within = Group.of(plan, range(details.group))
        over = Group.of(plan, range(0, plan.world_size, details.group))
        tasks: list[Compute | Message] = [Compute("load")]
        for phase, sizes in (("forward", share.forward_bytes), ("backward", share.backward_bytes)):
            pieces = len(sizes) + 1
            for size in (*sizes, None):
                tasks.append(Compute(phase, share.computed_share / pieces))  # type: ignore[arg-type]
                if size is not None:
                    tasks.append(Message("all_reduce", size, group=within))
        tasks += [Message("all_reduce", size, group=over) for size in share.gradient_bytes]
        tasks.append(Compute("update", share.updated_share))
        samples = plan.cell.batch_size / details.replicas
        return Step(tuple(tasks), samples, transport_of(workload.device_kind))

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        return (_share(workload, plan).peak_bytes(plan.cell.momentum),) * plan.world_size


class DataTensor(TensorParallel):
    """Groups split pairs of linear layers; gradients are averaged over groups."""

    name: ClassVar[str] = "data-tensor"
    label: ClassVar[str] = "Data + tensor"
    colour: ClassVar[str] = "#CAB2D6"
    marker: ClassVar[str] = "$\\divideontimes$"
    options: ClassVar[type[Options]] = GroupOptions


def _share(workload: Workload, plan: Plan) -> DeviceShare:
    details = GroupDetails.of(plan)
    samples = plan.cell.batch_size / details.replicas
    return DeviceShare(workload, details.group, details.replicas, samples)
