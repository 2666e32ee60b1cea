"""Peak memory of pipelines with one process a device: PipeDream, model parallelism, torch's own.

::

    weights | momentum | buffers | stashed versions |  activations of what is in flight
                                                    |  + the worst moment of one backward pass
                                                    |  + receive buffers

A rank that holds f forward passes without their backward keeps what autograd saved for each; the
last of them goes backward beside the others. PipeDream's stage s keeps W_s + 1 mini-batches and as
many weight versions (Narayanan et al. 2019, section 3.3); torch.distributed.pipelining keeps a
receive buffer for every micro-batch and cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ddlbench.experiment.errors import ConfigError
from ddlbench.planning.gradient_buckets import DEFAULT_BUCKET_BYTES
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict.workload import Block, Workload
from ddlbench.strategies.pipelining.descriptor import SynchronousPipeline

__all__ = ["STAGED", "staged_bytes"]

STAGED = ("pipedream", "model-parallel-p2p")
"""Of gradients that are summed over replicas at the end of a step."""

BackwardPeak = Callable[[list[Block], float, bool], float]


def staged_bytes(
    workload: Workload, plan: Plan, persistent: Callable[..., float], backward_peak: BackwardPeak
) -> tuple[int, ...]:
    """Peak bytes of every rank.

    Args:
        workload: the profile.
        plan: whose details hold ``stages`` and ``stage_ranks``.
        persistent: bytes of weights, buffers and momentum of blocks.
        backward_peak: bytes at the worst moment of one backward pass.

    Raises:
        ConfigError: the plan cuts a network of other blocks than the profile's.
    """
    blocks = plan.details["stages"][-1][1]
    if blocks != len(workload.blocks):
        raise ConfigError(
            f"the profile has {len(workload.blocks)} blocks, the plan cuts {blocks}: "
            "profile the network again"
        )
    return tuple(
        round(_rank(rank, workload, plan, persistent, backward_peak))
        for rank in range(plan.world_size)
    )


def _rank(
    rank: int,
    workload: Workload,
    plan: Plan,
    persistent: Callable[..., float],
    backward_peak: BackwardPeak,
) -> float:
    details, cell = plan.details, plan.cell
    own = [s for s, ranks in enumerate(details["stage_ranks"]) if rank in ranks]
    spans = [details["stages"][stage] for stage in own]
    blocks = [block for first, last, *_ in spans for block in workload.blocks[first:last]]
    weights = sum(block.parameter_bytes for block in blocks)
    saved = sum(block.saved_bytes for block in blocks)
    samples, in_flight, several = _load(rank, own[0], plan)
    bytes_ = workload.fixed_memory_bytes + persistent(blocks, cell.momentum)
    bytes_ += (in_flight - 1) * samples * saved / len(own)
    bytes_ += backward_peak(blocks, samples, several)
    if "weight_versions" in details:
        bytes_ += (details["weight_versions"][own[0]] - 1) * weights
    if "chunks" in details:
        bytes_ += details["chunks"] * samples * _received(spans, workload)
    if len(details["stage_ranks"][own[0]]) > 1:
        bytes_ += min(weights, DEFAULT_BUCKET_BYTES)
    return bytes_


def _load(rank: int, stage: int, plan: Plan) -> tuple[float, float, bool]:
    """Samples of one forward pass, how many passes are in flight, whether gradients add up."""
    details, cell = plan.details, plan.cell
    if cell.strategy not in STAGED:
        pipeline = cast(SynchronousPipeline, strategy_of(cell.strategy)).pipeline_schedule(cell)
        samples = cell.batch_size / details["replicas"] / details["chunks"]
        in_flight = pipeline.in_flight[rank % pipeline.world_size]
        return samples, in_flight, details["chunks"] > 1
    return cell.batch_size, details.get("warmups", [0] * (stage + 1))[stage] + 1, False


def _received(spans: list[list[int]], workload: Workload) -> float:
    """Bytes a sample that arrive at this rank's stages: activations and their gradients."""
    total = 0.0
    for first, last, *_ in spans:
        if first > 0:
            total += workload.blocks[first].input_bytes
        if last < len(workload.blocks):
            total += workload.blocks[last - 1].output_bytes
    return total
