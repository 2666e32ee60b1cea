"""How torchrun is called, here and over the nodes of a job, and who its processes are."""

from __future__ import annotations

import dataclasses
import os
import time
from contextlib import closing

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import Container, load_site
from ddlbench.planning.planner import make_plan
from ddlbench.runtime.addresses import listen
from ddlbench.runtime.launch import Step, own_process, python_command
from ddlbench.runtime.torchrun import TorchrunLaunch, torchrun_options

EXAMPLE = load_site("slurm-example", as_example=True)
SITE = dataclasses.replace(EXAMPLE, starter="torchrun", scratch="/tmp/nowhere")
CELL = Cell("mnist", "resnet18", "ddp", batch_size=16, nodes=2, devices_per_node=4)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Programs that note their words and run nothing."""
    noted = tmp_path / "words"
    for name in ("srun", "apptainer"):
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@" > {noted}\n')
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def words(site, cell=CELL) -> list[str]:
        plan = make_plan(cell, "slurm-example")
        command = python_command(site, "-m", "some.module", "job.json")
        shape = (cell.nodes, cell.devices_per_node)
        step = Step(tuple(command), plan.processes, *shape, threads=1, interface=None)
        with closing(listen("127.0.0.1")) as listener:
            running = TorchrunLaunch(step, site, listener)
        try:
            list(running.lines(time.monotonic() + 30))
        finally:
            running.stop()
        return noted.read_text().splitlines()

    return words


def test_a_job_has_one_torchrun_on_each_node_with_the_cores_of_all_its_devices(program):
    words = program(SITE)
    # By hand: 4 devices a node, 6 cores each.
    assert words[:4] == ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"]
    assert words[4] == "--cpus-per-task=24"
    at = words.index("ddlbench.runtime.torchrun")
    assert words[at + 1] == "4,4"
    assert words[at + 2].startswith("127.0.0.1:")
    assert words[at + 4 :] == ["-m", "some.module", "job.json"]


def test_torchrun_runs_inside_the_container(program):
    boxed = dataclasses.replace(SITE, launcher="local", container=Container(image="/a.sif"))
    words = program(boxed, CELL.with_(nodes=1))
    assert words[:4] == ["apptainer", "exec", "--nv", "/a.sif"]
    assert words[4:7] == ["python3", "-m", "ddlbench.runtime.torchrun"]
    assert words[-3:] == ["-m", "some.module", "job.json"]


def test_options():
    options = torchrun_options(1, [4, 3], "node7:2950", "abc")
    assert {"--nnodes=2", "--nproc-per-node=3", "--rdzv-backend=c10d"} <= set(options)
    assert {"--rdzv-endpoint=node7:2950", "--rdzv-conf=is_host=false"} <= set(options)
    assert "--rdzv-conf=is_host=true" in torchrun_options(0, [4, 3], "node7:2950", "abc")


def test_a_process_is_its_node_and_local_rank(monkeypatch):
    processes = make_plan(CELL, "slurm-example").processes
    # c10d may count nodes in another order: RANK 2 need not be the plan's rank 2.
    actual = {"TORCHELASTIC_RUN_ID": "a", "RANK": "2", "LOCAL_RANK": "2", "WORLD_SIZE": "8"}
    for name, value in {**actual, "SLURM_NODEID": "1", "SLURM_LOCALID": "0"}.items():
        monkeypatch.setenv(name, value)
    assert own_process(processes).rank == 6
    with pytest.raises(RuntimeError, match="torchrun started 8 processes, the plan has 7"):
        own_process(processes[:7])


def test_mpi_and_torchrun_are_refused(tmp_path):
    path = tmp_path / "site.yaml"
    path.write_text(
        "{device: cuda, launcher: slurm, devices_per_node: 4, starter: torchrun, "
        "slurm: {mpi: pmix}}"
    )
    with pytest.raises(ConfigError, match=r"slurm\.mpi needs ranks that srun starts"):
        load_site(str(path))
