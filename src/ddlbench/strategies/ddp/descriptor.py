"""PyTorch's DistributedDataParallel, and what PowerSGD sends of it.

::

    backward  |  layer n ... | ... layer 1 |
    bucket 0     |--- all-reduce ---|               gradients leave in buckets,
    bucket 1            |--- all-reduce ---|        last layers first, while
    update                                 |--|     backward still runs

By default torch's buckets have 25 MiB, but the first has 1 MiB, so that messages begin early. An
explicit cap holds for the first bucket, too (``torch/nn/parallel/distributed.py``, torch 2.13:
``_BucketCapacityConfig.create``).

With ``shard: optimizer`` each rank updates only its own tensors and keeps the momentum of these
(ZeRO stage 1)::

    rank 0    | forward | backward | update a d |-- broadcast a d to all --|
    rank 1    | forward | backward | update b c |-- broadcast b c to all --|

torch deals whole tensors, the largest first, each to the rank that has least so far
(``torch/distributed/optim/zero_redundancy_optimizer.py``, ``_partition_parameters``).

With ``accumulate: 2`` a rank sends the sum of the gradients of two micro-batches once (DDP's
``no_sync``)::

    rank 0    | forward | backward | forward | backward .......| update |
    buckets                                       |-- 0 --||-- 1 --|

PowerSGD sends two low factors of each matrix in a bucket, and the rest whole::

    gradient (n, m)   M + what was not sent before  ~  P Q^T        P (n, r), Q (m, r)
    a bucket sends    | rest |  then |    P    |  then |   Q   |    three all-reduces
    kept              M - P Q^T for the next step

A tensor is a matrix of its first dimension and all others. It is sent whole if its factors would
have half its size or more, as vectors would.

Sources: S. Li et al., "PyTorch Distributed", VLDB 2020, section 3.2; S. Rajbhandari et al., "ZeRO",
SC 2020, section 5.1; T. Vogels et al., "PowerSGD", NeurIPS 2019, algorithms 1 and 2;
``torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py``, torch 2.13.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Count
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason
from ddlbench.planning.accumulation import Accumulating, AccumulatingOptions
from ddlbench.planning.data_parallel import DataParallel
from ddlbench.planning.memory import data_parallel_bytes
from ddlbench.planning.network_tables import NetworkTraits, unsupported_weights
from ddlbench.planning.plan import Options, Tried
from ddlbench.planning.recomputation import RecomputingOptions
from ddlbench.planning.step import (
    DDP_FIRST_BUCKET_BYTES,
    GradientMessage,
    Message,
    buckets_once_full,
    filled_buckets,
)
from ddlbench.planning.strategy import PARADL
from ddlbench.planning.workload import DEFAULT_BUCKET_BYTES, Tensor, Workload

if TYPE_CHECKING:
    from ddlbench.planning.plan import Plan


MIN_COMPRESSION_RATE = 2  # torch's default
EXACT_STEPS = 2  # torch needs two: it makes its buckets anew after the first step

_GLOO_THREADS = 2  # of torch's process group


@dataclass(frozen=True, kw_only=True)
class DdpOptions(AccumulatingOptions, RecomputingOptions):
    """Options of DDP; ``tune`` tries none that saves memory and costs time."""

    bucket_cap_bytes: Annotated[Count, Tried(2**20, 5 * 2**20, 50 * 2**20, 100 * 2**20)] = (
        DEFAULT_BUCKET_BYTES
    )
    """A gradient bucket is sent when it holds so many bytes. The default is torch's own: 25 MiB,
    and 1 MiB for the first bucket; any other value holds for all."""
    shard: Literal["none", "optimizer"] = "none"
    """What ranks share: nothing, or the optimiser's state (ZeRO stage 1). Then each rank updates
    some tensors and sends them to all others."""
    bucket_view: bool = False
    """Gradients lie in the buckets (gradient_as_bucket_view); else buckets are copies."""
    hook: Literal["none", "fp16", "powersgd"] = "none"
    """How gradients are sent: as they are, rounded to fp16, or as factors of low rank (PowerSGD),
    which trains otherwise."""
    hook_rank: Count = 1
    """Columns of PowerSGD's factors; of powersgd only."""

    def caps(self, shrunk: Callable[[int], int]) -> tuple[int, int]:
        """Bytes at which the first bucket of a step is sent, and at which later ones are.

        Both are divided as the gradients are by ``shrunk``.
        """
        default = self.bucket_cap_bytes == DEFAULT_BUCKET_BYTES
        first_bytes = DDP_FIRST_BUCKET_BYTES if default else self.bucket_cap_bytes
        return shrunk(first_bytes), shrunk(self.bucket_cap_bytes)


class DistributedDataParallel(Accumulating, DataParallel):
    """Replicas with bucketed gradient all-reduce overlapped with backward (Li et al. 2020)."""

    name: ClassVar[str] = "ddp"
    label: ClassVar[str] = "DDP"
    colour: ClassVar[str] = "#56B4E9"
    marker: ClassVar[str] = "D"
    library: ClassVar[str | None] = "ddp"
    executor: ClassVar[str] = "ddlbench.strategies.ddp.executor:DdpExecutor"
    scales_loss: ClassVar[bool] = True
    not_compiled: ClassVar[str] = ""
    predictors: ClassVar[tuple[str, ...]] = ("ddp-buckets", "ddp-all-reduce", "ddp-serial", *PARADL)
    # A rank's only CPU core computes or sends, so no message is hidden there.
    preferred_predictor: ClassVar[Mapping[str, str]] = {"cpu": "ddp-serial", "cuda": "ddp-buckets"}
    options: ClassVar[type[Options]] = DdpOptions

    def supports(self, cell: Cell) -> str | None:
        options = DdpOptions.of_cell(cell)
        hook = options.hook
        if hook != "powersgd" and "hook_rank" in dict(cell.options):
            conflict = f"hook_rank belongs to hook: powersgd; hook is {hook}"
            return Reason("conflicting_options", conflict)
        if hook == "powersgd" and cell.warmup_steps < EXACT_STEPS:
            return Reason(
                "conflicting_options",
                f"powersgd sends whole gradients in its first {EXACT_STEPS} steps; set "
                f"warmup_steps to {EXACT_STEPS} or more",
            )
        if hook == "powersgd" and cell.precision == "fp16":
            conflict = (
                "powersgd would keep gradients that overflow; write hook: none or another precision"
            )
            return Reason("conflicting_options", conflict)
        if cell.compile and options.bucket_cap_bytes < DDP_FIRST_BUCKET_BYTES:
            return Reason(
                "conflicting_options",
                f"torch.compile splits DDP's backward pass at buckets of {DDP_FIRST_BUCKET_BYTES} "
                "bytes or more; raise bucket_cap_bytes, or write compile: false",
            )
        return super().supports(cell)

    def why_not_network(self, traits: NetworkTraits, plan: Plan) -> Reason | None:
        """PowerSGD factorises matrices; a sharded optimiser keeps its weights in one vector."""
        details = DdpOptions.of(plan)
        if details.hook == "powersgd" and traits.scalars:
            why = "takes no weight without a dimension"
            return unsupported_weights("powersgd", traits.scalars, why, "write hook: none")
        if traits.sparse:
            why = "trains otherwise where ranks have sparse gradients of other rows"
            return unsupported_weights("DDP", traits.sparse, why, "write sparse=False")
        if details.hook != "none" and traits.complex:
            hook, why = f"hook {details.hook}", "takes gradients of real numbers"
            return unsupported_weights(hook, traits.complex, why, "write hook: none")
        return None

    def is_synchronous(self, cell: Cell, details: Mapping[str, Any] | None = None) -> bool:
        """What PowerSGD has not sent of a gradient joins those of later weights."""
        current = DdpOptions.of_cell(cell).hook != "powersgd"
        return current and super().is_synchronous(cell, details)

    def precision(self, cell: Cell) -> str:
        """A hook sends gradients of half precision, or of low rank."""
        return cell.precision if DdpOptions.of_cell(cell).hook == "none" else "bf16"

    def zero_stage(self, cell: Cell) -> int:
        return int(DdpOptions.of_cell(cell).shard == "optimizer")

    def gradient_messages(self, workload: Workload, plan: Plan) -> list[GradientMessage]:
        details = DdpOptions.of(plan)
        if details.hook == "powersgd":
            return [
                GradientMessage(size, bucket[-1].ready_fraction)
                for bucket in self._buckets(workload, details)
                for size in bucket_bytes(bucket, details.hook_rank).sizes
            ]
        filled = filled_buckets(workload.tensors, *details.caps(workload.shrunk))
        if details.hook == "fp16":
            return [replace(message, bytes=message.bytes // 2) for message in filled]
        return filled

    @staticmethod
    def _buckets(workload: Workload, details: DdpOptions) -> list[list[Tensor]]:
        """The tensors of each bucket."""
        first_bytes, cap_bytes = details.caps(workload.shrunk)
        sizes = [tensor.bytes for tensor in workload.tensors]
        filled = buckets_once_full(sizes, cap_bytes, first_bytes)
        return [[workload.tensors[index] for index in bucket] for bucket in filled]

    def gathered(self, workload: Workload, plan: Plan) -> Message | None:
        """Broadcasts of updated weights: with a sharded optimiser each rank sends its own."""
        dealt = self._dealt(workload, plan)
        if len(dealt) == 1:
            return None
        at_once = _GLOO_THREADS if self.transport(workload.device_kind) == "gloo" else 1
        roots = [process.node for process in plan.processes]
        turns = turns_of_broadcasts(roots, at_once)
        return Message("broadcast", bytes_in_turns(dealt, roots, at_once) / turns, count=turns)

    def updated_share(self, workload: Workload, plan: Plan) -> float:
        """The largest share of the weights that a rank updates."""
        whole = workload.parameter_bytes
        return max(self._dealt(workload, plan)) / whole if whole else 1.0

    def _dealt(self, workload: Workload, plan: Plan) -> list[int]:
        """Bytes of the weights that each rank updates; one number if all update all."""
        ranks = 1 if DdpOptions.of(plan).shard == "none" else plan.world_size
        return shares([tensor.bytes for tensor in workload.tensors], ranks)

    def communication_bytes(self, workload: Workload, plan: Plan) -> int:
        """Buckets that copy all gradients, unless these lie in them; and what hooks hold.

        PowerSGD keeps what it has not sent, and factors. Of a bucket under way it has a copy and
        what is new of the former.
        """
        details = DdpOptions.of(plan)
        copied = 0 if details.bucket_view else workload.parameter_bytes
        if details.hook == "fp16":
            return copied + workload.parameter_bytes // 2
        if details.hook == "none":
            return copied
        filled = self._buckets(workload, details)
        sent = sum(sum(bucket_bytes(bucket, details.hook_rank).sizes) for bucket in filled)
        largest = max(sum(tensor.bytes for tensor in bucket) for bucket in filled)
        return copied + workload.parameter_bytes + sent + 2 * largest

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        """Peak bytes of every rank; a sharded optimiser keeps the momentum of its own tensors.

        Gradients that lie in buckets exist always, and a block's new ones beside them.
        """
        details = DdpOptions.of(plan)
        whole = data_parallel_bytes(
            workload,
            plan,
            self.communication_bytes(workload, plan),
            details.accumulate,
            gradients_stay=details.bucket_view,
        )
        if details.shard == "none":
            return whole
        dealt = shares([tensor.bytes for tensor in workload.tensors], plan.world_size)
        return tuple(
            bytes_ - plan.cell.optimizer_states * (workload.parameter_bytes - share)
            for bytes_, share in zip(whole, dealt, strict=True)
        )


@dataclass(frozen=True)
class BucketBytes:
    """Bytes of the three all-reduces of a bucket."""

    whole: int
    left: int
    right: int

    @property
    def sizes(self) -> list[int]:
        """Bytes of the parts that send anything, in order."""
        return [size for size in (self.whole, self.left, self.right) if size]


def bucket_bytes(tensors: Sequence[Tensor], rank: int) -> BucketBytes:
    """What a bucket of these tensors sends, with factors of ``rank`` columns at most.

    Raises:
        ConfigError: shapes are unknown.
    """
    whole = left = right = 0
    for tensor in tensors:
        if tensor.shape is None:
            raise ConfigError(
                "the profile has no shapes of tensors, which decide what powersgd sends; "
                "make it again"
            )
        rows = tensor.shape[0] if tensor.shape else 1
        columns = prod(tensor.shape[1:])
        width = min(rows, columns, rank)
        if (rows + columns) * width * MIN_COMPRESSION_RATE < rows * columns:
            item_bytes = tensor.bytes // (rows * columns)
            left += rows * width * item_bytes
            right += columns * width * item_bytes
        else:
            whole += tensor.bytes
    return BucketBytes(whole, left, right)


def turns_of_broadcasts(roots: Sequence[int], at_once: int) -> int:
    """As many broadcasts, one after the other, take as long as those of all ranks.

    gloo's two threads send two broadcasts at once, in the order of ranks, and two that begin on one
    node share its links and cores (``gloo/broadcast.cc``: a binomial tree)::

        node 0    | from 0: ++++++++ |                      four ranks on two nodes: as long as
                  | from 1: ++++++++ | from 2: ++++++++ |   four broadcasts that have the links
        node 1                       | from 3: ++++++++ |   alone

    Args:
        roots: the node of each rank.
        at_once: broadcasts that are sent at the same time.
    """
    return bytes_in_turns([1] * len(roots), roots, at_once)


def bytes_in_turns(sizes: Sequence[int], roots: Sequence[int], at_once: int) -> int:
    """Bytes of broadcasts that follow each other, where each rank sends one of its size."""
    whole = 0
    for first in range(0, len(roots), at_once):
        of_node: Counter[int] = Counter()
        for size, root in zip(sizes[first:][:at_once], roots[first:][:at_once], strict=True):
            of_node[root] += size
        whole += max(of_node.values())
    return whole


def shares(sizes: Sequence[int], ranks: int) -> list[int]:
    """Bytes of the tensors that each rank updates, as torch deals them."""
    dealt = [0] * ranks
    for size in sorted(sizes, reverse=True):
        dealt[dealt.index(min(dealt))] += size
    return dealt
