"""The small job of `ddlbench doctor`, submitted and started like the job of a cell.

::

    login node   sbatch: nodes, devices, cores, memory, extra options    planning/resources.py
    first node     '-> this module: srun, one task a node                runtime/launch.py
    every node           '-> set-up commands, container, node_check
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddlbench.cluster.request_check import options_of
from ddlbench.common.errors import ConfigError
from ddlbench.common.text import read_json
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.site import Site, load_site
from ddlbench.planning.resources import job_minutes
from ddlbench.runtime.launch import python_command, srun_command
from ddlbench.slurm import jobs
from ddlbench.slurm.commands import SlurmError, ask
from ddlbench.slurm.output import telling_line, why_nodes_failed

_JOB_MINUTES = 10
_POLL_S = 2.0
_SUBMIT_S = 60.0  # a busy controller takes its time
_OUTPUT = "job.txt"


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
        try:
            command = batch_command(site, site_name, nodes, folder)
            submitted = ask(command, patience_s=max(patience_s, _SUBMIT_S))
        except SlurmError as refused:
            return [], str(refused)
        job = submitted.split(";")[0]  # "id" or "id;cluster"
        error = _wait(job, nodes, patience_s, say)
        reports = [read_json(p) for p in sorted(folder.glob("*.done.json"))]
        output = folder / _OUTPUT
        text = output.read_text("utf-8", errors="replace") if output.is_file() else ""
        return reports, error or why_nodes_failed(text) or telling_line(text) or _unseen(output)
    finally:
        if job and jobs.may_live(jobs.state(job)):
            with suppress(SlurmError):
                ask(["scancel", job])
        shutil.rmtree(folder, ignore_errors=True)


def batch_command(site: Site, site_name: str, nodes: int, folder: Path) -> list[str]:
    """The sbatch command: resources of the largest cell on ``nodes`` nodes, for a few minutes."""
    step = [sys.executable, "-m", "ddlbench.cluster.probe_job", site_name, str(nodes), str(folder)]
    minutes = min(_JOB_MINUTES, job_minutes(site))
    options = [
        option.text if option.key != "cell_timeout_s" else f"--time={minutes}"
        for option in options_of(site, nodes, site.devices_per_node)
    ]
    sbatch = ["sbatch", "--parsable", "--job-name=ddlbench-doctor", f"--output={folder / _OUTPUT}"]
    return [*sbatch, *options, f"--wrap={shlex.join(step)}"]


def _unseen(output: Path) -> str:
    return (
        f"the job wrote nothing, not even {output}: its node may not see {Path.cwd()}; run from a "
        "folder that all nodes share"
    )


def _wait(job: str, nodes: int, patience_s: float, say: Callable[[str], None]) -> str:
    """Wait until the job has ended; returns an error if it did not start in time, else ""."""
    say(f"waiting for a job on {nodes} node(s), number {job}; `squeue --job {job}` shows it")
    begin, last_reason = time.monotonic(), ""
    while (seen := jobs.states([job])[job]).may_live:
        if seen.state == jobs.NO_ANSWER or (seen.state == "PENDING" and seen.reason):
            reason, starts = "SLURM does not answer", True
            if seen.state == "PENDING":
                reason, starts = seen.why_pending()
            if not starts:
                return f"SLURM would never start the job: {reason}"
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
        "interconnect": site.interconnect.to_dict(),
    }
    command = [
        *srun_command(site, nodes=nodes, tasks=nodes, per_node=1, devices=site.devices_per_node),
        "--label",
        *python_command(site, "-m", "ddlbench.cluster.node_check", json.dumps(options)),
    ]
    return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
    except ConfigError as error:
        sys.exit(str(error))
