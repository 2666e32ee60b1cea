"""Stage a cell's dataset on every node that the cell uses, timed apart from training.

::

    local site, or a job of one device    in this process
    job of several devices                with srun, one task a node; each leaves a report
"""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddlbench.common.document import read_json, write_json
from ddlbench.common.errors import ConfigError
from ddlbench.common.owner import Writer, slurm_job_id
from ddlbench.common.quantities import counted
from ddlbench.datasets import StagingError, remove, stage
from ddlbench.datasets.files import DataError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DataRequest
from ddlbench.experiment.paths import scratch_dir
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Failure, Reason
from ddlbench.planning.planner import request_of
from ddlbench.runtime.launch import Launch, for_srun, python_command, srun_command
from ddlbench.slurm import jobs
from ddlbench.slurm.jobs import telling_line, why_nodes_failed


class StagingFailed(RuntimeError):  # noqa: N818 - what happened
    """A node could not make or keep the cell's data; failure.json gives the reason too."""


def stage_cell(cell: Cell, site: Site, cell_folder: Path, attempt: int = 1) -> dict[str, Any]:
    """Stage the cell's data on its nodes, which leave their reports in the shared ``cell_folder``.

    ``attempt`` is 2 or more if the workflow repeats the job.

    Returns:
        ``seconds`` (until the slowest node is ready), ``verify_s`` (of these, reading what lay
        there, slowest node), ``reused`` (on every node), ``bytes`` (on one node), ``nodes``,
        ``digest``, ``per_node`` and ``writer``: the job on whose nodes the data lie.

    Raises:
        StagingFailed: a node failed, or staging took so long that the job has too little time left
            for the cell.
    """
    begin = time.monotonic()
    writer = Writer.here(attempt)
    try:
        reports = _on_every_node("stage", cell, site, cell_folder)
        failed = [report for report in reports if report.get("error")]
        if failed:
            raise StagingError(f"{failed[0]['host']}: {failed[0]['error']}")
        seconds = time.monotonic() - begin
        _refuse_if_late(site, seconds)
    except (DataError, StagingError, ConfigError) as error:
        reason = Reason("staging_failed", f"staging: {error}")
        Failure(cell.id, "infrastructure", reason, writer).write(cell_folder)
        raise StagingFailed(f"{cell.id}: {error}") from error
    return {
        "seconds": seconds,
        "verify_s": max(report["verify_s"] for report in reports),
        "reused": all(report["reused"] for report in reports),
        "bytes": max(report["bytes"] for report in reports),
        "nodes": len(reports),
        "digest": reports[0]["digest"],
        "per_node": reports,
        "writer": writer.to_dict(),
    }


def unstage_cell(cell: Cell, site: Site, cell_folder: Path) -> None:
    """Delete the cell's generated data from its nodes, but never the user's own data."""
    _on_every_node("remove", cell, site, cell_folder)


def _on_every_node(action: str, cell: Cell, site: Site, cell_folder: Path) -> list[dict[str, Any]]:
    request = request_of(cell, site)
    # A job of one device runs inside a step already, and a nested step would wait for its cores.
    # The nodes of an emulated fabric are all on one real node.
    if site.launcher == "local" or cell.devices == 1 or site.emulates(cell.fabric):
        return [_here(action, request, site.scratch)]
    reports = cell_folder / f".{action}-{time.time_ns()}"
    reports.mkdir(parents=True)
    arguments = {
        "action": action,
        "request": asdict(request),
        "scratch": site.scratch,
        "reports": str(reports.resolve()),
    }
    command = [
        *srun_command(
            site, nodes=cell.nodes, tasks=cell.nodes, per_node=1, devices=cell.devices_per_node
        ),
        "--label",
        *python_command(site, "-m", "ddlbench.runtime.staging", json.dumps(arguments)),
    ]
    try:
        output, ended = _run_step(command, site.stage_timeout_s)
        entries = [read_json(path) for path in sorted(reports.glob("*.json"))]
    finally:
        shutil.rmtree(reports, ignore_errors=True)
    if len(entries) != cell.nodes:
        raise StagingError(_silent_nodes(cell.nodes, entries, output, ended))
    return entries


def _run_step(command: list[str], limit_s: float) -> tuple[str, str]:
    """Run srun and show what it prints; returns its output and how it ended."""
    step, lines, deadline = Launch(), [], time.monotonic() + limit_s
    srun = step.start(command, for_srun(os.environ))
    try:
        for line in step.lines(deadline):
            if line is not None:
                lines.append(line)
                print(line, file=sys.stderr, flush=True)
            if time.monotonic() >= deadline:
                return "\n".join(lines), f"{_LATE} within stage_timeout_s, {limit_s:g} s"
        return "\n".join(lines), f"srun ended with {srun.wait()}"
    finally:
        step.stop()


_LATE = "not all"


def _silent_nodes(nodes: int, entries: list[dict[str, Any]], output: str, ended: str) -> str:
    """Which nodes did not answer, and what their set-up commands printed."""
    sentence = f"only {len(entries)} of {counted(nodes, 'node')} answered ({ended})"
    if jobs.job_is_forgotten(output):
        return (
            f"{sentence}: SLURM's controller does not know job {slurm_job_id()} any more, "
            f"as after a restart that lost its state ({telling_line(output)})"
        )
    why = "" if ended.startswith(_LATE) else why_nodes_failed(output)
    if why:
        return f"{sentence}: {why}"
    answered = {entry["node"] for entry in entries}
    silent = [host for host in jobs.hosts(slurm_job_id()) if host not in answered]
    if silent:
        sentence += f"; nothing from {', '.join(silent)}"
    line = "" if ended.startswith(_LATE) else telling_line(output)
    return f"{sentence}: {line}" if line else sentence


def _refuse_if_late(site: Site, seconds: float) -> None:
    # Else SLURM would end the cell early, as if the cell itself had run out of time.
    if site.launcher == "slurm" and seconds > site.stage_timeout_s:
        raise StagingError(
            f"the data took {seconds:.0f} s, more than the site's stage_timeout_s "
            f"({site.stage_timeout_s:g}); raise it to {2 * math.ceil(seconds)}"
        )


def _here(action: str, request: DataRequest, scratch: str) -> dict[str, Any]:
    folder = scratch_dir(scratch)
    host = socket.gethostname()
    node = os.environ.get("SLURMD_NODENAME", host)
    if action == "remove":
        return {"host": host, "node": node, "removed": remove(request, folder)}
    staged = stage(request, folder)
    status = staged.path.stat()
    return {
        "host": host,
        "node": node,
        "path": str(staged.path),
        "device_number": status.st_dev,
        "inode": status.st_ino,
        "seconds": staged.stage_s,
        "verify_s": staged.verify_s,
        "reused": staged.reused,
        "bytes": staged.size_bytes or 0,
        "digest": staged.manifest_digest,
    }


def main(arguments: str) -> None:
    """Entry on each node: stage or remove the data, and write a report."""
    values = json.loads(arguments)
    try:
        report = _here(values["action"], DataRequest(**values["request"]), values["scratch"])
    except Exception as error:  # the message must reach the supervisor
        host = socket.gethostname()
        node = os.environ.get("SLURMD_NODENAME", host)
        report = {"host": host, "node": node, "error": str(error)}
    # Two nodes may have one host name, but each task has a number.
    task = os.environ.get("SLURM_PROCID", "0")
    write_json(Path(values["reports"]) / f"{task}.json", report)


if __name__ == "__main__":
    main(sys.argv[1])
