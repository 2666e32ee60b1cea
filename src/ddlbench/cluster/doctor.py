"""`ddlbench site doctor`: checks a site on this node, then on nodes inside a small job.

::

    this node     -> preflight    -> findings; if none forbids a job:
    job on nodes  -> judge_nodes  -> findings about the job and each node

The small job is submitted and started like the job of a cell::

    login node   sbatch: nodes, devices, cores, memory, extra options    planning/budget.py
    first node     '-> main: srun, one task a node                       runtime/launch.py
    every node           '-> set-up commands, container                  cluster/checks.py
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
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddlbench.cluster import preflight
from ddlbench.cluster.checks import Finding, options_of
from ddlbench.common.document import read_json
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import GB, counted
from ddlbench.common.statistics import grouped
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.site import Site, load_site
from ddlbench.interconnect.nvidia_programs import P2P
from ddlbench.planning.budget import job_minutes
from ddlbench.runtime.launch import python_command, srun_command
from ddlbench.slurm import jobs
from ddlbench.slurm.jobs import SlurmError, ask, telling_line, why_nodes_failed

_JOB_MINUTES = 10
_POLL_S = 2.0
_SUBMIT_S = 60.0  # a busy controller takes its time
_OUTPUT = "job.txt"
_CLOCKS_APART_S = 5.0


def examine(
    site: Site,
    nodes: int,
    *,
    site_name: str | None = None,
    patience_s: float = 600,
    say: Callable[[str], None] = lambda _sentence: None,
) -> list[Finding]:
    """All findings; the job is only sent when nothing forbids it.

    It waits ``patience_s`` for nodes, which read the site again by its name.

    Raises:
        ConfigError: the site has no SLURM.
    """
    if site.launcher != "slurm":
        raise ConfigError(f"site {site.name} starts its cells on this machine: run make demo")
    findings = preflight.examine(site, [(nodes, site.devices_per_node)])
    if not all(finding.ok for finding in findings):
        return findings
    reports, error = ask_nodes(site, site_name or site.name, nodes, patience_s, say)
    return findings + judge_nodes(site, nodes, reports, error)


def judge_nodes(site: Site, nodes: int, reports: list[dict[str, Any]], error: str) -> list[Finding]:
    """Findings about the job and about each node that answered; ``error`` says why some did not."""
    names = [report["host"] for report in reports]
    hosts = ", ".join(names)
    if len(reports) < nodes:
        which = f" ({hosts})" if hosts else ""
        answered = f"{len(reports)} of {counted(nodes, 'node')} answered{which}"
        says = f"{answered}: {error or 'no reason given'}"
        findings = [Finding("job", False, says)]
    else:
        findings = [Finding("job", True, f"{nodes} of {counted(nodes, 'node')}: {hosts}")]
    of_nodes = [_of_node(site, report, nodes) for report in reports]
    # Thing by thing; nodes of which the same is true share a line.
    for of_thing in zip(*of_nodes, strict=True):
        for finding, where in grouped(zip(of_thing, names, strict=True)).items():
            findings.append(replace(finding, what=f"{', '.join(where)}: {finding.what}"))
    return findings + _differences(reports)


def _of_node(site: Site, report: dict[str, Any], nodes: int) -> list[Finding]:
    """Findings about a node, of the same things for all nodes."""
    findings = [_torch(site, report), _scratch(report), _network(report, nodes)]
    if site.device == "cuda" and site.devices_per_node > 1 and not site.devices_share_gpu:
        # NVIDIA's test of links; without it links are measured by our own copies.
        state = report["p2p_state"]
        ok, absent = state != "wrong", state == "absent"
        findings.append(Finding(P2P, ok, report["p2p"], doubtful=absent))
    return findings


def _differences(reports: list[dict[str, Any]]) -> list[Finding]:
    """Nodes whose Python, ddlbench or clock is not that of the others."""
    findings = []
    for key, what in (("python", "Python"), ("ddlbench", "ddlbench")):
        values = [(report["host"], report[key]) for report in reports]
        if len({value for _, value in values}) > 1:
            listed = ", ".join(f"{host}: {value}" for host, value in values)
            says = f"nodes differ ({listed}); use one environment that all nodes share"
            findings.append(Finding(what, False, says))
    offsets_s = [report["clock_offset_s"] for report in reports]
    apart_s = max(offsets_s, default=0.0) - min(offsets_s, default=0.0)
    if apart_s > _CLOCKS_APART_S:
        says = (
            f"clocks of the nodes are {apart_s:.0f} s apart; results are not wrong, but times in "
            "logs are: an administrator should look at NTP"
        )
        findings.append(Finding("clocks", True, says, doubtful=True))
    return findings


def _torch(site: Site, report: dict[str, Any]) -> Finding:
    what = "torch"
    version = report["torch"]
    if version is None:
        says = "not installed in this environment; run make setup on a shared file system"
        return Finding(what, False, says, in_file=False)
    if site.device == "cpu":
        return Finding(what, True, f"{version}, CPU workers")
    if report["torch_cuda"] is None:
        says = f"{version} is a build for CPUs; envs/README.md says how to get one for GPUs"
        return Finding(what, False, says, in_file=False)
    gpus, wanted = report["gpus"], site.devices_per_node
    broken = [gpu for gpu in gpus if gpu["error"]]
    if broken:
        says = f"GPU {broken[0]['index']} ({broken[0]['name']}) does not compute"
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        remedy = "envs/README.md says which torch fits which GPU"
        says += f"{more}: {broken[0]['error']}; {remedy}"
        return Finding(what, False, says, in_file=False)
    if len(gpus) < (1 if site.devices_share_gpu else wanted):
        seen = counted(len(gpus), "GPU") if gpus else "no GPU"
        says = f"{version} sees {seen}, the site uses {wanted}; does slurm.gres ask for GPUs?"
        if gpus:
            says += " To try strategies on fewer GPUs write devices_share_gpu: true"
        return Finding(what, False, says)
    names = ", ".join(sorted({gpu["name"] for gpu in gpus}))
    says = f"{version}, {counted(len(gpus), 'GPU')}, all of which compute: {names}"
    if site.devices_share_gpu:
        says += f"; all {wanted} devices of the node share one: no timing claim between devices"
    return Finding(what, True, says)


def _scratch(report: dict[str, Any]) -> Finding:
    what = "scratch"
    if report["scratch_error"]:
        return Finding(what, False, report["scratch_error"])
    free = GB.text(report["scratch_free_bytes"], ".1f")
    return Finding(what, True, f"{report['scratch']}, {free} free")


def _network(report: dict[str, Any], nodes: int) -> Finding:
    what = "network"
    if report["address_error"]:
        return Finding(what, False, report["address_error"])
    if report["unreachable"]:
        says = f"cannot reach {', '.join(report['unreachable'])}; write another interface"
        return Finding(what, False, says)
    if report["met"] < nodes:
        says = (
            f"met {report['met']} of {nodes} nodes, itself included; the others did not start in "
            "time, or do not see this folder: put the project on a file system that all nodes share"
        )
        return Finding(what, False, says)
    if str(report.get("own_name_is", "")).startswith("127.") and nodes > 1:
        says = "its name resolves to a loopback address: Horovod between nodes will fail"
        return Finding(what, False, f"{says}; ask for an entry in /etc/hosts or DNS")
    if nodes == 1:
        return Finding(what, True, f"{report['address']}, the only node")
    return Finding(
        what, True, f"{report['address']}, reaches the other {nodes - 1} of {nodes} nodes"
    )


def ask_nodes(
    site: Site, site_name: str, nodes: int, patience_s: float, say: Callable[[str], None]
) -> tuple[list[dict[str, Any]], str]:
    """Submit the job, wait for it, and gather the reports of its nodes.

    A job that has no nodes after ``patience_s`` is cancelled.

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
        unseen = (
            f"the job wrote nothing, not even {output}: its node may not see {Path.cwd()}; run "
            "from a folder that all nodes share"
        )
        return reports, error or why_nodes_failed(text) or telling_line(text) or unseen
    finally:
        if job and jobs.may_live(jobs.state(job)):
            with suppress(SlurmError):
                ask(["scancel", job])
        shutil.rmtree(folder, ignore_errors=True)


def batch_command(site: Site, site_name: str, nodes: int, folder: Path) -> list[str]:
    """The sbatch command: resources of the largest cell on ``nodes`` nodes, for a few minutes."""
    step = [sys.executable, "-m", "ddlbench.cluster.doctor", site_name, str(nodes), str(folder)]
    minutes = min(_JOB_MINUTES, job_minutes(site))
    options = [
        option.text if option.key != "cell_timeout_s" else f"--time={minutes}"
        for option in options_of(site, nodes, site.devices_per_node)
    ]
    sbatch = ["sbatch", "--parsable", "--job-name=ddlbench-doctor", f"--output={folder / _OUTPUT}"]
    return [*sbatch, *options, f"--wrap={shlex.join(step)}"]


def _wait(job: str, nodes: int, patience_s: float, say: Callable[[str], None]) -> str:
    """Wait until the job has ended; returns an error if it did not start in time, else ""."""
    say(
        f"waiting for a job on {counted(nodes, 'node')}, number {job}; "
        f"`squeue --job {job}` shows it"
    )
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
    """On the first node: check each node with a task of its own; returns srun's exit status.

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
        *python_command(site, "-m", "ddlbench.cluster.checks", json.dumps(options)),
    ]
    return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
    except ConfigError as error:
        sys.exit(str(error))
