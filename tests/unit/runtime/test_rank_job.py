"""The folder of a job that runs once per device: none stays behind."""

from __future__ import annotations

import os
import time

import pytest

from ddlbench.experiment.site import load_site
from ddlbench.runtime.fabric import Rendezvous
from ddlbench.runtime.rank_job import run_rank_job


class Interrupted:
    """A network on which no job starts, as Ctrl-C comes first."""

    def rendezvous(self):
        return Rendezvous("127.0.0.1", 1, None)

    def launch(self, step, rendezvous):
        raise KeyboardInterrupt


def test_a_job_removes_its_folder_and_those_of_killed_jobs(tmp_path):
    killed, running = tmp_path / ".run-1", tmp_path / ".run-2"
    for folder in (killed, running):
        folder.mkdir()
    long_ago = time.time() - 1e6
    os.utime(killed, (long_ago, long_ago))
    with pytest.raises(KeyboardInterrupt):
        run_rank_job(load_site("local"), (1, 1), "any", {}, tmp_path, fabric=Interrupted())
    assert list(tmp_path.iterdir()) == [running]
