"""Environments of other people's tools, one a tool: ``python tests/toolchains/environments.py``.

``envs/toolchains/<tool>.txt`` pins a tool; its environment is ``.cache/toolchains/<tool>``. The
command makes all of them; a test makes the one that it wants, or waits until it is made. Nothing
but Python is needed, so that they can be made while the project's own environment is.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINS = ROOT / "envs/toolchains"
WITHOUT_DEPENDENCIES = "# Without dependencies"  # in a file of pins
ENVIRONMENTS = Path(os.environ.get("DDLBENCH_TOOLCHAINS", ROOT / ".cache/toolchains"))


class InstallError(Exception):
    """pip's last words about a tool."""


def programs_of(tool: str) -> Path:
    """The folder of a tool's programs; its environment is made if it is not there.

    Raises:
        InstallError: the package index cannot be reached, or does not have the tool.
    """
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    environment = ENVIRONMENTS / tool
    with (ENVIRONMENTS / f"{tool}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _make(environment, PINS / f"{tool}.txt")
    return environment / "bin"


def _make(environment: Path, pins: Path) -> None:
    """Install the pins; what is written last says that the environment is whole, and of what."""
    done = environment / "installed.txt"
    # Packages of a tool are imported by the project's Python, too: it must be the same one.
    wanted = f"# Python {sys.version_info.major}.{sys.version_info.minor}\n{pins.read_text()}"
    if done.is_file() and done.read_text() == wanted:
        return
    make = [sys.executable, "-m", "venv", "--clear"]
    pip = [environment / "bin/pip"]
    if importlib.util.find_spec("pip"):  # installing pip takes longer than most tools
        make.append("--without-pip")
        pip = [sys.executable, "-m", "pip", "--python", environment / "bin/python"]
    subprocess.run([*make, environment], check=True)
    install = [*pip, "install", "--quiet", "--no-compile", "--requirement", pins]
    if WITHOUT_DEPENDENCIES in wanted:
        install.append("--no-deps")
    result = subprocess.run(install, check=False, capture_output=True, text=True)
    if result.returncode:
        raise InstallError(f"{pins.name} cannot be installed: {result.stderr.strip()[-300:]}")
    done.write_text(wanted)


def main() -> int:
    """Make all environments; the exit code."""
    failed = 0
    for pins in sorted(PINS.glob("*.txt")):
        try:
            programs_of(pins.stem)
        except InstallError as error:
            print(error, file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
