"""The small job of `ddlbench doctor`, submitted and started like the job of a cell.

::

    login node   sbatch: nodes, devices, cores, memory, extra options    planning/resources.py
    first node     '-> this module: srun, one task a node                runtime/launch.py
    every node           '-> set-up commands, container, node_check
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddlbench.cluster.query import why_pending
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.json_text import read_json
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.site import Site, load_site
from ddlbench.planning.resources import job_minutes, request
from ddlbench.runtime import slurm_job
from ddlbench.runtime.launch import python_command, srun_command

_JOB_MINUTES = 10
_POLL_S = 2.0
_OUTPUT = "job.txt"
# Lines that srun adds after a task has failed; the reason precedes them.
_AFTERMATH = re.compile(r"srun: (error: .*: tasks? |Terminating|Force Terminated|launch/slurm)")


def ask_nodes(
    site: Site, site_name: str, nodes: int, patience_s: float, say: Callable[[str], None]
) -> tuple[list[dict[str, Any]], str]:
    """Submit the job, wait for it, and gather the reports of its nodes.

    Args:
        site: to check.
        site_name: by which the nodes load the site.
        nodes: of the job.
        patience_s: longest wait for nodes; then the job is cancelled.
        say: shows sentences about the waiting job.

    Returns:
        the nodes' reports, and the reason why others are missing.
    """
    RESULTS.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".doctor-", dir=RESULTS)).resolve()
    job = ""
    try:
        submitted = subprocess.run(
            batch_command(site, site_name, nodes, folder),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if submitted.returncode != 0:
            return [], _reason(submitted.stderr)
        job = submitted.stdout.strip().split(";")[0]  # "id" or "id;cluster"
        error = _wait(job, nodes, patience_s, say)
        reports = [read_json(p) for p in sorted(folder.glob("*.done.json"))]
        output = folder / _OUTPUT
        text = output.read_text("utf-8", errors="replace") if output.is_file() else ""
        return reports, error or _reason(text)
    finally:
        if job and slurm_job.may_live(slurm_job.state(job)):
            subprocess.run(["scancel", job], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def batch_command(site: Site, site_name: str, nodes: int, folder: Path) -> list[str]:
    """The sbatch command: resources of the largest cell on ``nodes`` nodes, for a few minutes."""
    devices = site.devices_per_node
    resources = request(nodes, devices, site)
    step = [
        *(sys.executable, "-m", "ddlbench.cluster.probe_job"),
        *(site_name, str(nodes), str(folder)),
    ]
    options = {
        "job-name": "ddlbench-doctor",
        "output": folder / _OUTPUT,
        "time": min(_JOB_MINUTES, job_minutes(site)),
        "nodes": resources.nodes,
        "ntasks-per-node": devices,
        "cpus-per-task": resources.cpus_per_task,
        "mem": resources.mem_mb or None,
        "gres": resources.gres,
        "partition": resources.partition,
        "account": resources.account,
        "qos": resources.qos,
        "constraint": resources.constraint,
    }
    return [
        "sbatch",
        "--parsable",
        *(f"--{name}={value}" for name, value in options.items() if value is not None),
        *shlex.split(resources.extra),
        f"--wrap={shlex.join(step)}",
    ]


def _wait(job: str, nodes: int, patience_s: float, say: Callable[[str], None]) -> str:
    """Wait until the job has ended; returns an error if it did not start in time, else ""."""
    say(f"waiting for a job on {nodes} node(s), number {job}; `squeue --job {job}` shows it")
    begin, last_reason = time.monotonic(), ""
    while slurm_job.may_live(state := slurm_job.state(job)):
        if state in ("PENDING", slurm_job.NO_ANSWER):
            reason = why_pending(job) or "squeue does not say why"
            if reason != last_reason:
                say(f"it waits: {reason}; `squeue --start --job {job}` shows its start time")
                last_reason = reason
            if time.monotonic() - begin > patience_s:
                return (
                    f"job {job} did not start within {patience_s / 60:g} min ({reason}) and is "
                    "cancelled; `sinfo` shows what is free, --wait-minutes waits longer"
                )
        time.sleep(_POLL_S)
    return ""


def _reason(text: str) -> str:
    """The last line of an output that gives a reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line for line in lines if not _AFTERMATH.match(line)]
    return (reasons or lines or [""])[-1]


def main(site_name: str, nodes: int, reports: str) -> int:
    """On the first node: run ``node_check`` once a node; returns srun's exit status.

    ``reports`` is a shared folder.

    Raises:
        ConfigError: the site's container is no path on this node.
    """
    site = load_site(site_name)
    options = {
        "reports": reports,
        "nodes": nodes,
        "interface": site.interface,
        "device": site.device,
        "scratch": site.scratch,
    }
    command = [
        *srun_command(site, nodes=nodes, tasks=nodes, per_node=1, devices=site.devices_per_node),
        *python_command(site, "-m", "ddlbench.cluster.node_check", json.dumps(options)),
    ]
    return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
    except ConfigError as error:
        sys.exit(str(error))
