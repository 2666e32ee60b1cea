"""What an experiment will cost, before anything is submitted.

::

    rows of the matrix -> unsupported | done (a valid result lies there) | to run
    to run             -> jobs, node disk, device-seconds: at most, and as far as results tell
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS, estimate_bytes
from ddlbench.experiment.paths import RESULTS, profile_file, result_file
from ddlbench.experiment.profile import InvalidProfile, ProfileKey
from ddlbench.experiment.result import SCHEMA_VERSION, STATUSES
from ddlbench.experiment.schema import nearest
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Status
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.plan import request_of
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Workload, profile_at

Likeness = Literal["strategy", "network", "profile"]


@dataclass(frozen=True)
class Budget:
    """What an experiment will cost on a site.

    A device-second is one device held for one second. Where SLURM gives whole nodes
    (``slurm.exclusive``), a job holds all devices of its nodes, whether its cell uses them or not.

    Args:
        site: the site's name.
        cells: cells of the experiment; the sum of the next three.
        done: cells with a valid result.
        to_run: cells that will be measured.
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
        cells_known_by_strategy: cells to run that are expected to take as long as finished ones
            of the same dataset, network, strategy and amount of work.
        cells_known_by_network: the same, known from another strategy only.
        cells_known_by_profile: cells to run that only a profile of their network tells of: all
            steps as on one device, without the start.
        cells_unknown: cells to run that nothing is known of; ``device_s_expected`` lacks them.
        node_disk_bytes: most room that one node's scratch folder needs for datasets.
        download_bytes: what is fetched from elsewhere: nothing, as data is generated or is the
            site's own.
        warnings: what the user should know before submitting, a sentence each.
    """

    site: str
    cells: int
    done: int
    to_run: int
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
    cells_known_by_profile: int
    cells_unknown: int
    node_disk_bytes: int
    download_bytes: int
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values."""
        return {**asdict(self), "warnings": list(self.warnings)}


@dataclass(frozen=True)
class _Finished:
    """The few fields of a result file that a cost needs."""

    cell: Cell
    status: Status
    elapsed_s: float


def estimate(rows: Sequence[MatrixRow], site: Site, results_root: Path = RESULTS) -> Budget:
    """Estimate what an expanded experiment still costs.

    Args:
        rows: the expanded matrix.
        site: where it runs.
        results_root: the folder that holds ``<site>/cells``.
    """
    finished, invalid = _read_results(rows, site.name, results_root)
    unsupported = [row for row in rows if row.unsupported is not None]
    supported = [row for row in rows if row.unsupported is None]
    done = [finished[row.cell.id] for row in supported if row.cell.id in finished]
    to_run = [row.cell for row in supported if row.cell.id not in finished]
    first = _measured_first(to_run, site, results_root)
    largest = max(to_run, key=lambda cell: (cell.devices, site.held_geometry(cell)), default=None)
    known = _Expectation(finished.values(), site.name, results_root)
    likeness: Counter[Likeness | None] = Counter()
    device_s = run_s = 0.0
    for cell in to_run:
        alike, elapsed_s = known.of(cell)
        likeness[alike] += 1
        run_s += elapsed_s
        device_s += elapsed_s * _held_devices(cell, site)
    some_known = likeness[None] < len(to_run)
    return Budget(
        site=site.name,
        cells=len(rows),
        done=len(done),
        to_run=len(to_run),
        unsupported=len(unsupported),
        done_statuses=dict(Counter(result.status for result in done).most_common()),
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
        cells_known_by_profile=likeness["profile"],
        cells_unknown=likeness[None],
        node_disk_bytes=_node_disk_bytes(to_run, site),
        download_bytes=0,
        warnings=tuple(_warnings(rows, to_run, site, invalid)),
    )


def cells_to_run(rows: Sequence[MatrixRow], site: Site, results_root: Path = RESULTS) -> list[Cell]:
    """The cells that have no valid result yet and can run, in the order of the matrix."""
    finished, _ = _read_results(rows, site.name, results_root)
    return [row.cell for row in rows if row.unsupported is None and row.cell.id not in finished]


def _read_results(
    rows: Sequence[MatrixRow], site: str, results_root: Path
) -> tuple[dict[str, _Finished], list[str]]:
    """Read every result of the rows' datasets and networks: id -> result, and invalid ids.

    Cells of other experiments are read too: they tell how long the ones to run may take.
    """
    cells_root = results_root / result_file(site, "").parent.relative_to(RESULTS)
    finished: dict[str, _Finished] = {}
    invalid = []
    for folder in dict.fromkeys("/".join(row.cell.id.split("/")[:2]) for row in rows):
        for path in (cells_root / folder).glob("*/*/*/rep*/result.json"):
            cell_id = path.parent.relative_to(cells_root).as_posix()
            result = _read_result(path, cell_id)
            if result is None:
                invalid.append(cell_id)
            elif result.status.is_result:
                finished[cell_id] = result
    return finished, invalid


def _read_result(path: Path, cell_id: str) -> _Finished | None:
    """Read a result's few fields; None when they are not what a result has.

    Thousands of files are read while a user waits, so the whole schema is not checked here.
    """
    try:
        result = json.loads(path.read_bytes())
        cell = Cell.from_id(cell_id)
    except (OSError, ValueError):  # ConfigError and JSONDecodeError are ValueErrors
        return None
    if not isinstance(result, dict) or result.get("schema_version") != SCHEMA_VERSION:
        return None
    status, elapsed_s = result.get("status"), result.get("elapsed_s")
    if status not in STATUSES or result.get("cell_id") != cell_id:
        return None
    if not isinstance(elapsed_s, int | float) or isinstance(elapsed_s, bool):
        return None
    if not 0 <= elapsed_s < math.inf:
        return None
    return _Finished(cell, Status(status), float(elapsed_s))


def _measured_first(cells: Iterable[Cell], site: Site, results_root: Path) -> int:
    """How many files the plans of ``cells`` still wait for (``balance: profile``)."""
    wanted = {
        path
        for cell in cells
        for path in strategy_of(cell.strategy).measured_inputs(cell, site.name)
    }
    return sum(not (results_root / path.relative_to(RESULTS)).is_file() for path in wanted)


class _Expectation:
    """How long a cell may take: the median of the finished cells that are most like it.

    Only cells with the same amount of work count: a trial run on a thousandth of a dataset says
    nothing of the whole one. Where no cell is alike, a profile of the network is asked.
    """

    def __init__(self, finished: Iterable[_Finished], site: str, results_root: Path) -> None:
        self._site, self._results_root = site, results_root
        samples: defaultdict[tuple[object, ...], list[float]] = defaultdict(list)
        for result in finished:
            if result.status == Status.OK:
                for _, key in self._keys(result.cell):
                    samples[key].append(result.elapsed_s)
        self._elapsed_s = {key: median(values) for key, values in samples.items()}

    def of(self, cell: Cell) -> tuple[Likeness | None, float]:
        """Return what the expectation rests on, and the seconds; (None, 0) for an unknown cell."""
        for likeness, key in self._keys(cell):
            if key in self._elapsed_s:
                return likeness, self._elapsed_s[key]
        profiled_s = self._by_profile(cell)
        return (None, 0.0) if profiled_s is None else ("profile", profiled_s)

    def _by_profile(self, cell: Cell) -> float | None:
        """All steps as long as on one device; None without a profile."""
        path = profile_file(self._site, ProfileKey.of(cell).id).relative_to(RESULTS)
        try:
            workload = Workload(profile_at(self._results_root / path).to_dict(), str(path))
            step_s = workload.step(cell.batch_size).step_s
        except (InvalidProfile, OSError):
            return None
        images = DATASETS[cell.dataset].num_images("train", cell.data_scale)
        steps = images // cell.batch_size
        if cell.max_steps is not None:
            steps = min(steps, cell.max_steps)
        return step_s * (cell.warmup_steps + cell.epochs * steps)

    @staticmethod
    def _keys(cell: Cell) -> tuple[tuple[Likeness, tuple[object, ...]], ...]:
        """List what a cell may be known by, the most alike first."""
        work = (cell.dataset, cell.network, cell.data_scale, cell.epochs, cell.max_steps)
        return (
            ("strategy", (*work, cell.strategy, cell.geometry)),
            ("strategy", (*work, cell.strategy)),
            ("network", work),
        )


def _held_devices(cell: Cell, site: Site) -> int:
    nodes, devices = site.held_geometry(cell)
    return nodes * (site.devices_per_node if _whole_nodes(site) else devices)


def _whole_nodes(site: Site) -> bool:
    return site.launcher == "slurm" and bool(site.slurm.get("exclusive", True))


def _node_disk_bytes(cells: Iterable[Cell], site: Site) -> int:
    """Add up what one node holds: every dataset where they are kept, else one at a time."""
    requests = {request_of(cell, site) for cell in cells}
    sizes = [estimate_bytes(request) for request in requests if request.is_synthetic]
    return sum(sizes) if site.keep_data else max(sizes, default=0)


def _warnings(
    rows: Sequence[MatrixRow], to_run: Sequence[Cell], site: Site, invalid: Sequence[str]
) -> Iterable[str]:
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
    wanted = {row.cell.id for row in rows}
    again = [cell_id for cell_id in invalid if cell_id in wanted]
    if again:
        yield (
            f"{_cells(again)} an invalid result.json, which the workflow takes for a result: "
            f"delete it to measure again (first: {again[0]})"
        )
    if _whole_nodes(site):
        partial = [c for c in to_run if site.held_geometry(c)[1] < site.devices_per_node]
        if partial:
            yield (
                f"{len(partial)} of {len(to_run)} cells to run use part of a node, but "
                "slurm.exclusive holds whole nodes; the device-hours count all of their devices"
            )
    yield from _unchecked_fabrics(to_run, site)


def _unchecked_fabrics(cells: Iterable[Cell], site: Site) -> Iterable[str]:
    """Names of link conditions that the user must set by hand, or has misspelt."""
    known = {"default", *site.fabrics, *site.interconnect.get("links", {})}
    for fabric in sorted({cell.fabric for cell in cells} - known):
        yield (
            f"site {site.name} does not emulate fabric {fabric!r}: that condition must be in force "
            f"while its cells run, and nothing checks it ({nearest(fabric, known)})"
        )


def _cells(ids: Sequence[str]) -> str:
    return "1 cell has" if len(ids) == 1 else f"{len(ids)} cells have"
