"""The cells of trees of results, whatever experiments they are of.

::

    given           results        results/mycluster       any folder with one cell
                       |                  |                        |
    found     */cells/<cell id>    cells/<cell id>      result.json or failure.json itself

A tree needs neither the experiment nor the site that it was measured with: a result says what it is
of, wherever its folder was moved or copied to. Of a damaged or failed one the path says it. Tables
of experiments that lie in the tree (``measurements.csv``) say which experiments select a cell, and
its base. Links to folders are followed, each folder once.
"""

from __future__ import annotations

import csv
import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ddlbench.common.document import UnreadableJson
from ddlbench.common.errors import ConfigError, file_fault, printable, shown
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.fabric import FOLDER_NAME, LinkCondition
from ddlbench.experiment.paths import LINKS_FILE
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.result import InvalidResult, Result, complete, read_result
from ddlbench.experiment.status import FAILURE_FILE, Failure
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.tables import MEASUREMENTS, read_columns

RESULT_FILE = "result.json"
EXPORT_MARK = ".ddlbench-export"
"""Lies in a folder that ``ddlbench report export`` wrote: results in it are no further cells."""
_TABLE = "measurements.csv"
_LOG = logging.getLogger(__name__)
_NAMES = ("site", "experiment", "cell_id", "base_cell_id")
_SELECTING = [column for name in _NAMES for column in MEASUREMENTS if column.name == name]
_PARTS_OF_ID = 6
_MOST_WARNINGS = 5

Given = str | os.PathLike[str]


@dataclass(frozen=True)
class TreeCell:
    """One cell that has a result or has failed.

    Args:
        tree: the folder that was given and holds it.
        site: whose cell it is; empty where nothing tells.
        cell: what was measured.
        folder: that holds its files.
        outcome: its result, or what is wrong with that file; None where it has failed.
        base_id: id of the cell of one device that its speed-up is against; None without one.
        experiments: those of the tree that select it.
    """

    tree: str
    site: str
    cell: Cell
    folder: Path
    outcome: Result | InvalidResult | None
    base_id: str | None = None
    experiments: tuple[str, ...] = ()

    @property
    def result(self) -> Result | None:
        return self.outcome if isinstance(self.outcome, Result) else None

    @property
    def row(self) -> MatrixRow:
        """The cell as a row of a matrix, with the links and devices that its result names."""
        result = self.result
        return MatrixRow(
            self.cell,
            self.base_id,
            unsupported=None,
            condition=_condition(result),
            accelerator=None if result is None else result.accelerator,
        )


@dataclass(frozen=True)
class ResultTree:
    """What lies in some trees.

    Args:
        cells: all of them, in the order of their paths.
        links: files of measured links, each with the tree that holds it.
        experiments: folders of experiments' tables and figures, each with its tree.
    """

    cells: tuple[TreeCell, ...]
    links: tuple[tuple[str, Path], ...] = ()
    experiments: tuple[tuple[str, Path], ...] = ()


def read_tree(results: Given | Iterable[Given]) -> ResultTree:
    """Read all cells of one tree, or of several: folders of results, of a site or of a cell.

    A file that is damaged is one warning, of many the first ones; its cell has the status
    ``invalid``.

    Raises:
        ConfigError: a folder is missing or is none, or nothing was measured in any.
    """
    given = _paths(results)
    cells: list[TreeCell] = []
    links: list[tuple[str, Path]] = []
    tables: list[tuple[str, Path]] = []
    faults: list[str] = []
    seen: set[tuple[int, int]] = set()
    for path in given:
        for folder, files in _folders(path, seen, faults):
            if LINKS_FILE in files:
                links.append((str(path), folder / LINKS_FILE))
            if _TABLE in files and folder.name == "tables":
                tables.append((str(path), folder / _TABLE))
            cells += _cell(str(path), folder, files, faults)
    selected = _selections(tables, faults)
    for fault in faults[:_MOST_WARNINGS]:
        _LOG.warning("%s", printable(fault))
    if len(faults) > _MOST_WARNINGS:
        _LOG.warning("%d more files or folders cannot be read", len(faults) - _MOST_WARNINGS)
    if not cells:
        where = ", ".join(map(str, given[:3])) + (", ..." if len(given) > 3 else "")
        raise ConfigError(
            f"{where}: no cell was measured here, as there is no {RESULT_FILE} or {FAILURE_FILE}; "
            "give the folder results, or one that holds it"
        )
    experiments = tuple((tree, file.parents[1]) for tree, file in tables)
    return ResultTree(tuple(_with_bases(cells, selected)), tuple(links), experiments)


def cells_below(path: Path) -> tuple[list[TreeCell], list[str]]:
    """The cells of one tree without their bases, and what is wrong with files that tell of none.

    Raises:
        ConfigError: the folder is missing or is none.
    """
    faults: list[str] = []
    folders = _folders(_folder(path), set(), faults)
    cells = [cell for folder, files in folders for cell in _cell(str(path), folder, files, faults)]
    broken = {str(cell.outcome) for cell in cells if isinstance(cell.outcome, InvalidResult)}
    return cells, [fault for fault in faults if fault not in broken]


def _paths(results: Given | Iterable[Given]) -> list[Path]:
    """The folders that were given, a file of a cell as its folder."""
    try:
        many = [results] if isinstance(results, str | os.PathLike) else list(results)
        paths = [Path(place) for place in many]
    except TypeError:
        raise ConfigError(
            f"{shown(results)} is no place of results; give a folder, or a list of folders"
        ) from None
    if not paths:
        raise ConfigError("no folder of results is given; give for example results")
    return [_folder(path) for path in paths]


def _folder(path: Path) -> Path:
    if path.name in (RESULT_FILE, FAILURE_FILE) and path.is_file():
        return path.parent
    if path.is_dir():
        return path
    problem = "is a file; give its folder" if path.is_file() else "does not exist"
    raise ConfigError(
        f"{shown(str(path))}: {problem}; give a folder of results, of a site or of one cell"
    )


def _folders(
    top: Path, seen: set[tuple[int, int]], faults: list[str]
) -> Iterator[tuple[Path, set[str]]]:
    """Each folder below ``top`` with the names of its files; none below a cell, none twice."""
    try:
        about = top.stat()
        with os.scandir(top) as entries:
            children = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        faults.append(f"{top} is left out: {file_fault(error) or error}")
        return
    if (about.st_dev, about.st_ino) in seen:
        return
    seen.add((about.st_dev, about.st_ino))
    files = {entry.name for entry in children if not _is_folder(entry)}
    yield top, files
    if RESULT_FILE in files or FAILURE_FILE in files:
        return
    for entry in children:
        below = Path(entry.path)
        if entry.name in files or entry.name.startswith(".") or (below / EXPORT_MARK).exists():
            continue
        yield from _folders(below, seen, faults)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads nowhere
        return False


def _cell(tree: str, folder: Path, files: set[str], faults: list[str]) -> list[TreeCell]:
    """The cell in a folder; none, and perhaps a fault, where nothing tells which it is."""
    if RESULT_FILE not in files and FAILURE_FILE not in files:
        return []
    placed = _placed(folder)
    try:
        if RESULT_FILE in files:
            result = _result(folder / RESULT_FILE)
            return [TreeCell(tree, result.site, Cell.from_id(result.cell_id), folder, result)]
        failure = Failure.read(folder)
        site, cell_id = placed or ("", "" if failure is None else failure.cell_id)
        return [TreeCell(tree, site, Cell.from_id(cell_id), folder, None)]
    except InvalidResult as error:
        faults.append(str(error))
        if placed is not None:
            with suppress(ConfigError):
                return [TreeCell(tree, placed[0], Cell.from_id(placed[1]), folder, error)]
    except (ConfigError, UnreadableJson) as error:
        faults.append(f"{folder} is left out: {error}")
    return []


def _result(path: Path) -> Result:
    """The result of a file, whose folder may have been moved or copied.

    Raises:
        InvalidResult: it cannot be read.
        ConfigError: its site could be no folder.
    """
    result = complete(read_result(path), path)
    if not re.fullmatch(str(FOLDER_NAME["pattern"]), result.site):
        raise ConfigError(f"{shown(result.site)} is no name of a site")
    return result


def _placed(folder: Path) -> tuple[str, str] | None:
    """Site and id of a cell as the path says; None where a cell's folder was copied elsewhere."""
    parts = Path(os.path.abspath(folder)).parts  # noqa: PTH100 - names of links are kept
    if len(parts) < _PARTS_OF_ID + 2 or parts[-_PARTS_OF_ID - 1] != "cells":
        return None
    return parts[-_PARTS_OF_ID - 2], "/".join(parts[-_PARTS_OF_ID:])


_Selections = dict[tuple[str, str, str], list[tuple[str, str]]]


def _selections(tables: Iterable[tuple[str, Path]], faults: list[str]) -> _Selections:
    """Experiments of each cell (tree, site, id), each with the base that it has there."""
    selections: _Selections = {}
    for tree, path in tables:
        try:
            with path.open(encoding="utf-8", newline="") as file:
                columns = read_columns(file, _SELECTING)
        except (OSError, ValueError, csv.Error) as error:
            faults.append(f"{path} is left out: {error}")
            continue
        rows = zip(*(columns[column.name] for column in _SELECTING), strict=True)
        for site, experiment, cell_id, base_id in rows:
            selections.setdefault((tree, site, cell_id), []).append((experiment, base_id))
    return selections


def _with_bases(cells: list[TreeCell], selected: _Selections) -> Iterator[TreeCell]:
    """The cells, each with its experiments and its base.

    The base is that of the experiments, if they agree. Else it is the cell of one device of the
    same data, network and settings; where there is none, the only one that differs in nothing but
    how long it was measured.
    """
    bases = {
        (tree_cell.tree, tree_cell.site, tree_cell.cell.id)
        for tree_cell in cells
        if tree_cell.cell.strategy == BASE
    }
    alike: dict[tuple[str, str, Cell], set[str]] = {}
    for tree_cell in cells:
        if tree_cell.cell.strategy == BASE:
            key = (tree_cell.tree, tree_cell.site, _of_any_length(tree_cell.cell))
            alike.setdefault(key, set()).add(tree_cell.cell.id)
    for tree_cell in cells:
        named = selected.get((tree_cell.tree, tree_cell.site, tree_cell.cell.id), ())
        candidates = {base for _, base in named if (tree_cell.tree, tree_cell.site, base) in bases}
        base = tree_cell.cell.with_(
            strategy=BASE, options=(), nodes=1, devices_per_node=1, fabric="default"
        )
        if len(candidates) != 1:
            candidates = {base.id} if (tree_cell.tree, tree_cell.site, base.id) in bases else set()
        if len(candidates) != 1:
            candidates = alike.get((tree_cell.tree, tree_cell.site, _of_any_length(base)), set())
        yield replace(
            tree_cell,
            base_id=next(iter(candidates)) if len(candidates) == 1 else None,
            experiments=tuple(dict.fromkeys(name for name, _ in named)),
        )


def _of_any_length(cell: Cell) -> Cell:
    return cell.with_(epochs=1, warmup_steps=1, max_steps=None)


def _condition(result: Result | None) -> LinkCondition | None:
    """The links that a result says were emulated; None without, or of another version."""
    if result is None or result.link is None:
        return None
    setting = dict(result.link.setting)
    try:
        if setting.get("inside") is not None:
            setting["inside"] = LinkCondition(**{"loss": 0.0, **setting["inside"]})
        return LinkCondition(**setting)
    except (TypeError, ValueError):
        return None
