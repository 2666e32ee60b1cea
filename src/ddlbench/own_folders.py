"""The user's own data, looked at before any job as the nodes will read it.

::

    look         counts, what is left out, and the digest of the data that lies there now
    measured     cells whose result was measured with other data than that
    check        every file is opened once, and all bad ones are named
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ddlbench.common.errors import ConfigError, printable
from ddlbench.experiment.paths import result_file
from ddlbench.experiment.result import InvalidResult, read_result
from ddlbench.experiment.site import Site
from ddlbench.planning.planner import request_of

if TYPE_CHECKING:
    from ddlbench.datasets.user_data import UserData
    from ddlbench.experiment.cell import Cell
    from ddlbench.experiment.dataset_spec import DataRequest

_Key = tuple[str, str]  # a dataset and a format


@dataclass(frozen=True)
class OwnFolders:
    """What was seen of the data of some cells.

    Args:
        seen: by dataset and format.
        remarks: what this machine does not see, a sentence each.
    """

    seen: Mapping[_Key, UserData]
    remarks: tuple[str, ...] = ()

    def images(self, cells: Iterable[Cell]) -> dict[tuple[str, float], int]:
        """Training samples that are read, by dataset and scale."""
        return {
            (cell.dataset, cell.data_scale): self.seen[_key(cell)].train_samples(cell.data_scale)
            for cell in cells
            if _key(cell) in self.seen
        }

    def described(self) -> tuple[str, ...]:
        """A line for each dataset: samples, classes, and what is left out."""
        return tuple(f"{dataset}: {own.described()}" for (dataset, _), own in self.seen.items())

    def measured_with_others(self, site: Site, cells: Iterable[Cell]) -> list[Cell]:
        """Cells with a result of other data than lies there now."""
        return [cell for cell in cells if self._is_of_others(site, cell)]

    def _is_of_others(self, site: Site, cell: Cell) -> bool:
        own = self.seen.get(_key(cell))
        if own is None:
            return False
        with suppress(InvalidResult, OSError):
            digest = read_result(result_file(site.name, cell.id)).own_data
            return digest not in (None, own.digest)
        return False

    def others_remark(self, site: Site, cells: Iterable[Cell]) -> list[str]:
        """A sentence if cells were measured with other data."""
        others = self.measured_with_others(site, cells)
        if not others:
            return []
        datasets = ", ".join(dict.fromkeys(cell.dataset for cell in others))
        count = f"{len(others)} cell{'s' if len(others) > 1 else ''}"
        were = "were" if len(others) > 1 else "was"
        return [
            f"{count} of {datasets} {were} measured with other data than lies there now, and no "
            "ratio to cells of this data is drawn; to measure with this data: "
            "ddlbench forget --state other-data"
        ]


def _key(cell: Cell) -> _Key:
    return cell.dataset, cell.data_format


def look(site: Site, cells: Iterable[Cell], waiting: Collection[str] | None = None) -> OwnFolders:
    """Look at the data of cells that read the user's own.

    Args:
        site: where they run.
        cells: of any data.
        waiting: ids of those that are still to be measured; None for all of them.

    Raises:
        ConfigError: data of a waiting cell, which this machine sees, cannot be read; the sentence
            says why. Of data that no cell waits for, a remark says it.
    """
    real = [cell for cell in cells if cell.data_source == "real"]
    if not real:
        return OwnFolders({})
    from ddlbench.datasets.files import DataError  # noqa: PLC0415 - only where data is real
    from ddlbench.datasets.manifest import source_folder  # noqa: PLC0415
    from ddlbench.datasets.user_data import inspect_user_data  # noqa: PLC0415

    seen: dict[_Key, UserData] = {}
    remarks: dict[str, None] = {}
    for cell in {_key(cell): cell for cell in real}.values():
        request = replace(request_of(cell, site), scale=1.0)
        where = f"data.{cell.dataset}" if request.spec.source else f"real_data.{cell.dataset}"
        root = None
        is_needed = waiting is None or any(
            other.id in waiting for other in real if _key(other) == _key(cell)
        )
        try:
            root = source_folder(request)
        except DataError as error:
            if site.launcher != "slurm" and is_needed:
                raise ConfigError(str(error)) from error
        if root is None or (site.launcher == "slurm" and not root.exists()):
            place = f"{root or request.source} ({cell.dataset})"
            remarks[f"{place} is not on this machine; the nodes will look at it"] = None
            continue
        try:
            seen[_key(cell)] = inspect_user_data(request)
        except DataError as error:
            if is_needed:
                raise ConfigError(f"{where}: {error}") from error
            remarks[f"{where}: {error}"] = None
    return OwnFolders(seen, tuple(remarks))


@dataclass(frozen=True)
class CheckedData:
    """What was seen of one dataset, of which every file was opened.

    Args:
        dataset: its name.
        folder: where it lies.
        described: samples, classes and what is left out; None if it cannot be read as a whole.
        read: samples that can be read.
        faults: a sentence each.
    """

    dataset: str
    folder: str
    described: str | None
    read: int
    faults: list[str]


_ADVICE = ", and find others like it: ddlbench check-data"


def check_files(request: DataRequest) -> CheckedData:
    """Open every file of the user's own data once."""
    from ddlbench.datasets.files import DataError  # noqa: PLC0415 - numpy
    from ddlbench.datasets.user_data import faults, inspect_user_data  # noqa: PLC0415

    sentences: list[str] = []
    read = 0
    for fault in faults(request):
        if fault is None:
            read += 1
        else:
            sentences.append(printable(fault).removesuffix(_ADVICE))
    described = None
    try:
        described = printable(inspect_user_data(request).described())
    except DataError as error:
        if not sentences:
            sentences.append(printable(str(error)))
    return CheckedData(request.dataset, request.source, described, read, sentences)
