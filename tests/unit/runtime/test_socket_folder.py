"""Sockets of helper processes where TMPDIR is too long for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ddlbench
from ddlbench.experiment.status import Status
from ddlbench.runtime.environment import LONGEST_TMPDIR
from ddlbench.runtime.rank_report import classify

_PROGRAM = """
import multiprocessing, sys, tempfile
from multiprocessing import util
from ddlbench.runtime.environment import use_short_socket_folder

if __name__ == "__main__":
    use_short_socket_folder()
    process = multiprocessing.get_context("forkserver").Process(target=print, args=("ran",))
    process.start()
    process.join()
    print(util.get_temp_dir(), tempfile.gettempdir(), sep="\\n")
"""


@pytest.mark.parametrize("longer", [-40, 0, 1, 40])
def test_helper_processes_start_below_any_tmpdir(longer: int, tmp_path: Path) -> None:
    room = LONGEST_TMPDIR + longer - len(os.fsencode(tmp_path)) - 1
    folder = tmp_path / ("x" * max(room, 1))
    folder.mkdir()
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    sources = str(Path(ddlbench.__file__).parents[1])
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": sources}
    command = [sys.executable, str(program)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    ran, sockets, temporary = ended.stdout.splitlines()
    assert ran == "ran"
    assert temporary == str(folder)  # other files stay where the user wants them
    assert not Path(sockets).exists()
    assert list(folder.iterdir()) == []


def test_a_socket_that_does_not_fit_all_the_same_names_tmpdir() -> None:
    status, reason = classify(OSError("AF_UNIX path too long"))
    assert status == Status.FAILED
    assert "TMPDIR=/tmp" in reason
    assert "TMPDIR" not in classify(OSError("Connection refused"))[1]
