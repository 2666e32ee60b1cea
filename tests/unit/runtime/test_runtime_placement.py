"""Which process this is and which devices it drives; without a GPU, by a made-up torch.cuda."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import ddlbench
from ddlbench.planning.plan import Process
from ddlbench.runtime.launch import (
    Step,
    for_srun,
    gpu_models,
    identity_variables,
    own_devices,
    own_process,
    worker_environment,
)


def process(*devices: int) -> Process:
    return Process(rank=0, role="worker", node=0, local_rank=0, devices=devices)


@pytest.fixture
def node(monkeypatch):
    """A node of so many GPUs; gives what was made the current one."""
    current: list[torch.device] = []

    def of(visible: int) -> list[torch.device]:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
        monkeypatch.setattr(torch.cuda, "set_device", current.append)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"model {device.index}")
        return current

    return of


@pytest.mark.parametrize(
    ("visible", "planned", "indices"),
    [(4, (2,), (2,)), (1, (2,), (0,)), (4, (2, 3), (2, 3)), (2, (2, 3), (0, 1))],
)
def test_the_first_own_gpu_is_the_current_one(visible, planned, indices, node):
    current = node(visible)
    devices = own_devices("cuda", process(*planned))
    assert devices == tuple(torch.device("cuda", index) for index in indices)
    assert current == [devices[0]]
    assert gpu_models(devices) == [f"model {index}" for index in indices]


@pytest.mark.parametrize(("visible", "sentence"), [(0, "finds no GPU"), (2, "needs GPU 3")])
def test_a_gpu_that_is_not_there_is_an_error(visible, sentence, node):
    current = node(visible)
    with pytest.raises(RuntimeError, match=sentence):
        own_devices("cuda", process(3))
    assert current == []


def test_ranks_that_share_a_gpu_are_nodes_of_their_own_to_nccl(node, monkeypatch):
    monkeypatch.setattr(os, "environ", {"DDLBENCH_SHARED_GPU": "1"})
    node(1)
    sharing = Process(rank=3, role="worker", node=0, local_rank=3, devices=(2, 3))
    assert own_devices("cuda", sharing) == (torch.device("cuda", 0),) * 2
    assert os.environ["NCCL_HOSTID"] == "rank3"
    assert os.environ["NCCL_NET"] == "Socket"


def test_cpu_devices_have_no_model_of_a_gpu(node):
    assert node(0) == []
    devices = own_devices("cpu", process(0, 1))
    assert devices == (torch.device("cpu"), torch.device("cpu"))
    assert gpu_models(devices) == []


@pytest.mark.parametrize(
    "variables", [{"SLURM_NODEID": "1", "SLURM_LOCALID": "0"}, None], ids=["srun", "launched here"]
)
def test_a_process_knows_its_place(variables, monkeypatch):
    processes = [Process(rank, "worker", rank // 2, rank % 2, (rank % 2,)) for rank in range(4)]
    if variables is None:  # inside a job the variables of its own step must not count
        monkeypatch.setenv("SLURM_NODEID", "0")
        variables = identity_variables(processes[2])
    else:
        for name in identity_variables(processes[0]):
            monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert own_process(processes) is processes[2]


def test_one_module_reads_who_a_process_is():
    readers = {
        path.name
        for path in Path(ddlbench.__file__).parent.rglob("*.py")
        if any(
            name in path.read_text("utf-8")
            for name in ("SLURM_NODEID", "SLURM_LOCALID", "DDLBENCH_NODE", "DDLBENCH_LOCAL_RANK")
        )
    }
    assert readers == {"launch.py"}


def test_options_of_the_batch_script_do_not_reach_the_steps_of_a_job():
    kept = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_TMPDIR", "PATH")
    dropped = ("SLURM_TRES_PER_TASK", "SRUN_CPUS_PER_TASK")
    assert for_srun(dict.fromkeys((*kept, *dropped), "1")) == dict.fromkeys(kept, "1")


def test_ranks_without_a_step_have_all_variables_of_the_job(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ACCOUNT", "physics")  # scratch: /scratch/$SLURM_JOB_ACCOUNT
    environment = worker_environment(Step(("true",), [], 1, 1, threads=1, interface=None))
    assert environment["SLURM_JOB_ACCOUNT"] == "physics"
