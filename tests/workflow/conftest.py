"""The copy of the project that a module's tests share."""

from __future__ import annotations

import pytest
from workflow_project import Workflow


@pytest.fixture(scope="module")
def workflow(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """One copy of the project for all tests of a module."""
    return Workflow(tmp_path_factory.mktemp("workflow"))
