"""Which cells of a site are done, for whoever counts cells or measures those that are not.

::

    no result.json, or an attempt that failed    to be measured
    a valid result                               done
    an invalid result                            put aside, and to be measured
    of a newer ddlbench, or unreadable today     left as it is: nobody measures over it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddlbench.common.document import put_aside
from ddlbench.experiment.paths import RESULTS, result_file
from ddlbench.experiment.result import InvalidResult, NewerResult, Result, cell_result


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
    cells: dict[str, list[str]] = {}
    for cell, why in faults.items():
        cells.setdefault(why, []).append(cell)
    for why, ids in cells.items():
        count = "1 cell" if len(ids) == 1 else f"{len(ids)} cells"
        yield f"result.json of {count}: {why}{what_follows} (first: {ids[0]})"


def finished_of(cell_ids: Iterable[str], site: str, results_root: Path = RESULTS) -> Finished:
    """Read the results of cells."""
    results: dict[str, Result] = {}
    invalid: dict[str, str] = {}
    left: dict[str, str] = {}
    for cell_id in cell_ids:
        path = result_file(site, cell_id, results_root)
        try:
            result = cell_result(path, site, cell_id)
        except InvalidResult as error:
            why = str(error).removeprefix(f"{path}: ")
            (left if _stays(error) else invalid)[cell_id] = why
            continue
        if result is None:
            continue
        if result.status.is_result:
            results[cell_id] = result
        else:
            invalid[cell_id] = f"it is of an attempt that {result.status}"
    return Finished(results, invalid, left)


def _stays(error: InvalidResult) -> bool:
    """Whether the file may be a good result of its cell all the same."""
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
