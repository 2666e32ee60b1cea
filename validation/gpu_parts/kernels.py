"""Of part 5: seconds of single kernels of a GPU, the table of its efficiency.

::

    product      (m, k) x (k, n)                          forward only
    attention    batch, heads, sequence, head size        forward, and backward
    traffic      add, gelu, layer norm, batch norm, softmax, SGD over so many bytes: both passes

A time is the median over rounds of ``calls`` calls between two events, so what a launch costs the
host is hidden unless a kernel is shorter. Inputs alternate among sets that are together larger than
the second-level cache.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from ddlbench.common.document import write_text
from ddlbench.strategies.training import set_precision
from gpu_parts.study import Study, Verdict, in_process

__all__ = ["COLUMNS", "measure"]

COLUMNS = (
    *("kind", "operation", "precision", "m", "n", "k"),
    *("batch", "heads", "sequence", "head_size", "bytes", "forward_s", "backward_s"),
)
_DTYPE = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
_CACHE_BYTES = 128 << 20  # more than the second-level cache of the GPUs of 2026
_ROUND_S = 2e-3
_ROUNDS = 5
_MOST_OPERATIONS = 2.5e12  # of a product; larger ones are as efficient
_MOST_INPUT_BYTES = 8 << 30

Call = Callable[[], Any]


def measure(study: Study) -> Verdict:
    """Write ``kernels.csv``; every kind must be there."""
    rows = in_process(_measured, study.device, study.small, limit_s=240)
    written = io.StringIO()
    table = csv.DictWriter(written, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_text(study.folder / "kernels.csv", written.getvalue())
    figures: dict[str, Any] = {"rows": len(rows)}
    for precision in _DTYPE:
        rates = [
            2 * row["m"] * row["n"] * row["k"] / row["forward_s"]
            for row in rows
            if row["kind"] == "product" and row["precision"] == precision
        ]
        if rates:
            figures[f"{precision}_largest_flops_per_s"] = max(rates)
    copied = [
        row["bytes"] / row["forward_s"] for row in rows
        if row["operation"] == "copy" and row["bytes"] > _CACHE_BYTES
    ]  # fmt: skip
    if copied:
        figures["copy_bytes_per_s"] = max(copied)
    lacking = {"product", "attention", "traffic"} - {row["kind"] for row in rows}
    return Verdict(not lacking, figures, f"not measured: {', '.join(sorted(lacking))}")


def _measured(device_kind: str, small: bool) -> list[dict[str, Any]]:
    """All rows; in a process of its own."""
    device = torch.device(device_kind)
    rows: list[dict[str, Any]] = []
    began = time.perf_counter()
    for precision in ("bf16", "tf32", "fp32") if device_kind == "cuda" else ("fp32",):
        set_precision(precision)
        for make in (_products, _attention, _traffic):
            for shape, calls in make(device, precision, small or device_kind == "cpu"):
                row = _row(shape, precision, calls, device)
                if row is not None:
                    rows.append(row)
        print(f"  kernels {precision}: {time.perf_counter() - began:.0f} s", flush=True)
    return rows


def _row(
    shape: dict[str, Any], precision: str, calls: dict[str, Sequence[Call]], device: torch.device
) -> dict[str, Any] | None:
    try:
        times = {f"{phase}_s": _median_s(of, device) for phase, of in calls.items()}
    except RuntimeError as error:  # no such kernel, or not enough memory
        print(f"  {shape} in {precision}: {str(error).splitlines()[0]}", flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return None
    both_s = times.pop("both_s", None)
    if both_s is not None:  # backward needs a forward pass before it
        times["backward_s"] = max(both_s - times["forward_s"], 0.0)
    return {**shape, "precision": precision, **{k: f"{v:.6g}" for k, v in times.items()}} | {
        "forward_s": float(f"{times['forward_s']:.6g}")
    }


def _median_s(calls: Sequence[Call], device: torch.device) -> float:
    """Seconds of one call, the calls alternating."""
    turn = itertools.cycle(calls)
    for _ in range(max(len(calls), 3)):
        next(turn)()
    if device.type == "cpu":
        began = time.perf_counter()
        next(turn)()
        return time.perf_counter() - began
    once_s = _round_s(turn, 3)
    count = max(3, min(200, math.ceil(_ROUND_S / once_s)))
    rounds = 3 if once_s > 5e-3 else _ROUNDS
    return statistics.median(_round_s(turn, count) for _ in range(rounds))


def _round_s(turn: Iterator[Call], count: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        next(turn)()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / count


def _sets(one_set_bytes: float) -> int:
    """How many sets of inputs alternate."""
    return max(1, min(16, math.ceil(_CACHE_BYTES / one_set_bytes)))


_Timed = tuple[dict[str, Any], dict[str, Sequence[Call]]]


def _products(device: torch.device, precision: str, small: bool) -> Iterator[_Timed]:
    kept = 2 if small else None
    rows = (32, 128, 512, 2048, 8192, 32768)[:kept]
    sides = (64, 256, 512, 1024, 2048, 4096, 12288)[:kept]
    dtype = _DTYPE[precision]
    for m, n, k in itertools.product(rows, sides, sides):
        if 2 * m * n * k > _MOST_OPERATIONS:
            continue
        sets = _sets((m * k + k * n) * dtype.itemsize)
        pairs = [
            (torch.randn(m, k, device=device, dtype=dtype), torch.randn(k, n, device=device,
             dtype=dtype))
            for _ in range(sets)
        ]  # fmt: skip
        out = torch.empty(m, n, device=device, dtype=dtype)
        calls = [_product(left, right, out) for left, right in pairs]
        yield {"kind": "product", "operation": "matmul", "m": m, "n": n, "k": k}, {"forward": calls}


def _product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Call:
    return lambda: torch.mm(left, right, out=out)


def _attention(device: torch.device, precision: str, small: bool) -> Iterator[_Timed]:
    dtype = _DTYPE[precision]
    shapes = itertools.product((1, 4, 16, 64), (6, 12, 16, 32), (196, 512, 1024, 2048, 8192))
    for (batch, heads, sequence), size in itertools.product(shapes, (64, 128)):
        if small and (batch, heads, sequence, size) != (1, 6, 196, 64):
            continue
        operations = 4 * batch * heads * sequence * sequence * size
        if operations > _MOST_OPERATIONS / (1 if precision == "bf16" else 8):
            continue
        shape = (batch, heads, sequence, size)
        needs = 3 * math.prod(shape) * dtype.itemsize
        if needs > _MOST_INPUT_BYTES:
            continue
        inputs = [
            [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
            for _ in range(min(_sets(needs), 4))
        ]
        gradient = torch.randn(shape, device=device, dtype=dtype)
        forward = [_attended(*triple) for triple in inputs]
        both = [_with_backward(attend, gradient, triple) for attend, triple in zip(forward, inputs,
                strict=True)]  # fmt: skip
        named = dict(zip(("batch", "heads", "sequence", "head_size"), shape, strict=True))
        yield (
            {"kind": "attention", "operation": "causal", **named},
            {"forward": forward, "both": both},
        )


def _attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Call:
    return lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True)


def _with_backward(forward: Call, gradient: torch.Tensor, inputs: Sequence[torch.Tensor]) -> Call:
    return lambda: torch.autograd.grad(forward(), inputs, gradient)


def _traffic(device: torch.device, precision: str, small: bool) -> Iterator[_Timed]:
    dtype = _DTYPE[precision]
    if precision == "tf32":
        return  # as in fp32
    for power in (16,) if small else range(16, 32):
        length = (1 << power) // dtype.itemsize
        yield from _of_length(device, dtype, length)


def _of_length(device: torch.device, dtype: torch.dtype, length: int) -> Iterator[_Timed]:
    """Operations over ``length`` values; ``bytes`` are of one input."""
    width = 256
    held = length * dtype.itemsize
    sets = min(_sets(held), 8)
    rows = [torch.randn(length // width, width, device=device, dtype=dtype, requires_grad=True)
            for _ in range(sets)]  # fmt: skip
    other = torch.randn(length // width, width, device=device, dtype=dtype)
    weight = torch.ones(width, device=device, dtype=dtype, requires_grad=True)
    bias = torch.zeros(width, device=device, dtype=dtype, requires_grad=True)
    named = {"kind": "traffic", "bytes": held}
    plain = [row.detach() for row in rows]
    yield {**named, "operation": "copy"}, {"forward": [_copied(row, other) for row in plain]}
    yield {**named, "operation": "add"}, {"forward": [_added(row, other) for row in plain]}
    differentiable: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "relu": F.relu,
        "gelu": F.gelu,
        "softmax": lambda row: F.softmax(row, dim=-1),
        "layer_norm": lambda row: F.layer_norm(row, (width,), weight, bias),
    }
    for name, operation in differentiable.items():
        forward = [_applied(operation, row) for row in rows]
        both = [_with_backward(call, other, (row,)) for call, row in zip(forward, rows,
                strict=True)]  # fmt: skip
        yield {**named, "operation": name}, {"forward": forward, "both": both}
    if length >= 1 << 16:
        images = [row.detach().view(-1, 64, 32, 32).requires_grad_() for row in rows]
        scale, shift = (torch.ones(64, device=device, requires_grad=True) for _ in range(2))

        def normalised(image: torch.Tensor) -> torch.Tensor:
            return F.batch_norm(image, None, None, scale, shift, training=True)

        forward = [_applied(normalised, image) for image in images]
        both = [_with_backward(call, other.view(-1, 64, 32, 32), (image,))
                for call, image in zip(forward, images, strict=True)]  # fmt: skip
        yield {**named, "operation": "batch_norm"}, {"forward": forward, "both": both}
    if dtype == torch.float32:
        parameter = torch.nn.Parameter(plain[0].clone())
        parameter.grad = other.clone()
        momentum = torch.optim.SGD([parameter], lr=1e-6, momentum=0.9)
        yield {**named, "operation": "sgd"}, {"forward": [momentum.step]}


def _copied(row: torch.Tensor, out: torch.Tensor) -> Call:
    return lambda: out.copy_(row)


def _added(row: torch.Tensor, out: torch.Tensor) -> Call:
    return lambda: torch.add(row, row, out=out)


def _applied(operation: Callable[[torch.Tensor], torch.Tensor], row: torch.Tensor) -> Call:
    return lambda: operation(row)
