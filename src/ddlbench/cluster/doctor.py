"""Check a site inside a small job, and say what to change in its file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlbench.cluster.query import Partition, partitions
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.site import Site

__all__ = ["Finding", "examine", "judge_nodes", "judge_partition"]

_JOB_MINUTES = 5


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        what: was looked at.
        ok: nothing to change.
        says: what was found, and, if it is wrong, what to write instead.
    """

    what: str
    ok: bool
    says: str


def examine(site: Site, nodes: int) -> list[Finding]:
    """All findings; the job is only sent when the partition is right.

    Args:
        site: to check.
        nodes: of the job, at most what the site says.

    Raises:
        ConfigError: the site has no SLURM, or SLURM does not answer.
    """
    if site.launcher != "slurm":
        raise ConfigError(f"site {site.name} starts its cells on this machine: run make demo")
    findings = judge_partition(site, partitions())
    if not all(finding.ok for finding in findings):
        return findings
    reports, error = _ask_nodes(site, nodes)
    return findings + judge_nodes(site, nodes, reports, error)


def judge_partition(site: Site, found: list[Partition]) -> list[Finding]:
    """What sinfo says against what the site file says."""
    wanted = site.slurm.get("partition")
    kinds = [p for p in found if p.name == wanted] if wanted else [p for p in found if p.is_default]
    names = ", ".join(sorted({p.name for p in found})) or "none"
    if not kinds:
        what = f"there is no partition {wanted!r}" if wanted else "there is no default partition"
        return [Finding("partition", False, f"{what}; write slurm.partition: one of {names}")]
    name = kinds[0].name
    findings = [
        Finding("partition", any(p.is_up for p in kinds), f"{name}, {kinds[0].nodes} node(s), up")
        if any(p.is_up for p in kinds)
        else Finding("partition", False, f"{name} is down; write another slurm.partition: {names}")
    ]
    nodes = sum(p.nodes for p in kinds)
    if site.nodes > nodes:
        findings.append(Finding("nodes", False, f"{name} has {nodes}; write nodes: {nodes}"))
    gpus = max(p.gpus_per_node for p in kinds)
    if site.slurm.get("gres", "gpu") and gpus != site.devices_per_node:
        ok = gpus > site.devices_per_node
        says = f"{name} has {gpus} a node, the site uses {site.devices_per_node}"
        remedy = "" if ok else f"; write devices_per_node: {gpus}" if gpus else '; write gres: ""'
        findings.append(Finding("GRES", ok, says + remedy))
    limit_s = min((p.time_limit_s for p in kinds if p.time_limit_s is not None), default=None)
    if limit_s is not None and site.cell_timeout_s > limit_s:
        findings.append(
            Finding(
                "time limit",
                False,
                f"{name} ends jobs after {limit_s} s; "
                f"write cell_timeout_s: {max(60, limit_s - 600)}",
            )
        )
    return findings


def judge_nodes(site: Site, nodes: int, reports: list[dict[str, Any]], error: str) -> list[Finding]:
    """What the nodes reported."""
    if len(reports) < nodes:
        says = f"{len(reports)} of {nodes} nodes answered: {error or 'no reason given'}"
        return [Finding("job", False, says)]
    findings = [Finding("job", True, f"{nodes} node(s): {', '.join(r['host'] for r in reports)}")]
    for report in reports:
        findings += [_torch(site, report), _scratch(report), _network(report)]
    return findings


def _torch(site: Site, report: dict[str, Any]) -> Finding:
    what = f"{report['host']}: torch"
    if report["torch"] is None:
        says = "not installed in this environment; run make setup on a shared file system"
        return Finding(what, False, says)
    if site.device == "cuda" and report["gpus"] == 0:
        return Finding(what, False, f"{report['torch']} sees no GPU; is it the CUDA build, and "
                       "does slurm.gres ask for GPUs?")  # fmt: skip
    seen = f" sees {report['gpus']} GPU(s)" if site.device == "cuda" else ", CPU workers"
    return Finding(what, True, f"{report['torch']}{seen}")


def _scratch(report: dict[str, Any]) -> Finding:
    what = f"{report['host']}: scratch"
    if report["scratch_error"]:
        says = f"{report['scratch']}: {report['scratch_error']}; write another scratch"
        return Finding(what, False, says)
    free_gb = report["scratch_free_bytes"] / 1e9
    return Finding(what, True, f"{report['scratch']}, {free_gb:.1f} GB free")


def _network(report: dict[str, Any]) -> Finding:
    what = f"{report['host']}: network"
    if report["address_error"]:
        return Finding(what, False, report["address_error"])
    if report["unreachable"]:
        says = f"cannot reach {', '.join(report['unreachable'])}; write another interface"
        return Finding(what, False, says)
    if str(report.get("own_name_is", "")).startswith("127.") and report["met"] > 1:
        says = "its name resolves to a loopback address: Horovod between nodes will fail"
        return Finding(what, False, f"{says}; ask for an entry in /etc/hosts or DNS")
    return Finding(what, True, f"{report['address']}, reaches all other nodes")


def _ask_nodes(site: Site, nodes: int) -> tuple[list[dict[str, Any]], str]:
    RESULTS.mkdir(exist_ok=True)
    reports = Path(tempfile.mkdtemp(prefix=".doctor-", dir=RESULTS)).resolve()
    wanted = {
        "reports": str(reports),
        "nodes": nodes,
        "interface": site.interface,
        "device": site.device,
        "scratch": site.scratch,
    }
    try:
        done = subprocess.run(
            [
                *_srun(site, nodes),
                sys.executable,
                "-m",
                "ddlbench.cluster.node_check",
                json.dumps(wanted),
            ],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        found = [json.loads(p.read_text("utf-8")) for p in sorted(reports.glob("*.done.json"))]
    finally:
        shutil.rmtree(reports, ignore_errors=True)
    lines = done.stderr.strip().splitlines()
    return found, lines[-1] if lines else ""


def _srun(site: Site, nodes: int) -> list[str]:
    slurm = site.slurm
    command = ["srun", f"--nodes={nodes}", "--ntasks-per-node=1", f"--time={_JOB_MINUTES}"]
    command += [
        f"--{key}={slurm[key]}"
        for key in ("partition", "account", "qos", "constraint")
        if slurm.get(key)
    ]
    if slurm.get("gres", "gpu"):
        kind = f":{slurm['gpu_type']}" if slurm.get("gpu_type") else ""
        command.append(f"--gres={slurm.get('gres', 'gpu')}{kind}:{site.devices_per_node}")
    return command
