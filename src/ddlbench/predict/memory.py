"""Peak memory of each device, from a profile and a plan.

::

    one device   weights | buffers | momentum |  activations of blocks not yet gone backward
                                              |  + gradients of those that have
    a pipeline's partition: what each micro-batch in flight keeps
        never          everything that autograd saves
        except_last    its input only, but everything for the last micro-batch
        always         its input only; one is recomputed at a time

Peak of a backward pass over blocks 1..n with b samples, at the worst block k:
``b (saved_1 + .. + saved_k + input_k + output_k) + gradients_k + .. + gradients_n``, as zero_grad
drops gradients before the forward pass. Checkpointing: Huang et al. 2019, section 2.3, as
torchgpipe does it (Kim et al. 2020, section 3.2.3). Workspace of operations and fragmentation are
not in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.site import Site
from ddlbench.planning.plan import Plan
from ddlbench.predict.partitions import partitions_of
from ddlbench.predict.served_memory import served_bytes
from ddlbench.predict.split_memory import SPLIT, split_bytes
from ddlbench.predict.staged_memory import staged_bytes
from ddlbench.predict.workload import Block, Workload

__all__ = ["capacity_bytes", "fits", "fullest_bytes", "memory_bytes"]

_DATA_PARALLEL = ("sequential", "horovod", "ddp")
_PIPELINES = ("gpipe", "model-parallel")


def memory_bytes(workload: Workload, plan: Plan) -> tuple[int, ...]:
    """Peak bytes of every device, in the order of ranks and their devices.

    Raises:
        ConfigError: the strategy is not modelled here, or the network cannot be cut as asked.
    """
    cell = plan.cell
    if cell.strategy in _PIPELINES:
        return _pipeline(workload, plan)
    if "stage_ranks" in plan.details:
        return staged_bytes(workload, plan, _persistent, _backward_peak)
    if cell.strategy == "parameter-server":
        return served_bytes(workload, plan, _persistent, _backward_peak)
    if cell.strategy in SPLIT:
        return split_bytes(workload, plan, _persistent, _backward_peak)
    if cell.strategy not in _DATA_PARALLEL:
        raise ConfigError(f"there is no model of the memory of strategy {cell.strategy}")
    share = cell.batch_size / plan.world_size
    if share != int(share):
        raise ConfigError(
            f"a mini-batch of {cell.batch_size} does not divide over {plan.world_size} workers; "
            f"make batch_size a multiple of {plan.world_size}"
        )
    blocks = workload.blocks
    bytes_ = (
        workload.fixed_memory_bytes
        + _persistent(blocks, cell.momentum)
        + _communication_buffers(workload, plan)
        + _backward_peak(blocks, share)
    )
    return (round(bytes_),) * plan.world_size


def capacity_bytes(workload: Workload, site: Site) -> float | None:
    """Memory of one device: the profile's, on CPU what the site gives it; None where unknown."""
    if workload.device_memory_bytes:
        return float(workload.device_memory_bytes)
    if site.device == "cpu" and site.memory_per_device_mb is not None:
        return site.memory_per_device_mb * 1e6
    return None


def fullest_bytes(workload: Workload, plan: Plan, devices: Sequence[int]) -> int:
    """The number that a measured peak compares with: the fullest place that is counted apart.

    On CUDA that is the fullest device; on CPU a process, with all partitions that it drives.
    """
    if workload.device_kind == "cuda":
        return max(devices)
    sums, first = [], 0
    for process in plan.processes:
        sums.append(sum(devices[first : first + len(process.devices)]))
        first += len(process.devices)
    return max(sums)


def fits(workload: Workload, plan: Plan, devices: Sequence[int], capacity_bytes: float) -> bool:
    """Whether no device needs more than it has.

    On CPU the devices of one process share their memory, as torchgpipe's partitions do.
    """
    if workload.device_kind == "cuda":
        return max(devices) <= capacity_bytes
    first = 0
    for process in plan.processes:
        count = len(process.devices)
        if sum(devices[first : first + count]) > count * capacity_bytes:
            return False
        first += count
    return True


def _persistent(blocks: Sequence[Block], momentum: float) -> float:
    """Weights, buffers such as batch-norm statistics, and SGD's momentum."""
    weights = sum(block.parameter_bytes for block in blocks)
    return weights * (2 if momentum > 0 else 1) + sum(block.buffer_bytes for block in blocks)


def _communication_buffers(workload: Workload, plan: Plan) -> int:
    """DDP's buckets hold all gradients once more; Horovod's fusion buffer at most its threshold."""
    if "bucket_cap_bytes" in plan.details:
        return workload.parameter_bytes
    if "fusion_threshold_bytes" in plan.details:
        return min(int(plan.details["fusion_threshold_bytes"]), workload.parameter_bytes)
    return 0


def _backward_peak(blocks: Sequence[Block], samples: float, gradients_exist: bool = False) -> float:
    """Activations and gradients at the worst moment of a backward pass.

    With ``gradients_exist`` an earlier micro-batch left gradients everywhere, and a block's new
    one is beside it until it is added.
    """
    saved = sum(block.saved_bytes for block in blocks)
    gradients = sum(block.parameter_bytes for block in blocks) if gradients_exist else 0.0
    peak = float(gradients)
    done = 0.0
    for block in reversed(blocks):
        done += block.parameter_bytes
        moment = samples * (saved + block.input_bytes + block.output_bytes)
        moment += gradients + block.parameter_bytes if gradients_exist else done
        peak = max(peak, moment)
        saved -= block.saved_bytes
    return max(peak, done)


def _pipeline(workload: Workload, plan: Plan) -> tuple[int, ...]:
    cell = plan.cell
    chunks = int(plan.details.get("chunks", 1))
    checkpoint = str(plan.details.get("checkpoint", "never"))
    micro_batch = cell.batch_size / chunks
    found = []
    for blocks in partitions_of(workload, plan, micro_batch):
        everything = micro_batch * sum(block.saved_bytes for block in blocks)
        boundary = micro_batch * blocks[0].input_bytes
        # What micro-batches keep that wait while the first, then the second, goes backward.
        waiting = everything if checkpoint == "never" else boundary
        first = (chunks - 1) * waiting + _backward_peak(blocks, micro_batch)
        if checkpoint == "always":
            first += boundary
        peak = first
        if chunks > 1:
            recomputed = boundary if checkpoint != "never" else 0.0
            second = (chunks - 2) * waiting + recomputed
            peak = max(first, second + _backward_peak(blocks, micro_batch, gradients_exist=True))
        found.append(round(workload.fixed_memory_bytes + _persistent(blocks, cell.momentum) + peak))
    return tuple(found)
