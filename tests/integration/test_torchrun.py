"""Cells whose processes torchrun starts: what they train, and how they end."""

from __future__ import annotations

import os
import signal
from threading import Thread

import psutil
import pytest
from local_cells import (
    PARAMETER_SERVER,
    local_site,
    odd_cell,
    run_one,
    running,
    running_ranks,
)

from ddlbench.common.errors import ConfigError
from ddlbench.runtime.addresses import rendezvous_address
from ddlbench.runtime.supervise import CellFailed

TORCHRUN = {"starter": "torchrun"}
PLAIN = odd_cell("plain", "ddp")


@pytest.mark.parametrize(
    ("cell", "known"),
    [
        pytest.param(PLAIN, PLAIN, id="ddp"),
        # Two ranks average the same gradients, whatever library adds them up.
        pytest.param(PLAIN.with_(strategy="horovod"), PLAIN, id="horovod"),
        pytest.param(
            *(PARAMETER_SERVER, PARAMETER_SERVER),
            id="parameter-server",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_it_trains_what_other_starters_train(cell, known, tmp_path, shared_cells):
    actual, _ = run_one(cell, local_site(tmp_path, cell.devices, **TORCHRUN), tmp_path)
    assert actual["status"] == "ok", actual["reason"]
    expected = shared_cells.run(known).result
    assert actual["processes"] == expected["processes"]
    assert actual["loss"]["first"] == pytest.approx(expected["loss"]["first"], rel=1e-6)
    if cell.strategy != "parameter-server":  # whose workers update in any order
        assert actual["loss"] == pytest.approx(expected["loss"], rel=1e-6)
    environment = actual["provenance"]["environment"]
    assert "TORCHELASTIC_RUN_ID" in environment
    assert "TORCHELASTIC_RUN_ID" not in expected["provenance"]["environment"]


def test_a_killed_rank_ends_all_others_and_is_a_failure(tmp_path):
    class Killer(Thread):
        """Kills rank 1 as soon as it trains, and notes every process of the cell."""

        seen: set[psutil.Process] = set()  # noqa: RUF012

        def run(self) -> None:
            while len(ranks := running_ranks()) < 2:
                self.seen.update(running())
            self.seen.update(running())
            os.kill(ranks[1].pid, signal.SIGKILL)

    killer = Killer(daemon=True)
    killer.start()
    cell = odd_cell("plain", "ddp", epochs=2000)
    with pytest.raises(CellFailed, match="rank 1: killed by signal 9"):
        run_one(cell, local_site(tmp_path, **TORCHRUN), tmp_path)
    killer.join()
    _, alive = psutil.wait_procs(killer.seen, timeout=10)
    assert not alive


SRUN = """#!/usr/bin/env python3
import os, subprocess, sys
words = sys.argv[1:]
options = {}
while words[0].startswith("--"):
    name, _, value = words.pop(0).partition("=")
    options[name] = value
each = int(options["--ntasks-per-node"])
running = []
for rank in range(int(options["--ntasks"])):
    place = {"SLURM_NODEID": rank // each, "SLURM_LOCALID": rank % each, "SLURM_PROCID": rank}
    environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
    running.append(subprocess.Popen(words, env=environment))
sys.exit(max(process.wait() for process in running))
"""


def test_one_torchrun_on_each_node_meet(tmp_path, monkeypatch, shared_cells):
    """Real torchruns over real sockets; an srun that starts its tasks on this machine."""
    program = tmp_path / "bin/srun"
    program.parent.mkdir()
    program.write_text(SRUN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    site = local_site(tmp_path, 1, launcher="slurm", nodes=2, **TORCHRUN)
    try:
        rendezvous_address(site, 2)
    except ConfigError as error:
        pytest.skip(str(error))
    cell = PLAIN.with_(nodes=2, devices_per_node=1)
    actual, _ = run_one(cell, site, tmp_path)
    assert actual["status"] == "ok", actual["reason"]
    known = shared_cells.run(PLAIN).result
    assert actual["loss"] == pytest.approx(known["loss"], rel=1e-6)
    assert actual["processes"] == 2
