"""Which cells of a site are done, and how long the others may take by the best that is known.

The expected time of a cell is, in this order::

    measured    the median of finished cells with the same amount of work
    steps       measured steps of this network and strategy, and the start of a cell
    profile     steps on one device, by a profile of the network, and the start
    operations  those of the network, at the rate of what was measured here, and the start

A cell is done, or is to be measured, by what its result says::

    no result.json, or an attempt that failed    to be measured
    a valid result                               done
    an invalid result                            put aside, and to be measured
    of a newer ddlbench, or unreadable today     left as it is: nobody measures over it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal

from ddlbench.common.document import put_aside
from ddlbench.common.errors import ConfigError, unplaced
from ddlbench.common.quantities import counted
from ddlbench.common.statistics import grouped, medians
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.paths import RESULTS, profile_file, result_file
from ddlbench.experiment.profile import InvalidProfile, ProfileKey, read_profile
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.result import (
    Glance,
    InvalidResult,
    NewerResult,
    Result,
    cell_result,
    glance,
)
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Status
from ddlbench.planning.block_costs import block_costs
from ddlbench.planning.device_table import table_for
from ddlbench.planning.workload import Workload

Likeness = Literal["strategy", "network", "steps", "profile", "operations"]

START_S = 15.0  # of a cell where no start was measured: processes import torch
_MOST_READ = 500  # files, while a user waits


@dataclass(frozen=True)
class UserParts:
    """What a look at the user's networks and data told.

    Args:
        operations: of the forward pass of one sample, by network and dataset.
        images: training images that are read, by dataset and scale.
        remarks: what could not be looked at here, a sentence each.
        data: what lies in folders of data, a line each.
        unsupported: why cells cannot train their network, by id.
    """

    operations: Mapping[tuple[str, str], int] = field(default_factory=dict)
    images: Mapping[tuple[str, float], int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    unsupported: Mapping[str, str] = field(default_factory=dict)

    def unsupported_remarks(self) -> tuple[str, ...]:
        """A sentence for each network, strategy and reason."""
        cells = ((Cell.from_id(cell_id), why) for cell_id, why in self.unsupported.items())
        sentences = (
            f"{cell.network} with {cell.strategy} will be unsupported: {why}" for cell, why in cells
        )
        return tuple(dict.fromkeys(sentences))


def cells_root(site: str, results_root: Path) -> Path:
    """Where the cells of a site lie."""
    return result_file(site, "", results_root).parent


class ExpectedTime:
    """Expected seconds of a site's cells."""

    def __init__(
        self, finished: Iterable[Glance], site: Site, results_root: Path, user_parts: UserParts
    ) -> None:
        self._site, self._results_root, self._user_parts = site.name, results_root, user_parts
        self._accelerator = site.accelerator
        self._finished = [result for result in finished if result.status == Status.OK]
        self._elapsed_s = medians(
            (key, result.elapsed_s)
            for result in self._finished
            for _, key in self._keys(result.cell)
        )

    def of(self, cell: Cell) -> tuple[Likeness | None, float]:
        """Return what the expectation rests on, and the seconds; (None, 0) for an unknown cell."""
        for likeness, key in self._keys(cell):
            if key in self._elapsed_s:
                return likeness, self._elapsed_s[key]
        sample_s = self._sample_s.get(_training(cell))
        ways: tuple[tuple[Likeness, float | None], ...] = (
            ("steps", None if sample_s is None else sample_s * cell.batch_size),
            ("profile", self._profiled_step_s(cell)),
            ("operations", self._counted_step_s(cell)),
        )
        for kind, step_s in ways:
            if step_s is not None:
                return kind, self.start_s(cell) + self._steps(cell) * step_s
        return None, 0.0

    def start_s(self, cell: Cell) -> float:
        """What a cell takes beside its steps."""
        return self._starts.get(cell.strategy, self._starts.get("", START_S))

    @cached_property
    def _here(self) -> list[Glance]:
        root = cells_root(self._site, self._results_root)
        paths = islice(root.glob("*/*/*/*/*/rep0/result.json"), _MOST_READ)
        read = (
            glance(path, self._site, path.parent.relative_to(root).as_posix()) for path in paths
        )
        others = [result for result in read if result and result.status == Status.OK]
        return list({r.cell.id: r for r in (*self._finished, *others)}.values())

    @cached_property
    def _starts(self) -> dict[str, float]:
        return medians(
            (key, result.start_s)
            for result in self._here
            if result.start_s is not None
            for key in (result.cell.strategy, "")
        )

    @cached_property
    def _sample_s(self) -> dict[object, float]:
        """Seconds of a step for each of its samples, by network and strategy."""
        return medians(
            (_training(r.cell), r.step_s / r.cell.batch_size)
            for r in self._finished
            if r.step_s is not None
        )

    @cached_property
    def _rates(self) -> dict[str, float]:
        """Operations a second, by strategy; under the empty name those of all cells or profiles."""
        rates = [
            (result.cell.strategy, operations / result.step_s)
            for result in self._here
            if result.step_s and (operations := self._operations(result.cell))
        ]
        if not rates:
            folder = self._results_root / profile_file(self._site, "").parent.relative_to(RESULTS)
            paths = islice(folder.glob("*/*/*/profile.json"), _MOST_READ)
            rates = [("", rate) for path in paths if (rate := self._rate_of_profile(path))]
        return medians((key, rate) for name, rate in rates for key in {name, ""})

    def _rate_of_profile(self, path: Path) -> float | None:
        try:
            profile = read_profile(path).to_dict()
            batch_size = max(entry["batch_size"] for entry in profile["steps"])
            step_s = Workload(profile, str(path)).step(batch_size).step_s
        except (ConfigError, InvalidProfile, OSError, ValueError):
            return None
        cell = Cell(profile["dataset"], profile["network"], BASE, batch_size=batch_size)
        return (self._operations(cell) or 0) / step_s if step_s else None

    def _operations(self, cell: Cell) -> float | None:
        """Operations of a step; a backward pass takes about twice those of a forward pass."""
        forward: float | None = self._user_parts.operations.get((cell.network, cell.dataset))
        if forward is None:
            blocks = block_costs(cell.network, cell.dataset)
            forward = sum(block.work for block in blocks) if blocks else None
        return 3.0 * forward * cell.batch_size if forward else None

    def _counted_step_s(self, cell: Cell) -> float | None:
        operations = self._operations(cell)
        rate = self._rates.get(cell.strategy, self._rates.get("")) if operations else None
        return operations / rate if operations and rate else None

    def _profiled_step_s(self, cell: Cell) -> float | None:
        try:
            if self._accelerator is not None:  # emulated devices take the time of their table
                table = table_for(self._accelerator, cell.dataset, cell.network)
                return self._accelerator.slow_down * sum(table.pass_s(cell.batch_size))
            key = ProfileKey.of(cell)
            path = self._results_root / profile_file(self._site, key.id).relative_to(RESULTS)
            workload = Workload(read_profile(path).to_dict(), str(path))
            return workload.step(cell.batch_size).step_s
        except (ConfigError, OSError):  # whoever needs the file says what is wrong
            return None

    def _steps(self, cell: Cell) -> int:
        steps = train_samples(cell, self._user_parts) // cell.batch_size
        if cell.max_steps is not None:
            steps = min(steps, cell.max_steps)
        return cell.warmup_steps + cell.epochs * steps

    @staticmethod
    def _keys(cell: Cell) -> tuple[tuple[Likeness, tuple[object, ...]], ...]:
        """Each likeness with the key that cells alike in it share; the most alike first."""
        data = (cell.dataset, cell.data_source, cell.data_scale)
        work = (*data, cell.network, cell.epochs, cell.max_steps)
        return (
            ("strategy", (*work, cell.strategy, cell.geometry)),
            ("strategy", (*work, cell.strategy)),
            ("network", work),
        )


def train_samples(cell: Cell, user_parts: UserParts) -> int:
    """Training samples of an epoch, if no limit of steps cuts it."""
    known = user_parts.images if cell.data_source == "real" else {}
    generated = DATASETS[cell.dataset].num_images("train", cell.data_scale)
    return known.get((cell.dataset, cell.data_scale), generated)


def _training(cell: Cell) -> tuple[str, str, str]:
    return cell.dataset, cell.network, cell.strategy


@dataclass(frozen=True)
class Finished:
    """What the result files of cells say; a cell without a file is in none of these.

    Args:
        results: of the cells that are done.
        invalid: cell id -> why its file is no result of it; the cell is measured again.
        left: cell id -> why its file is neither read nor replaced.
    """

    results: Mapping[str, Result]
    invalid: Mapping[str, str]
    left: Mapping[str, str]

    def waiting(self, cell_ids: Iterable[str]) -> set[str]:
        return {cell for cell in cell_ids if cell not in self.results and cell not in self.left}

    def remarks(self) -> Iterator[str]:
        """A sentence for each fault of files."""
        yield from self.left_remarks()
        yield from _sentences(self.invalid, "; it is put aside and measured again")

    def left_remarks(self) -> Iterator[str]:
        """A sentence for each fault of files that are left as they are."""
        yield from _sentences(self.left, "")


def _sentences(faults: Mapping[str, str], what_follows: str) -> Iterator[str]:
    for why, ids in grouped((why, cell) for cell, why in faults.items()).items():
        yield f"result.json of {counted(len(ids), 'cell')}: {why}{what_follows} (first: {ids[0]})"


def finished_of(cell_ids: Iterable[str], site: str, results_root: Path = RESULTS) -> Finished:
    """Read the results of cells."""
    results: dict[str, Result] = {}
    invalid: dict[str, str] = {}
    left: dict[str, str] = {}
    for cell_id in cell_ids:
        path = result_file(site, cell_id, results_root)
        if _absent(path):
            continue
        try:
            result = cell_result(path, site, cell_id)
        except InvalidResult as error:
            faults = left if _stays(error) else invalid
            faults[cell_id] = unplaced(path, str(error))
            continue
        if result is None:
            continue
        if result.status.is_result:
            results[cell_id] = result
        else:
            invalid[cell_id] = f"it is of an attempt that {result.status}"
    return Finished(results, invalid, left)


def _absent(path: Path) -> bool:
    """Whether nothing is there, as for most of thousands of cells; a broken link is something."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:  # whoever reads it says what is wrong
        return False
    return False


def _stays(error: InvalidResult) -> bool:
    """Whether the file may still be a good result of its cell, and so is not put aside."""
    cause = error.__cause__
    unreadable = isinstance(cause, OSError) and not isinstance(cause, IsADirectoryError)
    return unreadable or isinstance(error, NewerResult)


def put_aside_invalid(finished: Finished, site: str) -> Iterator[str]:
    """Rename results that are invalid, so that their cells are measured again.

    Yields:
        what was wrong with each, and where it lies now.

    Raises:
        OSError: a file cannot be renamed.
    """
    for cell_id, why in finished.invalid.items():
        path = result_file(site, cell_id)
        yield f"{path} is put aside as {put_aside(path).name}: {why}"
