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
_NEXT_DAY_S = 20.0


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

    So limits count from there, however long the ranks took to start. A line that a rank wrote just
    before may be read after the day, and counts as progress: so another day goes by from time to
    time, with enough between them for ranks to write their stacks.
    """
    hanging = tmp_path / "hanging"
    hanging.mkdir()
    monkeypatch.setenv("ODD_HANGING", str(hanging))
    hang_at_s: list[float] = []

    def install(ranks: int) -> None:
        def monotonic() -> float:
            now_s = time.monotonic()
            if not hang_at_s and len(list(hanging.iterdir())) >= ranks:
                hang_at_s.append(now_s)
            days = 1 + (now_s - hang_at_s[0]) // _NEXT_DAY_S if hang_at_s else 0
            return now_s + LONG_S * days

        monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=monotonic))

    return install
