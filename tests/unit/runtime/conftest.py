"""What tests of whole cells share."""

import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def _odd_networks_are_importable(monkeypatch):
    """Here, and in the processes of a cell."""
    monkeypatch.setenv("PYTHONPATH", HERE)
    monkeypatch.setattr(sys, "path", [HERE, *sys.path])
