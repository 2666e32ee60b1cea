"""Whether a stage can fit its device at all, told from the profile before a job is submitted.

::

    weights | momentum | buffers | further weight versions |  activations of the passes in flight
    what the device loses before any of it                 |

All of this is held at one moment, before the first of the passes in flight goes backward.
Gradients, received messages and the workspace of operations come on top (the model in ``predict``
has more of them), so what is refused here cannot run, and what is not may still run out of memory.

Sources: PipeDream (Narayanan et al., SOSP 2019), section 3.3, for weight versions; the passes that
a rank holds are those of its schedule.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import profile_file, result_file
from ddlbench.experiment.profile import BlockProfile, InvalidProfile, Profile, ProfileKey
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Reason
from ddlbench.experiment.units import GB
from ddlbench.planning.measured_profile import profile_at
from ddlbench.planning.pipeline import Pipeline
from ddlbench.planning.plan import Plan, make_plan
from ddlbench.planning.strategy import strategy_of

__all__ = ["held_bytes", "why_cell_too_large", "why_too_large"]


def why_too_large(plan: Plan, site: Site) -> str | None:
    """Which stage of a plan needs more memory than a device of the site has; None if none does.

    Nothing is said without a profile, without the memory of a device (the profile's; on CPU also
    the site's ``memory_per_device_mb``), and of plans that have no stages.
    """
    known = _profile_and_capacity(plan.cell, site)
    pipeline = strategy_of(plan.cell.strategy).pipeline_of(plan)
    if known is None or pipeline is None:
        return None
    profile, capacity = known
    if pipeline.blocks != len(profile.blocks):
        return None
    needed = held_bytes(plan, profile)
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
    """The same of a cell that is only planned; None where some repeat of it has a result."""
    if _profile_and_capacity(cell, site) is None:
        return None
    try:
        reason = why_too_large(make_plan(cell, site.name), site)
    except ConfigError:  # its own job says what is wrong with its plan
        return None
    return None if reason is None or _was_run(cell, site) else reason


def held_bytes(plan: Plan, profile: Profile) -> tuple[float, ...]:
    """Bytes that each rank of a pipeline holds at one moment, at least."""
    pipeline = strategy_of(plan.cell.strategy).pipeline_of(plan)
    assert pipeline is not None
    return tuple(
        _held(plan.cell, pipeline, rank, profile.blocks, float(profile.fixed_memory_bytes))
        for rank in range(plan.world_size)
    )


def _was_run(cell: Cell, site: Site) -> bool:
    folder = result_file(site.name, cell.with_(repeat=0).id).parents[1]
    return any(folder.glob("rep*/result.json"))


def _held(
    cell: Cell,
    pipeline: Pipeline,
    rank: int,
    profiled: Sequence[BlockProfile],
    fixed_bytes: float,
) -> float:
    spans = pipeline.spans(rank)
    blocks = [block for first, last in spans for block in profiled[first:last]]
    weights = float(sum(block.parameter_bytes for block in blocks))
    versions = pipeline.stages[pipeline.of_rank(rank)[0]].weight_versions
    # We do not know which of the rank's stages a pass belongs to, so we take the smallest.
    saved = min(
        sum(block.saved_bytes_per_sample for block in profiled[first:last]) for first, last in spans
    )
    return (
        fixed_bytes
        + weights * (versions + (1 if cell.momentum > 0 else 0))
        + sum(block.buffer_bytes for block in blocks)
        + pipeline.held[rank] * pipeline.samples * saved
    )


def _profile_and_capacity(cell: Cell, site: Site) -> tuple[Profile, float] | None:
    """The profile that serves a cell, and the bytes of one device; None where one is unknown."""
    path = profile_file(site.name, ProfileKey.of(cell).id)
    if not path.is_file():
        return None
    try:
        profile = profile_at(path)
    except InvalidProfile:  # whoever needs it says so
        return None
    if profile.device_memory_bytes:
        return profile, float(profile.device_memory_bytes)
    if site.device == "cpu" and site.memory_per_device_mb is not None:
        return profile, site.memory_per_device_mb * 1e6
    return None
