"""One node's part of `ddlbench doctor`: what a worker would find there.

Started by srun, one task a node. Each leaves a report in a shared folder and, once all are
there, tries to connect to every other node.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddlbench.cluster.gpu_check import visible_gpus
from ddlbench.experiment.atomic import write_json
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import scratch_dir
from ddlbench.runtime.network_address import address_of

__all__ = ["main"]

# One node may have torch in its cache while another reads it over a slow file system.
_MEET_S = 180.0


def main(arguments: str) -> None:
    """Check this node, then the ways to the others."""
    wanted = json.loads(arguments)
    reports = Path(wanted["reports"])
    host = socket.gethostname()
    report = {"host": host, **_node(wanted)}
    with socket.create_server(("", 0)) as server:
        report["port"] = server.getsockname()[1]
        write_json(reports / f"{host}.node.json", report)
        others = _meet(reports, int(wanted["nodes"]))
        report["unreachable"] = [
            f"{other['host']} ({other['address']})"
            for other in others
            if other["host"] != host and not _reachable(other)
        ]
        report["met"] = len(others)
        write_json(reports / f"{host}.done.json", report)
        _wait_for(reports, "*.done.json", len(others))


def _node(wanted: dict[str, Any]) -> dict[str, Any]:
    report: dict[str, Any] = {"address": None, "address_error": None}
    try:
        report["address"] = address_of(wanted["interface"])
    except ConfigError as error:
        report["address_error"] = str(error)
    with suppress(OSError):
        report["own_name_is"] = socket.gethostbyname(socket.gethostname())
    report["visible_gpus"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {**report, **_torch(wanted["device"]), **_scratch(wanted["scratch"])}


def _torch(device: str) -> dict[str, Any]:
    if importlib.util.find_spec("torch") is None:
        return {"torch": None, "torch_cuda": None, "gpus": []}
    import torch  # noqa: PLC0415 - its absence is one of the findings

    gpus = visible_gpus() if device == "cuda" else []
    return {"torch": torch.__version__, "torch_cuda": torch.version.cuda, "gpus": gpus}


def _scratch(template: str) -> dict[str, Any]:
    try:
        folder = scratch_dir(template)
    except ConfigError as error:
        return {"scratch": template, "scratch_error": str(error), "scratch_free_bytes": 0}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".ddlbench-doctor-{os.getpid()}"
        probe.write_bytes(b"x")
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        why = f"{folder} cannot be used: {error}; write another scratch"
        return {"scratch": str(folder), "scratch_error": why, "scratch_free_bytes": 0}
    return {"scratch": str(folder), "scratch_error": None, "scratch_free_bytes": free}


def _meet(reports: Path, nodes: int) -> list[dict[str, Any]]:
    _wait_for(reports, "*.node.json", nodes)
    return [json.loads(p.read_text("utf-8")) for p in sorted(reports.glob("*.node.json"))]


def _wait_for(reports: Path, pattern: str, count: int) -> None:
    limit = time.monotonic() + _MEET_S
    while len(list(reports.glob(pattern))) < count and time.monotonic() < limit:
        time.sleep(0.2)


def _reachable(other: dict[str, Any]) -> bool:
    if other["address"] is None:
        return False
    with suppress(OSError), socket.create_connection((other["address"], other["port"]), timeout=5):
        return True
    return False


if __name__ == "__main__":
    main(sys.argv[1])
