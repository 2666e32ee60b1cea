"""What an experiment will cost before anything is submitted, and what each job requests.

::

    rows of the matrix -> unsupported | done (a valid result lies there) | to run
    to run             -> jobs, node disk, device-seconds: at most, and as far as results tell

One rule says what a job requests from the scheduler, for all geometries. The table was checked on a
real SLURM with the Snakemake executor plugin 2.8:

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

A job makes its data, then measures. The spare minutes start and end the processes and write the
result::

    one SLURM job   | data: stage_timeout_s | cell: cell_timeout_s | spare |
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.common.schema import nearest
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import estimate_bytes
from ddlbench.experiment.links import read_links
from ddlbench.experiment.paths import LINKS_FILE, RESULTS
from ddlbench.experiment.profile import read_profile
from ddlbench.experiment.result import Glance, glance
from ddlbench.experiment.site import Site
from ddlbench.planning.expected_time import (
    ExpectedTime,
    Finished,
    Likeness,
    UserParts,
    cells_root,
    finished_of,
    train_samples,
)
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.planner import request_of
from ddlbench.planning.strategy import strategy_of

SPARE_MINUTES = 5


def data_minutes(site: Site) -> int:
    """Minutes of a cell's job in which it makes its data."""
    return math.ceil(site.stage_timeout_s / 60)


def job_minutes(site: Site) -> int:
    """Minutes of the job of a cell: its data, the cell, and the spare ones."""
    return data_minutes(site) + math.ceil(site.cell_timeout_s / 60) + SPARE_MINUTES


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
    if slurm.exclude:
        extra.append(f"--exclude={shlex.quote(','.join(slurm.exclude))}")
    return SchedulerRequest(
        nodes=nodes,
        mpi=None if alone or site.launcher == "local" else "srun",
        tasks=nodes if nodes > 1 and devices == 1 else None,
        tasks_per_node=devices if devices > 1 else None,
        tasks_per_gpu=0,
        cpus_per_task=site.cpus_per_device,
        gres=gres,
        mem_mb=(site.memory_per_device_mb or 0) * devices,
        runtime_min=job_minutes(site),
        account=slurm.account,
        partition=slurm.partition,
        qos=slurm.qos,
        constraint=slurm.constraint,
        extra=" ".join(part for part in extra if part),
    )


_BY_GEOMETRY = {"nodes", "mpi", "tasks", "tasks_per_node", "gres", "mem_mb"}


def same_for_all(site: Site) -> dict[str, Any]:
    """Fields of a request that have one value for all geometries of a site."""
    varying = set(_BY_GEOMETRY)
    if site.launcher == "local":
        varying -= {"mpi", "gres"}
    if not site.memory_per_device_mb:
        varying -= {"mem_mb"}
    if not site.slurm.gres:
        varying -= {"gres"}
    fields = vars(request(1, 1, site))
    return {name: fields[name] for name in fields if name not in varying}


def _held_devices(cell: Cell, site: Site) -> int:
    """Devices that a cell's job holds: all of its nodes where SLURM gives whole ones."""
    nodes, devices = site.held_geometry(cell)
    return nodes * (site.devices_per_node if _whole_nodes(site) else devices)


def _whole_nodes(site: Site) -> bool:
    return site.launcher == "slurm" and site.slurm.exclusive


def node_disk_bytes(cells: Iterable[Cell], site: Site) -> int:
    """Add up what one node holds: every dataset where they are kept, else one at a time."""
    requests = {request_of(cell, site) for cell in cells}
    sizes = [estimate_bytes(request) for request in requests if request.is_synthetic]
    return sum(sizes) if site.keep_data else max(sizes, default=0)


@dataclass(frozen=True)
class Budget:
    """What an experiment will cost on a site.

    A device-second is one device held for one second. Where SLURM gives whole nodes
    (``slurm.exclusive``), a job holds all devices of its nodes, whether its cell uses them or not.

    Args:
        site: the site's name.
        cells: cells of the experiment; the sum of the next four.
        done: cells with a valid result.
        to_run: cells that will be measured.
        left: cells whose result is of a newer ddlbench, or cannot be read today; nobody measures
            them.
        unsupported: cells that cannot run, and get no job.
        done_statuses: status -> how many of the cells that are done.
        unsupported_reasons: reason -> how many of the unsupported cells.
        measured_first: profiles and links that plans of these cells are made from, and that are
            not there yet; a job each.
        slurm_jobs: jobs that will be submitted, those included; 0 where cells run on this machine.
        largest_nodes, largest_devices: of the largest cell to run.
        device_s_upper: device-seconds if every cell to run took the site's ``cell_timeout_s``;
            making its data on the node comes before that.
        device_s_expected: device-seconds of those cells to run that a finished cell or a profile
            is known for; None when there is none.
        run_s_upper, run_s_expected: the same in seconds of one cell after the other.
        cells_known_by_strategy: known from finished ones of the same dataset, network, strategy
            and amount of work.
        cells_known_by_network: the same, from another strategy only.
        cells_known_by_steps: known from measured steps of this network and strategy; like the
            next two, the steps of the cell, and the start of one.
        cells_known_by_profile: known from a profile: all steps as on one device.
        cells_known_by_operations: known from those of their network, and the site's rate.
        cells_unknown: cells to run that nothing is known of; ``device_s_expected`` lacks them.
        node_disk_bytes: most room that one node's scratch folder needs for datasets.
        data: what lies in folders of the user's own data, a line each.
        warnings: what the user should know before submitting, a sentence each.
    """

    site: str
    cells: int
    done: int
    to_run: int
    left: int
    unsupported: int
    done_statuses: dict[str, int]
    unsupported_reasons: dict[str, int]
    measured_first: int
    slurm_jobs: int
    largest_nodes: int
    largest_devices: int
    device_s_upper: float
    device_s_expected: float | None
    run_s_upper: float
    run_s_expected: float | None
    cells_known_by_strategy: int
    cells_known_by_network: int
    cells_known_by_steps: int
    cells_known_by_profile: int
    cells_known_by_operations: int
    cells_unknown: int
    node_disk_bytes: int
    data: tuple[str, ...]
    warnings: tuple[str, ...]


def estimate(
    rows: Sequence[MatrixRow],
    site: Site,
    results_root: Path = RESULTS,
    user_parts: UserParts = UserParts(),  # noqa: B008 - frozen
    finished: Finished | None = None,
) -> Budget:
    """Estimate what an expanded experiment still costs.

    ``finished`` is what :func:`finished_rows` gives, where that is known already.
    """
    finished = finished or finished_rows(rows, site, results_root)
    unsupported = [row for row in rows if row.unsupported is not None]
    to_run = cells_to_run(rows, finished)
    # Files that their plans still wait for (`balance: profile`).
    first = sum(not path.is_file() for path in _inputs(to_run, site, results_root))
    largest = max(to_run, key=lambda cell: (cell.devices, site.held_geometry(cell)), default=None)
    glances = _glances(rows, finished, site.name, results_root)
    known = ExpectedTime(glances, site, results_root, user_parts)
    likeness: Counter[Likeness | None] = Counter()
    device_s = run_s = 0.0
    for cell in to_run:
        kind, elapsed_s = known.of(cell)
        likeness[kind] += 1
        run_s += elapsed_s
        device_s += elapsed_s * _held_devices(cell, site)
    some_known = likeness[None] < len(to_run)
    return Budget(
        site=site.name,
        cells=len(rows),
        done=len(finished.results),
        to_run=len(to_run),
        left=len(finished.left),
        unsupported=len(unsupported),
        done_statuses=dict(
            Counter(result.status for result in finished.results.values()).most_common()
        ),
        unsupported_reasons=dict(
            Counter(str(row.unsupported) for row in unsupported).most_common()
        ),
        measured_first=first,
        slurm_jobs=len(to_run) + first if site.launcher == "slurm" else 0,
        largest_nodes=site.held_geometry(largest)[0] if largest else 0,
        largest_devices=largest.devices if largest else 0,
        device_s_upper=float(site.cell_timeout_s)
        * sum(_held_devices(cell, site) for cell in to_run),
        device_s_expected=device_s if some_known else None,
        run_s_upper=float(site.cell_timeout_s) * len(to_run),
        run_s_expected=run_s if some_known else None,
        cells_known_by_strategy=likeness["strategy"],
        cells_known_by_network=likeness["network"],
        cells_known_by_steps=likeness["steps"],
        cells_known_by_profile=likeness["profile"],
        cells_known_by_operations=likeness["operations"],
        cells_unknown=likeness[None],
        node_disk_bytes=node_disk_bytes(to_run, site),
        data=user_parts.data,
        warnings=(
            *_warnings(rows, to_run, site),
            *_left_over(to_run, user_parts),
            *finished.remarks(),
            *faulty_inputs(to_run, site, results_root),
            *user_parts.remarks,
        ),
    )


def finished_rows(rows: Sequence[MatrixRow], site: Site, results_root: Path = RESULTS) -> Finished:
    """What is done of the cells that can run."""
    ids = [row.cell.id for row in rows if row.unsupported is None]
    return finished_of(ids, site.name, results_root)


def cells_to_run(rows: Sequence[MatrixRow], finished: Finished) -> list[Cell]:
    """The cells that are to be measured and can run, in the order of the matrix."""
    waiting = finished.waiting(row.cell.id for row in rows if row.unsupported is None)
    return [row.cell for row in rows if row.cell.id in waiting]


def _glances(
    rows: Sequence[MatrixRow], finished: Finished, site: str, results_root: Path
) -> list[Glance]:
    """What every finished cell of the rows' datasets and networks costs.

    Cells of other experiments are read too: they tell how long the ones to run may take.
    """
    root = cells_root(site, results_root)
    glances: list[Glance] = []
    for folder in dict.fromkeys("/".join(row.cell.id.split("/")[:2]) for row in rows):
        for path in (root / folder).glob("*/*/*/rep*/result.json"):
            cell_id = path.parent.relative_to(root).as_posix()
            result = finished.results.get(cell_id)
            if result is not None:
                glances.append(Glance.of(Cell.from_id(cell_id), result))
            elif cell_id not in finished.invalid and cell_id not in finished.left:
                seen = glance(path, site, cell_id)
                if seen is not None and seen.status.is_result:
                    glances.append(seen)
    return glances


def faulty_inputs(cells: Iterable[Cell], site: Site, results_root: Path = RESULTS) -> Iterator[str]:
    """What is wrong with profiles and links that plans of ``cells`` are made from.

    They are not made anew, as a newer ddlbench may have measured them.
    """
    for path in sorted(_inputs(cells, site, results_root)):
        try:
            if path.is_file():
                read = read_links if path.name == LINKS_FILE else read_profile
                read(path)
        except ConfigError as error:
            yield str(error)


def _inputs(cells: Iterable[Cell], site: Site, results_root: Path) -> set[Path]:
    return {
        results_root / path.relative_to(RESULTS)
        for cell in cells
        for path in strategy_of(cell.strategy).measured_inputs(cell, site.name)
    }


def _warnings(rows: Sequence[MatrixRow], to_run: Sequence[Cell], site: Site) -> Iterable[str]:
    supported = [row for row in rows if row.unsupported is None]
    baseless = [row.cell.id for row in supported if row.base_id is None]
    if baseless:
        yield (
            f"{_cells(baseless)} no sequential base, so no speed-up can be shown: add 'sequential' "
            f"to matrix.strategy, or their base to include (first: {baseless[0]})"
        )
    broken = {row.cell.id: row.unsupported for row in rows if row.unsupported is not None}
    stranded = [row.cell.id for row in supported if row.base_id in broken]
    if stranded:
        yield (
            f"{_cells(stranded)} a sequential base that cannot run, so no speed-up can be shown "
            f"(first: {stranded[0]})"
        )
    if _whole_nodes(site):
        partial = [c for c in to_run if site.held_geometry(c)[1] < site.devices_per_node]
        if partial:
            use = "uses" if len(partial) == 1 else "use"
            yield (
                f"{len(partial)} of {counted(len(to_run), 'cell')} to run {use} part of a node, "
                "but slurm.exclusive holds whole nodes; the device-hours count all of their "
                "devices"
            )
    known = site.known_fabrics
    for fabric in sorted({cell.fabric for cell in to_run} - known):
        yield (
            f"site {site.name} does not emulate fabric {fabric!r}: that condition must be in force "
            f"while its cells run, and nothing checks it ({nearest(fabric, known)})"
        )


_MANY_LEFT_OVER = 0.05  # of an epoch's samples


def _left_over(cells: Iterable[Cell], user_parts: UserParts) -> Iterator[str]:
    """A sentence if many of the user's samples fill no batch, of the cell that leaves most."""
    shares: dict[tuple[str, int, int, int], float] = {}
    for cell in cells:
        if cell.data_source == "synthetic":
            continue
        samples = train_samples(cell, user_parts)
        steps, left = divmod(samples, cell.batch_size)
        is_cut = cell.max_steps is not None and cell.max_steps < steps
        if steps and left > _MANY_LEFT_OVER * samples and not is_cut:
            shares[cell.dataset, samples, cell.batch_size, left] = left / samples
    if shares:
        dataset, samples, batch, left = max(shares, key=shares.__getitem__)
        yield (
            f"{left:,} of {samples:,} samples of {dataset} are left over in each epoch, as they "
            f"fill no whole batch of {batch:,}; each epoch leaves others"
        )


def _cells(ids: Sequence[str]) -> str:
    return "1 cell has" if len(ids) == 1 else f"{len(ids)} cells have"
