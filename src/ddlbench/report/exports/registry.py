"""The registry of formats that ``ddlbench report export`` writes.

A format is a module of this folder and a line of the table. Another package adds one by an entry
point of the group ``ddlbench.exports``: an :class:`ExportFormat`. Formats that write a folder write
it by :func:`whole_folder`, the others ask :func:`check_file` before they replace a file.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlbench import __version__
from ddlbench.common.entry_points import Registry, described, load_target, within
from ddlbench.common.errors import ConfigError, shown
from ddlbench.report.result_tree import EXPORT_MARK

if TYPE_CHECKING:
    from ddlbench.report.tree_tables import TreeTables

FOLDER = Path("exports")
"""Where exports lie by default; beside the results, as what lies in them is read."""


@dataclass(frozen=True)
class Study:
    """What an export says of the results beside their numbers.

    Args:
        author: name of who publishes them, with an address in angle brackets if there is one.
        licence: of the results, an identifier of SPDX.
        configs: files of the experiments; empty lets the format look for them.
    """

    author: str
    licence: str
    configs: tuple[Path, ...] = ()


Write = Callable[["TreeTables", Path, Study], str]
"""Writes the tables to a path, whole or not at all, and returns a command that opens it."""


@dataclass(frozen=True)
class ExportFormat:
    """One format.

    Args:
        write: a :data:`Write`, or ``module:function`` of one.
        holds: what is in it, for the help.
        out: name of its file or folder.
        imports: the module that it needs beside ddlbench's own; empty without one.
        package: what to install for that.
    """

    write: str | Write
    holds: str
    out: str
    imports: str = ""
    package: str = ""

    def check(self, name: str) -> None:
        """Refuse a format whose package is missing.

        Raises:
            ConfigError: with the command that installs it.
        """
        if self.imports and importlib.util.find_spec(self.imports) is None:
            package = self.package or self.imports
            raise ConfigError(
                f"format {name} needs the package {package}: python -m pip install {package}"
            )

    def written(self, name: str, tables: TreeTables, place: Path, study: Study) -> str:
        """Write the tables; returns a command that opens them.

        Raises:
            ConfigError: the tables cannot be written so, or code of another package has a fault.
        """
        with within(EXPORTS.group, name):
            write = self.write if callable(self.write) else load_target(name, self.write)
            opens = write(tables, place, study)
        if not isinstance(opens, str):
            raise ConfigError(
                f"{described(EXPORTS.group, name)} returns {shown(opens)}; return a command that "
                "opens what was written"
            )
        return opens


def _of_package(name: str, target: str) -> ExportFormat:
    entry: Any = load_target(name, target)
    if not isinstance(entry, ExportFormat):
        raise ConfigError(f"export {name} ({target}) is no ExportFormat; make it one")
    return entry


_HERE = "ddlbench.report.exports"
EXPORTS: Registry[ExportFormat] = Registry(
    "ddlbench.exports",
    {
        "parquet": ExportFormat(
            f"{_HERE}.parquet:write", "cells.parquet, steps.parquet", "parquet", "pyarrow"
        ),
        "duckdb": ExportFormat(
            f"{_HERE}.duckdb:write", "tables cells, steps, ranks, links", "results.duckdb", "duckdb"
        ),
        "mlflow": ExportFormat(
            f"{_HERE}.mlflow:write", "a run per cell", "mlruns", "mlflow", "mlflow-skinny"
        ),
        "openmetrics": ExportFormat(
            f"{_HERE}.openmetrics:write", "a gauge a number, for Prometheus", "ddlbench.prom"
        ),
        "ro-crate": ExportFormat(
            f"{_HERE}.ro_crate:write", "a Workflow Run Crate of the study", "ro-crate"
        ),
    },
    _of_package,
)


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """Give an empty folder that takes the place of ``out`` when the block ends.

    If the block raises, ``out`` is unchanged.

    Raises:
        ConfigError: what lies there was not written by an export.
    """
    out = out.resolve()
    check_ours(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.{os.uname().nodename}.{os.getpid()}")
    earlier = beside.with_name(f"{beside.name}.earlier")
    shutil.rmtree(beside, ignore_errors=True)  # of a process that was killed
    try:
        beside.mkdir()
        yield beside
        (beside / EXPORT_MARK).write_text(f"ddlbench {__version__}\n", encoding="utf-8")
        if out.exists():
            out.rename(earlier)
        beside.rename(out)
    except BaseException:
        if earlier.exists() and not out.exists():
            earlier.rename(out)
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(earlier, ignore_errors=True)


def check_ours(out: Path) -> None:
    """Refuse to replace what others put there.

    Raises:
        ConfigError: it is a file, or a folder with content that no export wrote.
    """
    if not out.exists() or (out / EXPORT_MARK).is_file():
        return
    if not out.is_dir():
        raise ConfigError(f"{out} is a file; name a folder with --out")
    if next(out.iterdir(), None) is not None:
        raise ConfigError(
            f"{out} holds files that no export of ddlbench wrote; name another folder with --out"
        )


def check_file(out: Path, is_export: Callable[[Path], bool]) -> None:
    """Refuse to replace a file that others wrote; an empty file holds nothing to lose.

    Args:
        out: the file to write.
        is_export: whether a file is an earlier export of the same format.

    Raises:
        ConfigError: it is a folder, or a file that no export wrote.
    """
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; name a file with --out")
    if not out.exists() or not out.stat().st_size or is_export(out):
        return
    raise ConfigError(
        f"{out} is a file that no export of ddlbench in this format wrote; "
        "name another one with --out"
    )
