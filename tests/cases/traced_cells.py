"""Real cells on this machine whose recorded steps other people's tools read."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from local_cells import DDP, local_site, run_one

from ddlbench.experiment.cell import Cell

PIPELINE = DDP.with_(strategy="pipe-1f1b", network="vgg11", max_steps=6)
VALIDATED = DDP.with_(network="mlp", max_steps=None, validate=True)
_roots: list[TemporaryDirectory[str]] = []  # removed when the process ends


@cache
def folder_of(cell: Cell) -> Path:
    """The folder of a cell, which runs once a process."""
    _roots.append(TemporaryDirectory(prefix="traced-cell-"))
    root = Path(_roots[-1].name)
    result, folder = run_one(cell, local_site(root, cell.devices), root)
    assert result["status"] == "ok", result["reason"]
    return folder
