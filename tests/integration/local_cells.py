"""Cells on this machine, from their data to their result."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import read_result
from ddlbench.experiment.site import Site, load_site
from ddlbench.runtime.staging import stage_cell
from ddlbench.runtime.supervise import run_cell


def local_site(tmp_path: Path, devices: int = 2, **changes: Any) -> Site:
    """This machine with so many devices, data below ``tmp_path``."""
    scratch = str(tmp_path / "scratch")
    return dataclasses.replace(
        load_site("local"), scratch=scratch, devices_per_node=devices, **changes
    )


def odd_cell(network: str, strategy: str, devices: int = 2, **changes: Any) -> Cell:
    """A cell of 48 images with a network of ``odd_networks``."""
    options = changes.pop("options", {})
    return Cell(
        dataset="mnist",
        network=f"odd_networks:{network}",
        strategy=strategy,
        batch_size=8,
        devices_per_node=devices,
        epochs=2,
        warmup_steps=1,
        data_scale=0.0008,
        learning_rate=0.1,
        options=tuple(options.items()),
    ).with_(**changes)


def run_one(cell: Cell, site: Site, tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """The result, as it was returned and as its file has it, and the cell's folder."""
    folder = tmp_path / "cells" / cell.id
    result = run_cell(cell, site, folder, stage_cell(cell, site, tmp_path))
    assert read_result(folder / "result.json") == result
    return result.to_dict(), folder


def sequential_loss(cell: Cell) -> dict[str, Any]:
    """Losses of the same cell on one device; measured once for all strategies."""
    alone = {"strategy": "sequential", "nodes": 1, "devices_per_node": 1, "fabric": "default"}
    return dict(_loss(cell.with_(**alone, options=(), loader_workers=0)))


@cache
def _loss(cell: Cell) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result, _ = run_one(cell, local_site(Path(folder), 1), Path(folder))
    assert result["status"] == "ok", result["reason"]
    return result["loss"]


def running(word: str = "-m ddlbench") -> list[psutil.Process]:
    """Processes under this one whose command has a word."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if word in " ".join(process.cmdline()):
                found.append(process)
    return found
