"""The speed that a process's devices reach: large matrix products, after training.

::

    all ranks    wait for all | product, dropped | products for some tenths of a second |
                                                  median round -> operations a second

All ranks multiply at once, so that ranks which share a device or cores share its speed, as they do
in a step. It is measured, not read from a data sheet: on CPU with the cell's threads, on GPUs with
their clocks and power as they are.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

SIDE = {"cpu": 1024, "cuda": 8192}  # of the square matrices
_LEAST_SIDE = 256
_MEASURED_S = 0.2
_ROUND_S = 0.02  # a round of several short products, which are queued on a GPU
_FEWEST_ROUNDS = 3
_LONGEST_S = 0.1  # of one product; a slow device gets smaller ones


def peak_flops_per_s(devices: Sequence[torch.device], precision: str) -> float:
    """Floating-point operations a second of all ``devices`` together, each multiplying by itself.

    Args:
        devices: of this process; a CPU device has as many threads as torch now uses.
        precision: "fp32", "tf32" or "bf16"; of the first two, torch's global setting decides.

    Raises:
        RuntimeError: a device has no memory left, or no such arithmetic.
    """
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    if len(devices) == 1:
        return _speed(devices[0], kind)
    with ThreadPoolExecutor(len(devices)) as pool:  # products release Python's lock
        return sum(pool.map(lambda device: _speed(device, kind), devices))


def _speed(device: torch.device, kind: torch.dtype) -> float:
    side = SIDE[device.type]
    while True:
        least = side <= _LEAST_SIDE
        try:
            speed = _of_products(device, kind, side, longest_s=math.inf if least else _LONGEST_S)
        except torch.OutOfMemoryError:
            if least:
                raise
            speed = None
        if device.type == "cuda":
            torch.cuda.empty_cache()
        if speed is not None:
            return speed
        side //= 2


def _of_products(
    device: torch.device, kind: torch.dtype, side: int, longest_s: float
) -> float | None:
    """Operations a second of products of this size; None if one takes longer than ``longest_s``."""
    factor = torch.full((side, side), 1 / side, dtype=kind, device=device)
    product = torch.empty_like(factor)
    _seconds(factor, product, 1)  # the first one is slower
    alone_s = _seconds(factor, product, 1)
    if alone_s > longest_s:
        return None
    count = max(1, round(_ROUND_S / alone_s))
    rounds: list[float] = []
    while len(rounds) < _FEWEST_ROUNDS or sum(rounds) < _MEASURED_S:
        rounds.append(_seconds(factor, product, count))
    return 2.0 * side**3 * count / statistics.median(rounds)


def _seconds(factor: torch.Tensor, product: torch.Tensor, count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        torch.mm(factor, factor, out=product)
    if factor.is_cuda:
        torch.cuda.synchronize(factor.device)
    return time.perf_counter() - begin
