"""What tests of whole cells share."""

import os
import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def _odd_networks_are_importable(monkeypatch):
    """Here, and in the processes of a cell."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(sys, "path", [HERE, *sys.path])
