"""One node's part of `ddlbench doctor`: check what a worker needs there.

srun starts one task a node. Each writes a report into a shared folder. Once all reports exist, it
tries to connect to every other node.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ddlbench
from ddlbench.common.document import write_json
from ddlbench.common.errors import ConfigError
from ddlbench.common.text import read_json
from ddlbench.experiment.paths import scratch_dir
from ddlbench.interconnect.nvidia_programs import state_of_p2p
from ddlbench.runtime.network_address import address_of


def visible_gpus() -> list[dict[str, Any]]:
    """``index``, ``name`` and ``error`` (None if the GPU works) of every GPU that torch sees."""
    import torch  # noqa: PLC0415 - its absence is one of the doctor's findings

    gpus = []
    for index in range(torch.cuda.device_count()):
        try:
            name = torch.cuda.get_device_name(index)
        except Exception as error:  # the user must see any error
            name = type(error).__name__
        gpus.append({"index": index, "name": name, "error": failure_of(f"cuda:{index}")})
    return gpus


def failure_of(device: str) -> str | None:
    """Run a convolution with a known result, forward and backward; returns the error, or None.

    A GPU that the driver lists may still fail: this build of torch may lack kernels for it, or the
    driver may be too old.
    """
    import torch  # noqa: PLC0415

    # Each of the 2 * 4 * 6 * 6 outputs sums 27 ones. It adds 1 to the gradient of each of its 27
    # inputs, so the gradients have the same sum.
    known = 2 * 4 * 6 * 6 * 27
    try:
        images = torch.ones(2, 3, 8, 8, device=device, requires_grad=True)
        output = torch.nn.functional.conv2d(images, torch.ones(4, 3, 3, 3, device=device)).sum()
        output.backward()
        assert images.grad is not None
        sums = (output.item(), images.grad.sum().item())
    except Exception as error:  # the user must see any error
        return " ".join(str(error).split())[:300] or type(error).__name__
    if sums != (known, known):
        return f"a convolution gives {sums[0]:g} and {sums[1]:g} instead of {known}"
    return None


# Importing torch may be fast on one node, and slow on another that reads it over the network.
_WAIT_S = 180.0


def main(arguments: str) -> None:
    """Check this node, then the connections to the others."""
    request = json.loads(arguments)
    reports = Path(request["reports"])
    host = socket.gethostname()
    # Two nodes may have one host name, but each task has a number.
    task = os.environ.get("SLURM_PROCID", "0")
    report = {"host": host, "task": task, **_node(request)}
    with socket.create_server((report["address"] or "127.0.0.1", 0)) as server:
        wrote_s = time.time()
        report["port"] = server.getsockname()[1]
        write_json(reports / f"{task}.node.json", report)
        _wait_for(reports, "*.node.json", int(request["nodes"]))
        written_s = (reports / f"{task}.node.json").stat().st_mtime
        report["clock_offset_s"] = wrote_s - written_s
        others = [read_json(p) for p in sorted(reports.glob("*.node.json"))]
        report["unreachable"] = [
            f"{other['host']} ({other['address']})"
            for other in others
            if other["task"] != task and not _reachable(other)
        ]
        report["met"] = len(others)
        write_json(reports / f"{task}.done.json", report)
        _wait_for(reports, "*.done.json", len(others))


def _node(request: dict[str, Any]) -> dict[str, Any]:
    report: dict[str, Any] = {
        "address": None,
        "address_error": None,
        "python": platform.python_version(),
        "ddlbench": ddlbench.__version__,
    }
    try:
        report["address"] = address_of(request["interface"])
    except ConfigError as error:
        report["address_error"] = str(error)
    with suppress(OSError):
        report["own_name_is"] = socket.gethostbyname(socket.gethostname())
    report["visible_gpus"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    if request["device"] == "cuda":
        report["p2p_state"], report["p2p"] = state_of_p2p(request["interconnect"])
    return {**report, **_torch(request["device"]), **_scratch(request["scratch"])}


def _torch(device: str) -> dict[str, Any]:
    if importlib.util.find_spec("torch") is None:
        return {"torch": None, "torch_cuda": None, "gpus": []}
    import torch  # noqa: PLC0415 - the report says if it is absent

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
        reason = f"{folder} cannot be used: {error}; write another scratch"
        return {"scratch": str(folder), "scratch_error": reason, "scratch_free_bytes": 0}
    return {"scratch": str(folder), "scratch_error": None, "scratch_free_bytes": free}


def _wait_for(reports: Path, pattern: str, count: int) -> None:
    limit = time.monotonic() + _WAIT_S
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
