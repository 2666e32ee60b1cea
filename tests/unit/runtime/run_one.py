"""One cell on this machine, from its data to its result."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import read_result
from ddlbench.experiment.site import Site, load_site
from ddlbench.runtime.staging import stage_cell
from ddlbench.runtime.supervise import run_cell


def local_site(tmp_path: Path, devices: int) -> Site:
    """This machine with so many devices, data below ``tmp_path``."""
    site = load_site("local")
    return dataclasses.replace(site, scratch=str(tmp_path / "scratch"), devices_per_node=devices)


def run_one(cell: Cell, site: Site, tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """The result, as it was returned and as its file has it, and the cell's folder."""
    folder = tmp_path / "cells" / cell.id
    result = run_cell(cell, site, folder, stage_cell(cell, site, tmp_path))
    assert read_result(folder / "result.json") == result
    return result, folder
