"""Formats in which a cell is written for other people's tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ddlbench.common.document import whole_file
from ddlbench.common.errors import ConfigError, obstacle
from ddlbench.report.traces.chakra import chakra_files
from ddlbench.report.traces.kineto_cell import kineto_files
from ddlbench.report.traces.mllog import mllog_files

FORMATS: dict[str, Callable[[Path], dict[str, bytes]]] = {
    "kineto": kineto_files,
    "chakra": chakra_files,
    "mllog": mllog_files,
}


def write_cell(folder: Path, name: str, out: Path) -> list[Path]:
    """Write the cell in ``folder`` into the folder ``out``; give the files.

    The tools take all files of a folder for one run, so that it must hold no others.

    Raises:
        ConfigError: no format has that name, the folder is no cell's, it lacks what is written, or
            ``out`` holds other files.
    """
    if name not in FORMATS:
        raise ConfigError(f"--write {name}: no such format; write one of {', '.join(FORMATS)}")
    files = FORMATS[name](folder)
    in_the_way = obstacle(out)
    if in_the_way is None and out.is_file():
        in_the_way = f"{out} is a file; name a folder"
    if in_the_way is not None:
        raise ConfigError(f"--write {name}: {in_the_way}")
    others = [path.name for path in out.iterdir() if path.name not in files] if out.is_dir() else []
    if others:
        raise ConfigError(
            f"--write {name} {out}: the folder holds {min(others)}, which is not of this cell's "
            f"{name}; name an empty or a new folder"
        )
    for file, content in files.items():
        with whole_file(out / file) as beside:
            beside.write_bytes(content)
    return [out / file for file in files]
