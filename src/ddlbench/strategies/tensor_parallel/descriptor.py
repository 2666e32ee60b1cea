"""Tensor parallelism of pairs of linear layers, and groups of it that share the mini-batch.

::

    tensor-parallel   [ rank 0  rank 1  rank 2  rank 3 ]    all devices: the same samples

    data-tensor       node 0   [ rank 0  rank 1 ]           group 0: samples 0 .. b-1
                      node 1   [ rank 2  rank 3 ]           group 1: samples b .. 2b-1
                                 0-2: the same part of the weights, whose gradients are added up

Of each attention a device has some heads, of each perceptron some hidden features. So a pair of
linear layers costs one all-reduce forward and one backward, where two layers split by filters cost
two each way.

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism" (2019), section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.experiment.status import Reason
from ddlbench.planning.network_tables import (
    NetworkTraits,
    first_unsupported,
    linear_pairs,
    why_not_in_pairs,
)
from ddlbench.planning.plan import Options, Plan, PlanDetails, Process, placement_of_groups
from ddlbench.planning.step import (
    Compute,
    Group,
    GroupOptions,
    Message,
    Step,
    larger_groups,
    transport_of,
    uneven_groups,
)
from ddlbench.planning.strategy import Strategy
from ddlbench.strategies.tensor_parallel.shares import DeviceShare

if TYPE_CHECKING:
    from ddlbench.planning.workload import Workload


@dataclass(frozen=True)
class TensorDetails(PlanDetails):
    """Plan details of tensor parallelism."""

    group: int
    replicas: int


class TensorParallel(Strategy):
    """All devices split every pair of linear layers (Megatron-LM), by torch's DTensor."""

    name: ClassVar[str] = "tensor-parallel"
    label: ClassVar[str] = "Tensor"
    family: ClassVar[str] = "split"
    colour: ClassVar[str] = "#6A3D9A"
    marker: ClassVar[str] = "$\\bigstar$"
    executor: ClassVar[str] = "ddlbench.strategies.tensor_parallel.executor:TensorParallelExecutor"
    not_compiled: ClassVar[str] = "every message within a layer ends what torch can compile"
    predictors: ClassVar[tuple[str, ...]] = ("linear-pairs",)
    # As the splits, not ranked by a recommender of single models on CPUs, where the host's time for
    # DTensor's operations is not modelled.
    preferred_predictor: ClassVar[Mapping[str, str]] = {"cuda": "linear-pairs"}

    def group_size(self, cell: Cell) -> int:
        """Devices that compute the same samples."""
        return cell.devices

    def supports(self, cell: Cell) -> str | None:
        size = self.group_size(cell)
        if (why := uneven_groups(cell, size)) is not None:
            return why
        known = linear_pairs(cell)
        if known is None:  # a user's own network is checked when it runs
            return None
        return why_not_in_pairs(known, cell.network, self.name, size)

    def why_not_network(self, traits: NetworkTraits, plan: Plan) -> Reason | None:
        return weights_with_hooks(traits, self.label)

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        return placement_of_groups(cell, self.group_size(cell))

    def details(self, cell: Cell) -> dict[str, Any]:
        size = self.group_size(cell)
        return {"group": size, "replicas": cell.devices // size}

    def step(self, workload: Workload, plan: Plan) -> Step:
        """Both passes with an all-reduce a pair, sums of gradients over groups, the update."""
        share, details = _share(workload, plan), TensorDetails.of(plan)
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

    def group_size(self, cell: Cell) -> int:
        return GroupOptions.of_cell(cell).group or cell.devices_per_node

    def alternatives(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Groups of several nodes, so that the batch divides over fewer of them."""
        yield from ({"group": size} for size in larger_groups(cell))


def weights_with_hooks(traits: NetworkTraits, label: str) -> Reason | None:
    """Why weights cannot be split: parts of a weight are new weights, without its hooks."""
    why = "has none of the hooks of a weight's gradient"
    instead = "change the gradient within forward, by torch.autograd.Function"
    return first_unsupported(f"{label} splits weights, and a part", (traits.hooked, why, instead))


def _share(workload: Workload, plan: Plan) -> DeviceShare:
    details = TensorDetails.of(plan)
    samples = plan.cell.batch_size / details.replicas
    return DeviceShare(workload, details.group, details.replicas, samples)
