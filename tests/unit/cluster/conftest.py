"""A SLURM that answers as a test says, and the executor on made-up jobs."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest
import snakemake_executor_plugin_slurm as plugin
from made_up_jobs import BEGAN_S, Logger, Scheduler

from ddlbench.cluster import executor as module
from ddlbench.cluster.executor import SlurmExecutor
from ddlbench.common.owner import RUN


@pytest.fixture
def cell_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(RUN, f"{BEGAN_S * 10**9}-run")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    folder = tmp_path / "results"
    folder.mkdir()
    return folder


@pytest.fixture
def slurm(monkeypatch):
    """States that SLURM gives to jobs, and the commands that were sent to it."""
    slurm = SimpleNamespace(jobs={}, commands=[])
    monkeypatch.setattr(module.slurm, "states", lambda ids: {job: slurm.jobs[job] for job in ids})
    monkeypatch.setattr(module, "ask", lambda command: slurm.commands.append(command) or "")
    return slurm


@pytest.fixture
def executor(tmp_path, cell_folder, slurm, monkeypatch):
    """An executor without the thread that looks at jobs: a test looks itself."""
    monkeypatch.setattr(plugin.Executor, "__init__", lambda *_: None)
    executor = SlurmExecutor(None, None)
    executor.workflow = SimpleNamespace(
        scheduler=Scheduler(),
        executor_settings=SimpleNamespace(
            init_seconds_before_status_checks=0, pass_command_as_script=False
        ),
        remote_execution_settings=SimpleNamespace(seconds_between_status_checks=0),
        execution_settings=SimpleNamespace(latency_wait=3600),
        workdir_init=str(tmp_path),
    )
    executor.logger = Logger()
    executor.active_jobs, executor.lock, executor.wait = [], threading.Lock(), True
    executor.slurm_logdir, executor.run_uuid = tmp_path / "logs", "run"
    executor._failed_nodes, executor._submitted_job_clusters = set(), set()
    executor._main_event_loop, executor._partitions = None, None
    return executor


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """An sbatch that runs a script; the plugin's long command line is left out."""
    monkeypatch.setattr(plugin, "get_job_wildcards", lambda _job: "")
    monkeypatch.setattr(plugin, "get_submit_command", lambda *_, **__: "sbatch")
    monkeypatch.setattr(plugin, "set_gres_string", lambda _job: "")
    monkeypatch.setattr(SlurmExecutor, "format_job_exec", lambda *_: "true")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(script: str) -> None:
        program = tmp_path / "sbatch"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return write
