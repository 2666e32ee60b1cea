"""Networks of timm and transformers are cut into the blocks that the unit tests say."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = "tests/unit/networks/test_networks_whole.py"


def test_with_the_libraries_installed_no_test_of_them_is_skipped(
    tool: Callable[[str], Path],
) -> None:
    (packages,) = (tool("library-networks").parent / "lib").glob("python*/site-packages")
    paths = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", TESTS, "-k", "to_be_installed or language_models"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert "skipped" not in run.stdout.splitlines()[-1]
