"""A cell's dataset on every node that the cell uses, timed apart from training."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddlbench.datasets import stage
from ddlbench.experiment.atomic import write_json
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.data_size import DataRequest
from ddlbench.experiment.paths import scratch_dir
from ddlbench.experiment.site import Site
from ddlbench.planning.data import request_of

__all__ = ["main", "stage_cell"]


def stage_cell(cell: Cell, site: Site, report_dir: Path) -> dict[str, Any]:
    """Stage the cell's data on its nodes.

    Args:
        cell: whose data.
        site: where scratch is.
        report_dir: shared folder in which the nodes leave their reports.

    Returns:
        ``seconds`` (of all nodes together, the slowest decides), ``reused`` (on every node),
        ``bytes`` (on one node), ``nodes``, ``digest`` and ``per_node``.
    """
    request = request_of(cell, site)
    begin = time.monotonic()
    if site.launcher == "local":
        reports = [_stage_here(request, site.scratch)]
    else:
        reports = _stage_on_nodes(request, site.scratch, cell.nodes, report_dir)
    return {
        "seconds": time.monotonic() - begin,
        "reused": all(report["reused"] for report in reports),
        "bytes": max(report["bytes"] for report in reports),
        "nodes": len(reports),
        "digest": reports[0]["digest"],
        "per_node": reports,
    }


def _stage_here(request: DataRequest, scratch: str) -> dict[str, Any]:
    staged = stage(request, scratch_dir(scratch))
    status = staged.path.stat()
    return {
        "host": socket.gethostname(),
        "path": str(staged.path),
        "device_number": status.st_dev,
        "inode": status.st_ino,
        "seconds": staged.stage_s,
        "reused": staged.reused,
        "bytes": staged.size_bytes or 0,
        "digest": staged.manifest_digest,
    }


def _stage_on_nodes(
    request: DataRequest, scratch: str, nodes: int, report_dir: Path
) -> list[dict[str, Any]]:
    """One task a node; each leaves its report in the shared folder."""
    report_dir.mkdir(parents=True, exist_ok=True)
    arguments = {"request": asdict(request), "scratch": scratch, "report_dir": str(report_dir)}
    subprocess.run(
        [
            "srun",
            f"--nodes={nodes}",
            f"--ntasks={nodes}",
            "--ntasks-per-node=1",
            "--kill-on-bad-exit=1",
            sys.executable,
            "-m",
            "ddlbench.runtime.staging",
            json.dumps(arguments),
        ],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return [json.loads(p.read_text("utf-8")) for p in sorted(report_dir.glob("stage-*.json"))]


def main(arguments: str) -> None:
    """Entry on each node."""
    values = json.loads(arguments)
    report = _stage_here(DataRequest(**values["request"]), values["scratch"])
    write_json(Path(values["report_dir"]) / f"stage-{report['host']}.json", report)


if __name__ == "__main__":
    main(sys.argv[1])
