"""What tests of whole cells share."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from local_cells import SharedCells
from once import shared_folder

from ddlbench.runtime import watchdog

HERE = str(Path(__file__).parent)
LONG_S = 1e5  # later than every limit that a test does not set


@pytest.fixture(autouse=True)
def _odd_networks_are_importable(monkeypatch):
    """Here, and in the processes of a cell."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(sys, "path", [HERE, *sys.path])


@pytest.fixture(scope="session")
def shared_cells(tmp_path_factory) -> SharedCells:
    """Cells that run once for all tests that read them."""
    return SharedCells(shared_folder(tmp_path_factory.getbasetemp()) / "shared-cells")


@pytest.fixture
def hang_begins_limits(tmp_path, monkeypatch):
    """Call with a number of ranks: once so many hang, a day has gone by for the supervisor.

    So limits count from there, however long the ranks took to start.
    """
    hanging = tmp_path / "hanging"
    hanging.mkdir()
    monkeypatch.setenv("ODD_HANGING", str(hanging))

    def install(ranks: int) -> None:
        def monotonic() -> float:
            return time.monotonic() + (LONG_S if len(list(hanging.iterdir())) >= ranks else 0)

        monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=monotonic))

    return install
