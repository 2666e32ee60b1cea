"""``device: auto`` of a local site: the GPUs that the installed torch can use, else cores.

No torch is imported for it. GPUs are counted by NVIDIA's library::

    torch/version.py   cuda = '13.0'   ->  a build for GPUs, of compute capability 7.5 or newer
    NVML               GPUs and their compute capabilities
    CUDA_VISIBLE_DEVICES               ->  how many of them this process may use
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from ddlbench.common.errors import ConfigError

_CUDA_OF_TORCH = re.compile(r"^cuda[^=]*= *['\"](\d+)\.(\d+)", re.MULTILINE)
# Least compute capability for which torch's wheels have kernels since 2.11: up to this CUDA, and
# for newer ones (https://github.com/pytorch/pytorch/issues/172352).
_LAST_FOR_OLD, _OLD, _NEWER = (12, 6), (5, 0), (7, 5)


def automatic_device(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The keys that ``device: auto`` of a site file stands for here; empty for another device.

    Raises:
        ConfigError: cells of the site run elsewhere.
    """
    if values["device"] != "auto":
        return {}
    if values["launcher"] != "local":
        raise ConfigError(
            f"{where}: device: auto looks for GPUs of this machine; write cpu or cuda, as the "
            "nodes have"
        )
    count = 0 if values.get("accelerator") is not None else visible_gpus()
    if not count:
        return {"device": "cpu"}
    if values.get("devices_per_node", "auto") != "auto":
        return {"device": "cuda"}
    shared = {"devices_share_gpu": True} if count == 1 else {}
    return {"device": "cuda", "devices_per_node": max(count, 2), **shared}


@cache
def visible_gpus() -> int:
    """NVIDIA GPUs that this process may use and torch has kernels for."""
    cuda = _cuda_of_torch()
    if cuda is None:
        return 0
    oldest = _OLD if cuda <= _LAST_FOR_OLD else _NEWER
    count = sum(capability >= oldest for capability in _capabilities())
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return count
    # CUDA ignores what follows an entry that names no GPU, as -1.
    entries = (entry.strip() for entry in named.split(","))
    return min(count, len(list(takewhile(lambda entry: entry and entry != "-1", entries))))


def _cuda_of_torch() -> tuple[int, int] | None:
    """Version of CUDA for which torch was built; None of a build for CPUs, or without torch.

    Torch's ``version.py`` says it.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = _CUDA_OF_TORCH.search(text)
    return (int(match[1]), int(match[2])) if match else None


def _capabilities() -> list[tuple[int, int]]:
    """Compute capability of each GPU of this machine."""
    try:
        import pynvml  # noqa: PLC0415 - only where torch can use a GPU
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)) for handle in handles]
    except pynvml.NVMLError:  # no driver
        return []
