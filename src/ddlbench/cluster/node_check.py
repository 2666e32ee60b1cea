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

from ddlbench.experiment.document import write_json
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import scratch_dir
from ddlbench.runtime.network_address import address_of


def visible_gpus() -> list[dict[str, Any]]:
    """``index``, ``name`` and ``error`` (None where it computes) of every GPU that torch sees."""
    import torch  # noqa: PLC0415 - its absence is one of the doctor's findings

    gpus = []
    for index in range(torch.cuda.device_count()):
        try:
            name = torch.cuda.get_device_name(index)
        except Exception as error:  # whatever it is, the user must read it
            name = type(error).__name__
        gpus.append({"index": index, "name": name, "error": failure_of(f"cuda:{index}")})
    return gpus


def failure_of(device: str) -> str | None:
    """Run a convolution whose result is known, forward and backward; the error's text, or None.

    That a driver counts a GPU says nothing: it may have no kernels in this build of torch, too old
    a driver, or a fault.

    Ones of 2x3x8x8 under four filters of 3x3 ones, unpadded: 2 * 4 * 6 * 6 outputs of 27 each; each
    adds 1 to the 27 inputs that it sees, so the gradients of the inputs have the same sum.
    """
    import torch  # noqa: PLC0415

    known = 2 * 4 * 6 * 6 * 27
    try:
        images = torch.ones(2, 3, 8, 8, device=device, requires_grad=True)
        found = torch.nn.functional.conv2d(images, torch.ones(4, 3, 3, 3, device=device)).sum()
        found.backward()
        assert images.grad is not None
        sums = (found.item(), images.grad.sum().item())
    except Exception as error:  # whatever it is, the user must read it
        return " ".join(str(error).split())[:300] or type(error).__name__
    if sums != (known, known):
        return f"a convolution gives {sums[0]:g} and {sums[1]:g}, right is {known}"
    return None


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
