"""The copy of the project that a module's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from workflow_project import Workflow


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workflow]:
    """One copy of the project for all tests of a module."""
    made = Workflow(tmp_path_factory.mktemp("workflow"))
    yield made
    made.end()
