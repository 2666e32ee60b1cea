"""Fully sharded data parallelism (FSDP2), by all ranks or by groups of them (HSDP).

::

    between steps     every rank keeps 1/W of each weight, its gradient and its momentum
    a block's turn    | all-gather its weights | compute | free them |
    after backward    | reduce-scatter its gradients: each rank gets the sum of its 1/W |

With ``reshard_after_forward`` weights are gathered again before their backward pass (ZeRO stage 3):
3 messages of the network's size a step where DDP's all-reduce sends 2. Without it they are kept
until then (stage 2): as many bytes as DDP, but less memory for gradients and momentum. The last
block is never freed in between, as its backward pass comes next.

In hybrid sharding ranks of a group share the weights, and groups have copies of them::

    node 0   [ rank 0: w 1/2   rank 1: w 2/2 ]   group 0: samples 0 .. b-1
    node 1   [ rank 2: w 1/2   rank 3: w 2/2 ]   group 1: samples b .. 2b-1
                 |                  |
                 '- all-reduces of the gradients of a share, between nodes

Between nodes travel the gradients of a share only, once a step, while FSDP sends whole weights and
gradients. Within a group each rank keeps more: 1 over the ranks of a group, not of all.

With ``accumulate`` gradients of each micro-batch are reduce-scattered, and weights gathered for it.
A rank adds up its share of the gradients. FSDP2 could also add up whole gradients and scatter them
once (``set_requires_gradient_sync(False)``), but then every rank would keep m bytes of gradients in
place of m/W, and sharing them is what FSDP is taken for. Groups of HSDP sum the shares once a step,
as these lose no room by waiting.

Sources: S. Rajbhandari et al., "ZeRO", SC 2020, section 7; Y. Zhao et al., "PyTorch FSDP", VLDB
2023, of hybrid sharding section 3.2.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.experiment.site import ComputeKind
from ddlbench.experiment.status import Reason
from ddlbench.planning.accumulation import Accumulating, AccumulatingOptions
from ddlbench.planning.data_parallel import (
    ShardedUnit,
    data_parallel_placement,
    sharded_bytes,
    sharded_step,
)
from ddlbench.planning.network_tables import NetworkTraits, borrowing, first_unsupported
from ddlbench.planning.plan import Options, Plan, Process, Tried
from ddlbench.planning.recomputation import RecomputingOptions
from ddlbench.planning.step import GroupOptions, larger_groups, other_groups, uneven_groups

if TYPE_CHECKING:
    from ddlbench.planning.step import Step
    from ddlbench.planning.workload import Workload


@dataclass(frozen=True, kw_only=True)
class FsdpOptions(AccumulatingOptions, RecomputingOptions):
    """Options of fully sharded data parallelism."""

    reshard_after_forward: Annotated[bool, Tried(False)] = True
    """Free a block's whole weights after its forward pass and gather them again before its backward
    pass (ZeRO stage 3); false keeps them (stage 2)."""
    param_dtype: Literal["fp32", "bf16"] = "fp32"
    """Type in which weights are gathered and computed with. Gradients are summed, and weights
    updated, in fp32."""


class FullyShardedDataParallel(Accumulating):
    """Data parallelism whose ranks share weights, gradients and momentum (ZeRO 2 and 3)."""

    name: ClassVar[str] = "fsdp"
    label: ClassVar[str] = "FSDP"
    family: ClassVar[str] = "data parallel"
    colour: ClassVar[str] = "#332288"
    marker: ClassVar[str] = "$\\heartsuit$"
    parallelism: ClassVar[str | None] = "data"
    executor: ClassVar[str] = "ddlbench.strategies.fsdp.executor:FsdpExecutor"
    scales_loss: ClassVar[bool] = True
    not_compiled: ClassVar[str] = ""
    predictors: ClassVar[tuple[str, ...]] = ("sharded",)
    preferred_predictor: ClassVar[Mapping[str, str]] = {"cpu": "sharded", "cuda": "sharded"}
    options: ClassVar[type[Options]] = FsdpOptions

    def why_not_network(self, traits: NetworkTraits, plan: Plan) -> Reason | None:
        """FSDP shares the rows of contiguous weights, which lose their hooks."""
        scalars = "cannot share a weight without a dimension"
        why = first_unsupported(
            "FSDP",
            (traits.scalars, scalars, "write its shape as (1,)"),
            (traits.strided, "takes contiguous weights only", "remove .to(memory_format=...)"),
            (traits.sparse, "cannot sum sparse gradients", "write sparse=False"),
            (traits.mixed_types, "takes blocks of weights of one type", "split the block"),
            (traits.whole_numbers, "shares no whole numbers", "register it as a buffer"),
            (traits.written, "loses what a forward pass writes", "change it between steps only"),
            (traits.irregular, "gathers weights that all ranks use alike", "use ddp"),
            (traits.hooked, "drops hooks of a weight's gradient", "change it within forward"),
        )
        return why or (borrowing(traits) if traits.borrowed else None)

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        return data_parallel_placement(cell)

    def note(self, compute_kind: ComputeKind) -> str | None:
        if compute_kind == "cuda":
            return None
        return (
            "on CPUs gloo's reduce-scatter costs an all-reduce, and no collective runs beside "
            "computation"
        )

    def precision(self, cell: Cell) -> str:
        return "bf16" if FsdpOptions.of_cell(cell).param_dtype == "bf16" else cell.precision

    def zero_stage(self, cell: Cell) -> int:
        return 3 if FsdpOptions.of_cell(cell).reshard_after_forward else 2

    def sharers(self, cell: Cell) -> int:
        """Ranks that share the weights."""
        return cell.devices

    def units(self, workload: Workload, plan: Plan) -> list[ShardedUnit]:
        """The weights that are gathered at once, block by block."""
        details = FsdpOptions.of(plan)
        width = 2 if details.param_dtype == "bf16" else 1
        sizes = {
            index: block.parameter_bytes
            for index, block in enumerate(workload.blocks)
            if block.parameter_bytes
        }
        last = max(sizes, default=0)
        tensors = Counter(tensor.block for tensor in workload.tensors)
        return [
            ShardedUnit(
                block=index,
                shard_bytes=-(-size // (width * self.sharers(plan.cell))),
                gradient_bytes=size,
                gathered_twice=details.reshard_after_forward and index != last,
                tensors=max(1, tensors[index]),
            )
            for index, size in sizes.items()
        ]

    def step(self, workload: Workload, plan: Plan) -> Step:
        units, sharers = self.units(workload, plan), self.sharers(plan.cell)
        count = self.micro_batches(plan)
        return sharded_step(workload, plan, units, sharers, "fsdp", micro_batches=count)

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        units, sharers = self.units(workload, plan), self.sharers(plan.cell)
        count = self.micro_batches(plan)
        return sharded_bytes(workload, plan, units, sharers, micro_batches=count)


@dataclass(frozen=True, kw_only=True)
class HsdpOptions(FsdpOptions, GroupOptions):
    """Options of FSDP, and how many devices share the weights."""


class HybridSharded(FullyShardedDataParallel):
    """Weights are shared within a group, by default a node, and copied between groups."""

    name: ClassVar[str] = "hsdp"
    label: ClassVar[str] = "HSDP"
    colour: ClassVar[str] = "#6F5FA8"
    marker: ClassVar[str] = "$\\circledast$"
    not_compiled: ClassVar[str] = "its two axes have not been tried with torch.compile"
    options: ClassVar[type[Options]] = HsdpOptions

    def sharers(self, cell: Cell) -> int:
        return HsdpOptions.of_cell(cell).group or cell.devices_per_node

    def supports(self, cell: Cell) -> str | None:
        return uneven_groups(cell, self.sharers(cell)) or super().supports(cell)

    def alternatives(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Groups of several nodes, whose ranks keep less."""
        yield from ({"group": size} for size in larger_groups(cell))

    def refinements(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Groups whose ranks send less, or keep less."""
        yield from ({"group": size} for size in other_groups(cell, self.sharers(cell)))
