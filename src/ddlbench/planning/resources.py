"""Resources that a job requests from the scheduler, by one rule for all geometries.

The table was checked on a real SLURM with the Snakemake executor plugin 2.8:

==========  =========  ==============  =============  ===========================
geometry    ``mpi``    ``tasks``       per node       devices
==========  =========  ==============  =============  ===========================
1 x 1       -          1               -              ``gres`` is per node
1 x D       srun       -               D              ``gres=gpu:D``
N x 1       srun       N               -              ``tasks_per_node=1`` is refused
N x D       srun       -               D              ``gres=gpu:D``
==========  =========  ==============  =============  ===========================

``mpi`` only tells the plugin not to wrap the job in an srun of its own: the supervisor starts
the ranks itself. A cell of N x D over an emulated fabric requests what one of 1 x ND does, and its
ranks start without srun.

Rules ``stage`` and ``cell`` are one group. They run one after the other, so Snakemake adds up
their minutes. The spare minutes start and end the processes and write the result::

    one SLURM job   | stage: stage_timeout_s | cell: cell_timeout_s | spare |
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import estimate_bytes
from ddlbench.experiment.site import Site
from ddlbench.planning.planner import request_of

SPARE_MINUTES = 5


def stage_minutes(site: Site) -> int:
    """Minutes that rule ``stage`` requests."""
    return math.ceil(site.stage_timeout_s / 60)


def cell_minutes(site: Site) -> int:
    """Minutes that rule ``cell`` requests."""
    return math.ceil(site.cell_timeout_s / 60) + SPARE_MINUTES


def job_minutes(site: Site) -> int:
    """Minutes of the job of a cell: both rules."""
    return stage_minutes(site) + cell_minutes(site)


def timeouts_within(
    limit_s: float | None, stage_timeout_s: float, cell_timeout_s: float
) -> tuple[int, int]:
    """Both timeouts in seconds, cut to whole minutes if the job exceeds a partition's ``limit_s``.

    Staging gives up time first, down to a third of the job. No timeout is under a minute, so a job
    of less than two minutes and the spare ones never fits.
    """
    if limit_s is None:
        return int(stage_timeout_s), int(cell_timeout_s)
    minutes = int(limit_s // 60) - SPARE_MINUTES
    cell = math.ceil(cell_timeout_s / 60)
    stage = min(math.ceil(stage_timeout_s / 60), max(minutes - cell, minutes // 3, 1))
    cell = min(cell, max(minutes - stage, 1))
    return min(int(stage_timeout_s), stage * 60), min(int(cell_timeout_s), cell * 60)


@dataclass(frozen=True)
class SchedulerRequest:
    """Resources of a job, under Snakemake's names; None leaves a resource out."""

    nodes: int
    mpi: str | None
    tasks: int | None
    tasks_per_node: int | None
    tasks_per_gpu: int
    cpus_per_task: int
    gres: str | None
    mem_mb: int
    runtime_min: int
    stage_runtime_min: int
    account: str | None
    partition: str | None
    qos: str | None
    constraint: str | None
    extra: str


def request(nodes: int, devices_per_node: int, site: Site) -> SchedulerRequest:
    """The request of a job at ``site``, for a number of nodes and of devices on each.

    For a cell these are ``site.held_geometry(cell)``.
    """
    devices = devices_per_node
    slurm = site.slurm
    alone = nodes * devices == 1
    gres = None
    if site.launcher == "slurm" and slurm.gres:
        kind = f":{slurm.gpu_type}" if slurm.gpu_type else ""
        gres = f"{slurm.gres}{kind}:{1 if site.devices_share_gpu else devices}"
    extra = [slurm.extra]
    if slurm.exclusive:
        extra.append("--exclusive")
    return SchedulerRequest(
        nodes=nodes,
        mpi=None if alone or site.launcher == "local" else "srun",
        tasks=nodes if nodes > 1 and devices == 1 else None,
        tasks_per_node=devices if devices > 1 else None,
        tasks_per_gpu=0,
        cpus_per_task=site.cpus_per_device,
        gres=gres,
        mem_mb=(site.memory_per_device_mb or 0) * devices,
        runtime_min=cell_minutes(site),
        stage_runtime_min=stage_minutes(site),
        account=slurm.account,
        partition=slurm.partition,
        qos=slurm.qos,
        constraint=slurm.constraint,
        extra=" ".join(part for part in extra if part),
    )


def held_devices(cell: Cell, site: Site) -> int:
    """Devices that a cell's job holds: all of its nodes where SLURM gives whole ones."""
    nodes, devices = site.held_geometry(cell)
    return nodes * (site.devices_per_node if whole_nodes(site) else devices)


def whole_nodes(site: Site) -> bool:
    """Whether a job holds whole nodes."""
    return site.launcher == "slurm" and site.slurm.exclusive


def node_disk_bytes(cells: Iterable[Cell], site: Site) -> int:
    """Add up what one node holds: every dataset where they are kept, else one at a time."""
    requests = {request_of(cell, site) for cell in cells}
    sizes = [estimate_bytes(request) for request in requests if request.is_synthetic]
    return sum(sizes) if site.keep_data else max(sizes, default=0)
