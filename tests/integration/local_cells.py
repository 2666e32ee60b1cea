"""Cells on this machine, from their data to their result."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from once import once

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


# Cells that several tests read.
SEQUENTIAL = odd_cell("plain", "sequential", devices=1)
GPIPE = odd_cell("plain", "gpipe", options={"balance": "blocks", "chunks": 2}, loader_workers=1)
FSDP = odd_cell("plain", "fsdp")
LOCAL_SGD = odd_cell("plain", "local-sgd", options={"average_every_steps": 3})
PIPEDREAM = odd_cell("plain", "pipedream", devices=4).with_(
    network="mlp", batch_size=4, max_steps=8, warmup_steps=3
)
PARAMETER_SERVER = Cell(
    dataset="mnist",
    network="mlp",
    strategy="parameter-server",
    batch_size=12,
    devices_per_node=4,
    epochs=2,
    warmup_steps=3,
    data_scale=0.002,  # 120 images
    options=(("servers", 2),),
)
# A network whose gradients fill several buckets.
DDP = odd_cell("plain", "ddp").with_(
    network="resnet18", epochs=1, max_steps=3, data_scale=0.001, learning_rate=0.01
)
HOROVOD = DDP.with_(strategy="horovod")


def run_one(cell: Cell, site: Site, tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """The result, as it was returned and as its file has it, and the cell's folder."""
    folder = tmp_path / "cells" / cell.id
    result = run_cell(cell, site, folder, stage_cell(cell, site, tmp_path))
    assert read_result(folder / "result.json") == result
    return result.to_dict(), folder


@dataclasses.dataclass(frozen=True)
class CellRun:
    """A cell that was run once; tests read of it what they are about, and change nothing.

    Args:
        cell: that trained.
        root: holds ``cells/<id>``.
        listened: addresses on which its processes listened.
    """

    cell: Cell
    root: Path
    listened: frozenset[str]

    @property
    def folder(self) -> Path:
        return self.root / "cells" / self.cell.id

    @property
    def result(self) -> dict[str, Any]:
        return read_result(self.folder / "result.json").to_dict()


class SharedCells:
    """Cells that several tests read; each runs once a test run.

    Args:
        folder: of all processes of the test run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, cell: Cell) -> CellRun:
        """The run of a cell on as many devices as it has; it must have ended well."""
        name = hashlib.sha256(cell.id.encode()).hexdigest()[:16]
        root = once(self._folder / name, partial(_run_watched, cell))
        run = CellRun(cell, root, frozenset(json.loads((root / "listened.json").read_text())))
        assert run.result["status"] == "ok", run.result["reason"]
        return run

    def sequential_loss(self, cell: Cell) -> dict[str, Any]:
        """Losses of the same cell on one device."""
        alone = {"strategy": "sequential", "nodes": 1, "devices_per_node": 1, "fabric": "default"}
        loss: dict[str, Any] = self.run(cell.with_(**alone, options=(), loader_workers=0)).result[
            "loss"
        ]
        return loss


def _run_watched(cell: Cell, root: Path) -> None:
    listeners = Listeners()
    listeners.start()
    try:
        run_one(cell, local_site(root, cell.devices), root)
    finally:
        listeners.ended.set()
        listeners.join()
    (root / "listened.json").write_text(json.dumps(sorted(listeners.addresses)))


class Listeners(threading.Thread):
    """Addresses on which processes under this one listen, until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.addresses: set[str] = set()
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.1):
            for process in running():
                try:
                    connections = process.net_connections("inet")
                except psutil.Error:
                    continue
                self.addresses |= {
                    c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN
                }


def running_ranks() -> dict[int, psutil.Process]:
    """Rank -> its process, of the cells under this process."""
    ranks = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            name, _, rank = process.name().partition("-")
            if name == "rank" and process.status() != psutil.STATUS_ZOMBIE:
                ranks[int(rank)] = process
    return ranks


def running(word: str = "-m ddlbench") -> list[psutil.Process]:
    """Processes under this one whose command has a word."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if word in " ".join(process.cmdline()):
                processes.append(process)
    return processes
