"""Why a rank ended: the few kinds that decide what becomes of a cell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from ddlbench.experiment.status import Reason, Status, reason_of
from ddlbench.experiment.units import GB
from ddlbench.runtime.rank_report import RankFailure

_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory|"
    r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|std::bad_alloc",
    re.IGNORECASE,
)

_OF_A_GPU = re.compile(r"CUDA|CUBLAS|CUDNN|GPU|device memory", re.IGNORECASE)

# cuDNN says this where no plan's workspace has room, and where no plan exists.
_NO_ENGINE = re.compile(r"(FIND|GET) was unable to find an engine to execute this computation")
_LITTLE = 0.1  # of a device's memory

Cause = Literal["program", "infrastructure"]

# What a rank says when its node, the network or a disk let it down, not its own program.
_LET_DOWN = re.compile(
    r"ConnectionError|ConnectionReset|ConnectionRefused|BrokenPipe|TimeoutError|DistStoreError|"
    r"DistNetworkError|No space left|Stale file handle|Input/output error|Connection reset|"
    r"Connection closed|Connection refused|closed by peer|timed out|Broken pipe|"
    r"NCCL error|unhandled system error|uncorrectable ECC|device is busy or unavailable|"
    r"has no network interface|HorovodInternalError",
    re.IGNORECASE,
)


def cause_of(failed: Sequence[RankFailure]) -> Cause:
    """Whose fault a failure is, by the reports of the failed ranks.

    A rank that was killed or went away without a word is the infrastructure's; so are broken
    connections, unless another rank says what it did itself: then the connections broke after it.
    """
    if any(report.signal is not None for report in failed):
        return "infrastructure"
    if all(_LET_DOWN.search(report.reason) for report in failed):
        return "infrastructure"
    return "program"


def classify(error: BaseException) -> tuple[Status, Reason]:
    """The status (out of memory, unsupported or failed) and a one-line reason."""
    from ddlbench.strategies.executor import Unsupported  # noqa: PLC0415 - as below

    text = " ".join(str(error).split())
    reason = f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
    if isinstance(error, Unsupported):
        return Status.UNSUPPORTED, Reason(reason_of(error, "unsupported").code, text)
    if isinstance(error, MemoryError):
        return Status.OUT_OF_MEMORY, Reason("out_of_memory_host", reason)
    if isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(text):
        code = "out_of_memory_cuda" if _OF_A_GPU.search(text) else "out_of_memory_host"
        return Status.OUT_OF_MEMORY, Reason(code, reason)
    if isinstance(error, RuntimeError) and _NO_ENGINE.search(text):
        full = _full_device()
        if full is not None:
            return Status.OUT_OF_MEMORY, Reason("out_of_memory_cuda", f"{reason} ({full})")
    code = "connection_lost" if _LET_DOWN.search(reason) else "exception"
    return Status.FAILED, Reason(code, reason)


def _full_device() -> str | None:
    """In words, a GPU of this process with less than a tenth of its memory free; None if none."""
    import torch  # noqa: PLC0415 - the supervisor has none

    if not torch.cuda.is_initialized():
        return None
    with suppress(RuntimeError):  # a device that does not even say this: the error stands as it is
        for index in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(index) == 0:
                continue  # not its own: asking would open a context there
            free, total = torch.cuda.mem_get_info(index)
            if free < _LITTLE * total:
                return f"{GB.of(free):.2f} of {GB.text(total, '.2f')} free on cuda:{index}"
    return None
