"""Classify the error of a rank: its status, its reason, and whether a repeat can help."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from ddlbench.common.units import GB
from ddlbench.experiment.failure import Cause
from ddlbench.experiment.status import Reason, Status, reason_of
from ddlbench.runtime.rank_report import RankFailure
from ddlbench.runtime.socket_folder import tmpdir_hint

_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory|"
    r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|std::bad_alloc",
    re.IGNORECASE,
)

_OF_A_GPU = re.compile(r"CUDA|CUBLAS|CUDNN|GPU|device memory", re.IGNORECASE)

# cuDNN says this if no plan's workspace fits into memory, and also if no plan exists.
_NO_ENGINE = re.compile(r"(FIND|GET) was unable to find an engine to execute this computation")
_LOW_MEMORY_SHARE = 0.1  # of a device's memory

# What torch says of layers that it does not train in this way, here or at all.
_REFUSAL = re.compile(
    r"only work with GPU modules|expected input tensor to be on GPU|"
    r"must override the setup_context|once_differentiable|Expected to have finished reduction"
)

# Errors of a node, the network or a disk, rather than of the rank's own program.
_INFRASTRUCTURE = re.compile(
    r"ConnectionError|ConnectionReset|ConnectionRefused|BrokenPipe|TimeoutError|DistStoreError|"
    r"DistNetworkError|No space left|Stale file handle|Input/output error|Connection reset|"
    r"Connection closed|Connection refused|closed by peer|timed out|Broken pipe|"
    r"NCCL error|unhandled system error|uncorrectable ECC|device is busy or unavailable|"
    r"has no network interface|HorovodInternalError|Address already in use|DataError",
    re.IGNORECASE,
)


def cause_of(failed: Sequence[RankFailure]) -> Cause:
    """Whether the program or the infrastructure caused a failure.

    The infrastructure did if a rank was killed, if none left a report, or if all ranks report
    lost connections and the like. If a rank reports an error of its own, the connections of the
    others broke because of it.
    """
    if any(report.signal is not None for report in failed):
        return "infrastructure"
    if all(_INFRASTRUCTURE.search(report.reason) for report in failed):
        return "infrastructure"
    return "program"


def classify(error: BaseException) -> tuple[Status, Reason]:
    """The status (out of memory, unsupported or failed) and a one-line reason."""
    from ddlbench.strategies.executor import Unsupported  # noqa: PLC0415 - as below

    error = innermost(error)
    text = " ".join(str(error).split())
    reason = f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
    reason += tmpdir_hint(text)
    if isinstance(error, Unsupported):
        return Status.UNSUPPORTED, Reason(reason_of(error, "unsupported").code, text)
    if _REFUSAL.search(text):
        return Status.UNSUPPORTED, Reason("weights_unsupported", reason)
    if isinstance(error, MemoryError):
        return Status.OUT_OF_MEMORY, Reason("out_of_memory_host", reason)
    if isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(text):
        code = "out_of_memory_cuda" if _OF_A_GPU.search(text) else "out_of_memory_host"
        return Status.OUT_OF_MEMORY, Reason(code, reason)
    if isinstance(error, RuntimeError) and _NO_ENGINE.search(text):
        full = _full_device()
        if full is not None:
            return Status.OUT_OF_MEMORY, Reason("out_of_memory_cuda", f"{reason} ({full})")
    code = "connection_lost" if _INFRASTRUCTURE.search(reason) else "exception"
    return Status.FAILED, Reason(code, reason)


def innermost(error: BaseException) -> BaseException:
    """The error that a library has wrapped; an error of this project says what is wrong itself."""
    while error.__cause__ is not None and not type(error).__module__.startswith("ddlbench."):
        error = error.__cause__
    return error


def _full_device() -> str | None:
    """Describe a GPU of this process with less than a tenth of its memory free; None without."""
    import torch  # noqa: PLC0415 - the supervisor has none

    if not torch.cuda.is_initialized():
        return None
    with suppress(RuntimeError):  # a broken device: report the first error as it is
        for index in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(index) == 0:
                continue  # another process's GPU: a query would open a context on it
            free, total = torch.cuda.mem_get_info(index)
            if free < _LOW_MEMORY_SHARE * total:
                return f"{GB.of(free):.2f} of {GB.text(total, '.2f')} free on cuda:{index}"
    return None
