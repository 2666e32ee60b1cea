"""Peak memory of each device, from a profile and a plan: the models that strategies share.

::

    one device   weights | buffers | states |  activations of blocks not yet gone backward
                                            |  + gradients of those that have
    a stage      weights | buffers | states | stashed versions |  activations in flight
                                            |  + the worst moment of one backward pass
                                            |  + receive buffers

The peak of a backward pass over blocks 1..n with b samples, at the worst block k, is
``b (saved_1 + .. + saved_k + input_k + output_k) + gradients_k + .. + gradients_n``, as zero_grad
drops gradients before the forward pass. If a GPU has the whole network, the work space of kernels
is added: the amount by which profiled steps exceed this peak. The work space of stages, and
fragmentation, are not modelled.

A rank that holds f forward passes without their backward pass keeps what autograd saved for each.
PipeDream's stage s keeps W_s + 1 mini-batches and as many weight versions (Narayanan et al., SOSP
2019, section 3.3); torch.distributed.pipelining keeps a receive buffer for every micro-batch and
cut.

Before a job is submitted, a lower bound shows whether a stage can fit its device at all::

    weights | states | buffers | further weight versions |  activations of the passes in flight
    memory that the device loses before any of it        |

All of this is held at one moment, before the first of the passes in flight goes backward.
Gradients, received messages and the work space of operations are not counted. So a plan that is
refused cannot run, and a plan that is not refused may still run out of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import GB
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import profile_file, result_file
from ddlbench.experiment.profile import InvalidProfile, Profile, ProfileKey, read_profile
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Reason
from ddlbench.planning.pipeline import Pipeline, PlannedStage
from ddlbench.planning.pipeline_stages import TooFewBlocks
from ddlbench.planning.plan import Plan
from ddlbench.planning.planner import StrategyPlan, make_plan
from ddlbench.planning.recomputation import workload_of
from ddlbench.planning.step import why_uneven
from ddlbench.planning.workload import Block, Workload


def memory_bytes(workload: Workload, plan: StrategyPlan) -> tuple[int, ...]:
    """Peak bytes of every device, in the order of ranks and their devices.

    Raises:
        ConfigError: the strategy has no memory model, or cannot cut the network.
    """
    return plan.strategy.memory_bytes(workload, plan)


def capacity_bytes(profiled_bytes: int | None, site: Site) -> float | None:
    """Memory of one device: the profile's, or on CPUs from the site; None if unknown."""
    if profiled_bytes:
        return float(profiled_bytes)
    return site.memory_per_device_bytes if site.device == "cpu" else None


@dataclass(frozen=True)
class Room:
    """What the fullest memory needs, and what it has.

    Args:
        needed_bytes: of the fullest device; on CPU of the fullest process.
        capacity_bytes: of one device; None if unknown.
        fits: whether no memory needs more than it has; None if the capacity is unknown.
        devices: that share the fullest memory, as those of a process on CPU do.
    """

    needed_bytes: int
    capacity_bytes: float | None
    fits: bool | None
    devices: int = 1

    @property
    def held_bytes(self) -> float | None:
        """What the devices that share the fullest memory have together; None if unknown."""
        return None if self.capacity_bytes is None else self.devices * self.capacity_bytes


def room_of(
    workload: Workload,
    plan: Plan,
    devices: Sequence[int],
    site: Site,
    device_memory_bytes: float | None = None,
) -> Room | None:
    """Whether a plan fits.

    ``devices`` are the bytes that each device needs, none if they are unknown;
    ``device_memory_bytes`` are by default those of the profile or the site.
    """
    if not devices:
        return None
    capacity = device_memory_bytes or capacity_bytes(workload.device_memory_bytes, site)
    memories = [(needed, 1) for needed in devices]  # bytes, and the devices that share a memory
    if workload.device_kind != "cuda":  # devices of a process do, as torchgpipe's partitions
        remaining = iter(devices)
        counts = [len(process.devices) for process in plan.processes]
        memories = [(sum(islice(remaining, count)), count) for count in counts]
    fit = None
    if capacity is not None:
        fit = all(needed <= count * capacity for needed, count in memories)
    fullest_bytes, sharing = max(memories, key=lambda memory: memory[0] / memory[1])
    return Room(fullest_bytes, capacity, fit, sharing)


def persistent_bytes(blocks: Sequence[Block], states: int) -> float:
    """Weights, buffers such as batch-norm statistics, and ``states`` of the optimiser a weight."""
    weights = sum(block.parameter_bytes for block in blocks)
    return weights * (1 + states) + sum(block.buffer_bytes for block in blocks)


def backward_peak_bytes(
    blocks: Sequence[Block], samples: float, gradients_exist: bool = False
) -> float:
    """Activations and gradients at the worst moment of a backward pass.

    With ``gradients_exist`` an earlier micro-batch left gradients everywhere, and a block's new
    gradient exists beside the old one until it is added.
    """
    saved = sum(block.saved_bytes for block in blocks)
    gradients = sum(block.parameter_bytes for block in blocks) if gradients_exist else 0.0
    peak = float(gradients)
    done = 0.0
    for block in reversed(blocks):
        done += block.parameter_bytes
        held = saved + block.recomputed_bytes + block.input_bytes + block.output_bytes
        moment = samples * held
        moment += gradients + block.parameter_bytes if gradients_exist else done
        peak = max(peak, moment)
        saved -= block.saved_bytes
    return max(peak, done)


def data_parallel_bytes(
    workload: Workload,
    plan: Plan,
    communication_bytes: float = 0.0,
    micro_batches: int = 1,
    *,
    gradients_stay: bool = False,
) -> tuple[int, ...]:
    """Peak bytes of every rank, if each holds the whole network and an equal share of a batch.

    Args:
        workload: the profile of the cell's network.
        plan: of the cell.
        communication_bytes: what the strategy holds to send gradients.
        micro_batches: of a share, computed one after the other; gradients of the earlier ones exist
            while a later one goes backward, and so do the inputs of all.
        gradients_stay: their memory is kept from step to step.

    Raises:
        ConfigError: the mini-batch does not divide over the ranks.
    """
    cell = plan.cell
    if uneven := why_uneven(cell.batch_size, plan.world_size):
        raise ConfigError(uneven)
    share = cell.batch_size / plan.world_size
    samples, exist = share / micro_batches, gradients_stay or micro_batches > 1
    bytes_ = (
        workload.fixed_memory_bytes
        + persistent_bytes(workload.blocks, cell.optimizer_states)
        + communication_bytes
        + (share - samples) * workload.blocks[0].input_bytes
        + backward_peak_bytes(workload.blocks, samples, exist)
        + work_space_bytes(workload, samples, cell.optimizer_states)
    )
    return (round(bytes_),) * plan.world_size


def work_space_bytes(workload: Workload, samples: float, states: int) -> float:
    """Bytes of a GPU that kernels of the whole network take beside its tensors.

    cuDNN's search may take gigabytes, which differ from one batch size to the next. The bytes are
    linear between the batch sizes of profiled steps, and beyond them as between the last two; 0
    on CPUs, whose peaks count tensors only.
    """
    if workload.device_kind != "cuda":
        return 0.0
    points = [(0.0, 0.0)]
    for batch_size, peak_bytes in workload.peaks:
        tensors = persistent_bytes(workload.measured_blocks, states)
        tensors += backward_peak_bytes(workload.measured_blocks, batch_size)
        points.append((batch_size, max(peak_bytes - tensors, 0.0)))
    if len(points) == 1:
        return 0.0
    at = next((i for i in range(1, len(points)) if samples <= points[i][0]), len(points) - 1)
    (low, low_bytes), (high, high_bytes) = points[at - 1], points[at]
    return max(low_bytes + (high_bytes - low_bytes) * (samples - low) / (high - low), 0.0)


def pipeline_bytes(workload: Workload, plan: Plan, pipeline: Pipeline) -> tuple[int, ...]:
    """Peak bytes of every rank of a pipeline with one process a device.

    Raises:
        ConfigError: the profile has a different number of blocks than the plan.
    """
    pipeline.check_blocks(len(workload.blocks))
    return tuple(round(_rank(rank, workload, plan, pipeline)) for rank in range(plan.world_size))


def _rank(rank: int, workload: Workload, plan: Plan, pipeline: Pipeline) -> float:
    stages = [pipeline.stages[index] for index in pipeline.of_rank(rank)]
    blocks = [block for stage in stages for block in workload.blocks[stage.first : stage.last]]
    weights = sum(block.parameter_bytes for block in blocks)
    saved = sum(block.saved_bytes for block in blocks)
    samples, micro_batches = pipeline.samples, pipeline.micro_batches
    several = micro_batches is not None and micro_batches > 1
    bytes_ = workload.fixed_memory_bytes + persistent_bytes(blocks, plan.cell.optimizer_states)
    bytes_ += (pipeline.in_flight[rank] - 1) * samples * saved / len(stages)
    bytes_ += backward_peak_bytes(blocks, samples, several)
    bytes_ += (stages[0].weight_versions - 1) * weights
    if micro_batches is not None:
        bytes_ += micro_batches * samples * _received_bytes(stages, workload)
    if len(stages[0].ranks) > 1:
        bytes_ += min(weights, workload.bucket_bytes)
    return bytes_


def _received_bytes(stages: Sequence[PlannedStage], workload: Workload) -> float:
    """Bytes a sample that arrive at a rank's stages: activations and their gradients."""
    total = 0.0
    for stage in stages:
        if stage.first > 0:
            total += workload.blocks[stage.first].input_bytes
        if stage.last < len(workload.blocks):
            total += workload.blocks[stage.last - 1].output_bytes
    return total


def why_too_large(plan: StrategyPlan, site: Site) -> str | None:
    """The stage of a plan that needs more memory than its device has; None if none does.

    None, too, if there is no profile, if the memory of a device is unknown (it is the profile's,
    or on CPU the site's ``memory_per_device_mb``), and for plans without stages.
    """
    known = _profile_and_capacity(plan.cell, site)
    pipeline = plan.strategy.pipeline_of(plan)
    if known is None or pipeline is None:
        return None
    profile, capacity = known
    if pipeline.blocks != len(profile.blocks):
        return None
    needed = held_bytes(plan, pipeline, profile)
    rank = max(range(plan.world_size), key=lambda rank: needed[rank])
    if needed[rank] <= capacity:
        return None
    stages = " and ".join(
        f"stage {stage} (blocks {first} to {last - 1})"
        for stage, (first, last) in zip(pipeline.of_rank(rank), pipeline.spans(rank), strict=True)
    )
    return Reason(
        "stage_too_large",
        f"{stages} on rank {rank} needs at least {GB.text(needed[rank])} of memory with "
        f"{pipeline.held[rank]} passes in flight, a device has {GB.text(capacity)}; use a smaller "
        "batch, more devices or another balance",
    )


def why_cell_too_large(cell: Cell, site: Site) -> str | None:
    """What :func:`why_too_large` says of a cell without a plan; None if a repeat has a result."""
    if _profile_and_capacity(cell, site) is None:
        return None
    reason: str | None
    try:
        reason = why_too_large(make_plan(cell, site.name, site.accelerator), site)
    except TooFewBlocks as error:
        reason = Reason("too_few_blocks", str(error))
    except ConfigError:  # its own job says what is wrong with its plan
        return None
    folder = result_file(site.name, cell.with_(repeat=0).id).parents[1]
    return None if reason is None or any(folder.glob("rep*/result.json")) else reason


def held_bytes(plan: Plan, pipeline: Pipeline, profile: Profile) -> tuple[float, ...]:
    """A lower bound of the bytes that each rank of a plan's pipeline holds at one moment."""
    workload = workload_of(plan.cell, Workload(profile.to_dict(), profile.profile_id))
    return tuple(_held(plan.cell, pipeline, rank, workload) for rank in range(plan.world_size))


def _held(cell: Cell, pipeline: Pipeline, rank: int, workload: Workload) -> float:
    spans = [workload.blocks[first:last] for first, last in pipeline.spans(rank)]
    blocks = [block for span in spans for block in span]
    weights = float(sum(block.parameter_bytes for block in blocks))
    versions = pipeline.stages[pipeline.of_rank(rank)[0]].weight_versions
    # We do not know which of the rank's stages a pass belongs to, so we take the smallest.
    saved = min(sum(block.saved_bytes for block in span) for span in spans)
    return (
        float(workload.fixed_memory_bytes)
        + weights * (versions + cell.optimizer_states)
        + sum(block.buffer_bytes for block in blocks)
        + pipeline.held[rank] * pipeline.samples * saved
    )


def _profile_and_capacity(cell: Cell, site: Site) -> tuple[Profile, float] | None:
    path = profile_file(site.name, ProfileKey.of(cell).id)
    if not path.is_file():
        return None
    try:
        profile = read_profile(path)
    except InvalidProfile:  # whoever needs it says so
        return None
    capacity = capacity_bytes(profile.device_memory_bytes, site)
    return None if capacity is None else (profile, capacity)
