"""Stage a cell's dataset on every node that the cell uses, timed apart from training.

::

    local site, or a job of one device    in this process
    job of several devices                with srun, one task a node; each leaves a report
"""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddlbench.datasets import StagingError, remove, stage
from ddlbench.datasets.files import DataError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DataRequest
from ddlbench.experiment.document import write_json
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.json_text import read_json
from ddlbench.experiment.paths import scratch_dir
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Status
from ddlbench.planning.plan import request_of
from ddlbench.runtime.launch import python_command, srun_command


class StagingFailed(RuntimeError):  # noqa: N818 - what happened
    """A node could not make or keep the cell's data; failure.json gives the reason too."""


def stage_cell(cell: Cell, site: Site, report_dir: Path) -> dict[str, Any]:
    """Stage the cell's data on its nodes, which leave their reports in the shared ``report_dir``.

    Returns:
        ``seconds`` (until the slowest node is ready), ``verify_s`` (of these, reading what lay
        there, slowest node), ``reused`` (on every node), ``bytes`` (on one node), ``nodes``,
        ``digest`` and ``per_node``.

    Raises:
        StagingFailed: a node failed, or staging took so long that the job has too little time left
            for the cell.
    """
    begin = time.monotonic()
    try:
        reports = _on_every_node("stage", cell, site, report_dir)
        failed = [report for report in reports if report.get("error")]
        if failed:
            raise StagingError(f"{failed[0]['host']}: {failed[0]['error']}")
        seconds = time.monotonic() - begin
        _refuse_if_late(site, seconds)
    except (DataError, StagingError, ConfigError) as error:
        failure = {
            "status": Status.FAILED,
            "reason_code": "staging_failed",
            "cause": "infrastructure",
            "reason": f"staging: {error}",
            "log_tail": [],
            "cell_id": cell.id,
        }
        write_json(report_dir / "failure.json", failure)
        raise StagingFailed(f"{cell.id}: {error}") from error
    return {
        "seconds": seconds,
        "verify_s": max(report["verify_s"] for report in reports),
        "reused": all(report["reused"] for report in reports),
        "bytes": max(report["bytes"] for report in reports),
        "nodes": len(reports),
        "digest": reports[0]["digest"],
        "per_node": reports,
    }


def unstage_cell(cell: Cell, site: Site, report_dir: Path) -> None:
    """Delete the cell's generated data from its nodes, but never the user's own data."""
    _on_every_node("remove", cell, site, report_dir)


def _on_every_node(action: str, cell: Cell, site: Site, report_dir: Path) -> list[dict[str, Any]]:
    request = request_of(cell, site)
    # A job of one device runs inside a step already, and a nested step would wait for its cores.
    # The nodes of an emulated fabric are all on one real node.
    if site.launcher == "local" or cell.devices == 1 or site.emulates(cell.fabric):
        return [_here(action, request, site.scratch)]
    reports = report_dir / f".{action}-{time.time_ns()}"
    reports.mkdir(parents=True)
    arguments = {
        "action": action,
        "request": asdict(request),
        "scratch": site.scratch,
        "reports": str(reports.resolve()),
    }
    try:
        step = subprocess.run(
            [
                *srun_command(
                    site,
                    nodes=cell.nodes,
                    tasks=cell.nodes,
                    per_node=1,
                    devices=cell.devices_per_node,
                ),
                *python_command(site, "-m", "ddlbench.runtime.staging", json.dumps(arguments)),
            ],
            check=False,
            stdin=subprocess.DEVNULL,
        )
        entries = [read_json(p) for p in sorted(reports.glob("*.json"))]
    finally:
        shutil.rmtree(reports, ignore_errors=True)
    if len(entries) != cell.nodes:
        raise StagingError(
            f"only {len(entries)} of {cell.nodes} nodes answered "
            f"(srun ended with {step.returncode})"
        )
    return entries


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
    if action == "remove":
        return {"host": host, "removed": remove(request, folder)}
    staged = stage(request, folder)
    status = staged.path.stat()
    return {
        "host": host,
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
        report = {"host": socket.gethostname(), "error": str(error)}
    write_json(Path(values["reports"]) / f"{report['host']}.json", report)


if __name__ == "__main__":
    main(sys.argv[1])
