"""Kineto traces with planted times, as torch.profiler writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)"
GEMM = "ampere_sgemm_128x64_nn"
COPY = "Memcpy HtoD (Pinned -> Device)"


def kernel(
    name: str, begin: float, end: float, stream: int = 7, *, link: int = -1, device: int = 0
) -> dict[str, Any]:
    """Work of a device, from ``begin`` to ``end`` in microseconds."""
    arguments = {"stream": stream, "device": device, "context": 1}
    if link >= 0:
        arguments["correlation"] = link
    category = "gpu_memcpy" if name.startswith("Mem") else "kernel"
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": device,
        "tid": stream,
        "ts": begin,
        "dur": end - begin,
        "args": arguments,
    }


def host(
    name: str, begin: float, end: float, category: str = "cpu_op", **arguments: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 4242,
        "tid": 4242,
        "ts": begin,
        "dur": end - begin,
        "args": arguments,
    }


def launch(begin: float, link: int) -> dict[str, Any]:
    return host("cudaLaunchKernel", begin, begin + 1, "cuda_runtime", correlation=link)


def step(number: int, begin: float, end: float) -> dict[str, Any]:
    return host(f"ProfilerStep#{number}", begin, end, "user_annotation")


def launched(name: str, begin: float, end: float, stream: int, link: int) -> list[dict[str, Any]]:
    """A kernel and its launch, just before it."""
    return [launch(begin - 1, link), kernel(name, begin, end, stream, link=link)]


TWO_STEPS = [
    step(4, 0, 1000),
    step(5, 1000, 2000),
    *launched(GEMM, 100, 300, 7, 1),
    *launched(ALL_REDUCE, 250, 450, 20, 2),
    *launched(GEMM, 500, 600, 7, 3),
    *launched(COPY, 580, 640, 7, 4),
    *launched(GEMM, 1100, 1200, 7, 5),
]
"""Of the first step: compute 300 us, exposed 150, hidden 50, copies 40, idle 50, in 540."""


def metadata(rank: int | None = 0, size: int = 2) -> dict[str, Any]:
    if rank is None:
        return {"schemaVersion": 1}
    about = {"backend": "nccl", "rank": rank, "world_size": size}
    return {"schemaVersion": 1, "distributedInfo": about}


def trace_text(events: list[dict[str, Any]], rank: int | None = 0) -> str:
    return json.dumps({**metadata(rank), "traceEvents": events})


def write(path: Path, events: list[dict[str, Any]], rank: int | None = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(trace_text(events, rank))
    return path
