"""Tests that are skipped without a library run here, with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("library", "tests", "chosen"),
    [
        (
            "library-networks",
            "tests/unit/networks/test_networks_whole.py",
            "to_be_installed or language_models",
        ),
        # Each starts ranks that import DeepSpeed, which takes seconds: one for each stage.
        ("deepspeed", "plugins/deepspeed/tests/integration", "adamw_trains"),
        ("deepspeed", "tests/equivalence/test_recomputation.py", "deepspeed"),
    ],
)
def test_with_a_library_installed_no_test_of_it_is_skipped(
    tool: Callable[[str], Path], library: str, tests: str, chosen: str
) -> None:
    programs = tool(library)
    (packages,) = (programs.parent / "lib").glob("python*/site-packages")
    paths = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", tests, "-k", chosen],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert "skipped" not in run.stdout.splitlines()[-1]
