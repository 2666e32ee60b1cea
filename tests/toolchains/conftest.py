"""Other people's tools, each in an environment of its name: what we write, they read.

``envs/toolchains/<tool>.txt`` pins a tool. Its environment is made when a test first wants it, in
``.cache/toolchains/<tool>``; where the package index cannot be reached, the test is skipped.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = Path(os.environ.get("DDLBENCH_TOOLCHAINS", ROOT / ".cache/toolchains"))


def _make(environment: Path, pins: Path) -> None:
    """Install the pins; the copy of the pins beside them says that the environment is whole."""
    done = environment / "pins.txt"
    if done.is_file() and done.read_bytes() == pins.read_bytes():
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
    install = [environment / "bin/pip", "install", "--quiet", "--requirement", pins]
    result = subprocess.run(install, check=False, capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"{pins.name} cannot be installed: {result.stderr.strip()[-300:]}")
    done.write_bytes(pins.read_bytes())


@pytest.fixture(scope="session")
def tool() -> Callable[[str], Path]:
    """Give the folder of a tool's programs, which holds its ``python``, too."""

    def folder(name: str) -> Path:
        pins = ROOT / "envs/toolchains" / f"{name}.txt"
        ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
        with (ENVIRONMENTS / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _make(ENVIRONMENTS / name, pins)
        return ENVIRONMENTS / name / "bin"

    return folder
