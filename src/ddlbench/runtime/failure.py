"""Why a rank ended: the few kinds that decide what becomes of a cell."""

from __future__ import annotations

import re

from ddlbench.strategies.executor import Unsupported

__all__ = ["classify"]

_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory|"
    r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|std::bad_alloc",
    re.IGNORECASE,
)


def classify(error: BaseException) -> tuple[str, str]:
    """The status ("out_of_memory", "unsupported", "failed") and a one-line reason."""
    text = " ".join(str(error).split())
    reason = f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
    if isinstance(error, Unsupported):
        return "unsupported", text
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(text)
    ):
        return "out_of_memory", reason
    return "failed", reason
