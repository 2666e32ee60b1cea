"""Other people's tools, each in an environment of its name: what we write, they read.

Where the package index cannot be reached, the tests of a tool are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from environments import InstallError, programs_of


@pytest.fixture(scope="session")
def tool() -> Callable[[str], Path]:
    """Give the folder of a tool's programs, which holds its ``python``, too."""

    def folder(name: str) -> Path:
        try:
            return programs_of(name)
        except InstallError as error:
            pytest.skip(str(error))

    return folder
