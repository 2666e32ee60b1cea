"""DeepSpeed's ZeRO: data parallelism whose ranks share more from stage to stage.

::

    stage 0   | forward | backward | all-reduce of all gradients | update |
    stage 1   | forward | backward | all-reduces of gradients | update 1/W | all-gather of weights |
    stage 2   | forward | backward with all-reduces between | update 1/W | all-gather of weights |
    stage 3   | gather, forward, free | .. | gather, backward, free | .. | update 1/W |
                                             reduce-scatters of gradients between

    kept of m bytes of weights     weights   gradients    states    copy that is updated
    stage 0                           m          m          m                -
    stage 1                           m          m         m/W              m/W
    stage 2                           m         m/W        m/W              m/W
    stage 3                          m/W        m/W        m/W              m/W

DeepSpeed keeps a copy of the weights for the update even if they are in fp32. Its stages 1 and 2
sum a bucket by an all-reduce, of which each rank keeps its part
(``runtime/zero/stage_1_and_2.py``, DeepSpeed 0.19.8: ``allreduce_and_scatter``). Buckets are sent
where they stand, not beside computation (``overlap_comm``; stage 3 on GPUs excepted).

Source: S. Rajbhandari et al., "ZeRO", SC 2020, sections 5 and 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from annotated_types import Ge

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import ComputeKind
from ddlbench.planning.data_parallel import DataParallel, ShardedUnit, sharded_step
from ddlbench.planning.memory import backward_peak_bytes, work_space_bytes
from ddlbench.planning.plan import Options, Tried
from ddlbench.planning.recomputation import RecomputingOptions
from ddlbench.planning.step import GradientMessage, Message, Step, buckets
from ddlbench.planning.workload import DEFAULT_BUCKET_BYTES

if TYPE_CHECKING:
    from ddlbench.planning.plan import Plan
    from ddlbench.planning.workload import Workload

RELEASE = "0.19.8"
"""The release of DeepSpeed that was run."""


@dataclass(frozen=True, kw_only=True)
class DeepSpeedOptions(RecomputingOptions):
    """Options of DeepSpeed."""

    stage: Literal[0, 1, 2, 3] = 2
    """Of ZeRO: ranks share nothing (0), the optimiser's states (1), gradients too (2), or weights
    too (3)."""
    bucket_bytes: Annotated[int, Ge(4), Tried(2**20, 5 * 2**20, 100 * 2**20)] = DEFAULT_BUCKET_BYTES
    """Gradients are summed up to so many bytes at once, in stages 1 to 3; stage 0 sums all at once.
    DeepSpeed's own default is 2 GB."""


class DeepSpeed(DataParallel):
    """Real DeepSpeed: ZeRO stages 0 to 3 with torch's optimisers."""

    name: ClassVar[str] = "deepspeed"
    label: ClassVar[str] = "DeepSpeed"
    colour: ClassVar[str] = "#0F5E8C"
    marker: ClassVar[str] = "$\\triangleleft$"
    executor: ClassVar[str] = "ddlbench_deepspeed.executor:DeepSpeedExecutor"
    float64: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ("deepspeed",)
    install: ClassVar[str] = (
        f"install it with: python -m pip install --no-build-isolation deepspeed=={RELEASE}"
    )
    predictors: ClassVar[tuple[str, ...]] = ("ddp-serial", "ddp-all-reduce", "sharded")
    # Of stage 3; the default predictor reads the all-reduces of the others.
    preferred_predictor: ClassVar[Mapping[str, str]] = {"cpu": "sharded", "cuda": "sharded"}
    options: ClassVar[type[Options]] = DeepSpeedOptions

    def note(self, compute_kind: ComputeKind) -> str | None:
        if compute_kind == "cuda":
            return None
        return (
            "on CPUs no collective runs beside computation, and in stage 3 gloo's reduce-scatter "
            "costs an all-reduce"
        )

    def zero_stage(self, cell: Cell) -> int:
        return DeepSpeedOptions.of_cell(cell).stage

    def gradient_messages(self, workload: Workload, plan: Plan) -> list[GradientMessage]:
        """The all-reduces of stages 0 to 2; none of them is hidden."""
        details = DeepSpeedOptions.of(plan)
        if details.stage == 0:
            return [GradientMessage(workload.parameter_bytes)]
        sizes = [tensor.bytes for tensor in workload.tensors]
        if details.stage == 1:  # in the order of the network, as the backward pass is over
            sizes.reverse()
        return [
            GradientMessage(sum(sizes[index] for index in bucket))
            for bucket in buckets(sizes, workload.shrunk(details.bucket_bytes))
        ]

    def gathered(self, workload: Workload, plan: Plan) -> Message | None:
        """From stage 1 on, the weights of a rank."""
        if DeepSpeedOptions.of(plan).stage == 0 or plan.world_size == 1:
            return None
        part = -(-workload.parameter_bytes // plan.world_size)
        return Message("all_gather", part)

    def step(self, workload: Workload, plan: Plan) -> Step | None:
        """In stage 3 every block's weights are gathered twice, also the last block's.

        DeepSpeed gathers layer by layer and sums bucket by bucket; here a block stands for both.
        """
        if DeepSpeedOptions.of(plan).stage < 3:
            return super().step(workload, plan)
        units = [
            ShardedUnit(
                block=index,
                shard_bytes=-(-block.parameter_bytes // plan.world_size),
                gradient_bytes=block.parameter_bytes,
                gathered_twice=True,
            )
            for index, block in enumerate(workload.blocks)
            if block.parameter_bytes
        ]
        return sharded_step(workload, plan, units, plan.world_size)

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        """Peak bytes of every rank: what it keeps, by the table above, and the worst moment.

        All ranks get those of the fullest. Work space of kernels is that of the whole network.
        """
        details, cell = DeepSpeedOptions.of(plan), plan.cell
        share, states = cell.batch_size / plan.world_size, cell.optimizer_states
        bytes_ = (
            workload.fixed_memory_bytes
            + sum(block.buffer_bytes for block in workload.blocks)
            + kept_bytes(workload.parameter_bytes, plan.world_size, details.stage, states)
            + moment_bytes(workload, plan.world_size, details, share)
            + work_space_bytes(workload, share, states)
        )
        return (round(bytes_),) * plan.world_size


def kept_bytes(whole: int, ranks: int, stage: int, states: int) -> float:
    """Bytes of weights, states and the copy that is updated, of ``whole`` bytes of weights."""
    part = whole / ranks
    if stage == 0:
        return whole * (1 + states)
    return (whole if stage < 3 else part) + part * (1 + states)


def moment_bytes(
    workload: Workload, ranks: int, details: DeepSpeedOptions, samples: float
) -> float:
    """Activations, gradients and buckets at the worst moment of a step.

    ::

        stage 0   backward pass, or gradients and their copy in one row
        stage 1   backward pass beside a bucket, or gradients and the summed part of a rank
        stage 2   activations | part | bucket | its copy | gradient of a block that waits for it
        stage 3   the same | what is left of the bucket | weights of two blocks

    If one bucket holds all, it is sent when activations are gone.
    """
    whole, blocks = workload.parameter_bytes, workload.blocks
    part = whole / ranks
    bucket = min(workload.shrunk(details.bucket_bytes), whole)
    backward = backward_peak_bytes(blocks, samples)
    if details.stage == 0:
        return max(backward, 2 * whole)
    if details.stage == 1:
        return max(backward + bucket, whole + part)
    activations = backward_peak_bytes([replace(b, parameter_bytes=0) for b in blocks], samples)
    block = max(block.parameter_bytes for block in blocks)
    weights, left = (block, bucket / ranks) if details.stage == 3 else (0, 0.0)
    if bucket == whole:
        before = activations + bucket + block + 2 * weights
        return part + max(before, 2 * bucket + left + weights)
    return activations + part + 2 * bucket + left + block + 2 * weights
