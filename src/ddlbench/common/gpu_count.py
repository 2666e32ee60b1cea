"""How many GPUs the torch of this machine can use; no torch is imported for it."""

from __future__ import annotations

import importlib.util
import os
import re
from functools import cache
from pathlib import Path

_GPU_BUILD = re.compile(r"^cuda[^=]*= *['\"]", re.MULTILINE)


@cache
def visible_gpus() -> int:
    """NVIDIA GPUs that this process may use; 0 where torch is a build for CPUs, or missing."""
    if not _torch_is_for_gpus():
        return 0
    try:
        import pynvml  # noqa: PLC0415 - only where torch can use a GPU

        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
    except Exception:  # no library of NVIDIA's, or no driver
        return 0
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return count
    return min(count, sum(bool(entry.strip()) for entry in named.split(",")))


def _torch_is_for_gpus() -> bool:
    """Whether torch is a build for CUDA, by the version that it wrote down when it was built."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    try:
        text = (Path(found.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    return _GPU_BUILD.search(text) is not None
