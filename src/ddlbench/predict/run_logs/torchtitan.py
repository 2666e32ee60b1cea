"""Logs of torchtitan.

::

    [rank0]:[titan] 2025-07-21 15:57:43,242 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 ...
    ... Building llama3 8B with TransformerModelArgs(dim=4096, n_layers=32, n_heads=32, ...)
    ... Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]
    ... local batch size 1, global batch size 8, ... sequence length 8192, total steps 1000 ...
    ... step: 22  loss:  6.2250  memory:  1.41GiB(1.79%)  tps: 5,856  tflops: 339.16  mfu: 34.29%
    ... validate step: 22  loss:  6.1000  memory:  1.41GiB(1.79%)  tps: 18,000

``tps`` (``wps`` in 2024) are tokens per second and device, over all steps since the last line. A
validation does not train. Since the end of 2025 the mesh reads ``Building device mesh with
parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1, ep=1``, where experts take devices of the
others. Every rank may print a line for a step: their median counts. The seconds of a step are the
batch's tokens over the tokens per second of all devices. Where the log tells no batch or devices,
they are the time between two lines over the steps between them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from ddlbench.common.captured_text import uncoloured_lines
from ddlbench.common.statistics import grouped
from ddlbench.predict.run_logs.logged_run import (
    AGAIN,
    COMPLETE,
    CUT,
    ONLY_STEP,
    OUT_OF_MEMORY,
    TORCHTITAN,
    LoggedRun,
    after_warm_up,
    begins_again,
    median_of,
    out_of_memory,
    real,
    settle,
    whole,
    whole_lines,
)

_STEP = re.compile(
    r"(?<!validate )\bstep:\s*(\d{1,12})\s+loss:\s*\S+.*?\bmemory:\s*([\d.]+)GiB\([\d.]+%\)"
    r"\s+(?:tps|wps):\s*([\d,]+)(?:\s+tflops:\s*([\d.,]+))?"
)
_VALIDATION = re.compile(r"\bvalidate step:\s*(\d{1,12})\b")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})")
_DEVICE = re.compile(r"(?:CUDA|HIP|\w+) capacity: (.+?) with [\d.]+GiB memory")
_MODEL = re.compile(r"Building (\S+ \S+) with \w+\(")
_SHAPE = re.compile(r"\b(dim|n_layers|n_heads|n_kv_heads|vocab_size|hidden_dim)=(\d+)")
_SHAPES = {
    "dim": "hidden_size",
    "n_layers": "layers",
    "n_heads": "attention_heads",
    "n_kv_heads": "key_value_heads",
    "vocab_size": "vocabulary",
    "hidden_dim": "feed_forward",
}
_TIED = "enable_weight_tying=True"
_SIZE = re.compile(r"Model .*?size: ([\d,]+) total parameters")
_MESH = re.compile(r"Building \d+-D device mesh with \[(.*?)\], \[([\d, ]{1,60})\]")
_PARALLELISM = re.compile(r"Building device mesh with parallelism: (\w+=\d+(?:, \w+=\d+)*)")
_DATA = ("dp_replicate", "dp_shard", "dp")
_OTHERS = {"tp": "tensor", "pp": "pipeline", "cp": "context"}
_BATCH = re.compile(r"global batch size (\d+)")
_LOCAL = re.compile(r"local batch size (\d+)")
_SEQUENCE = re.compile(r"sequence length (\d+)")
_TOTAL = re.compile(r"total steps (\d{1,12})")
_DONE = re.compile(r"Training completed")
_Values = tuple[float, float, float, float]  # tokens per second, TFLOPS, GiB, time of the line


def lines_of(text: str) -> int:
    """How many lines only torchtitan prints."""
    patterns = (_STEP, _MESH, _PARALLELISM)
    return sum(any(p.search(line) for p in patterns) for line in uncoloured_lines(text))


def read(text: str, source: str) -> LoggedRun:
    """The run of a log."""
    lines = whole_lines(text)
    logged = list(_steps(lines))
    by_step = grouped(logged)
    validated = {int(match[1]) for line in lines if (match := _VALIDATION.search(line))}
    numbers = sorted(by_step)
    values = _settings(lines, source)
    medians = {step: [*map(median, zip(*by_step[step], strict=True))] for step in numbers}
    later = after_warm_up(numbers)
    devices, batch = values.get("devices"), values.get("global_batch")
    sequence = values.get("sequence_length")
    if devices and batch and sequence:
        rates = [medians[step][0] for step in later]
        step_s = [batch * sequence / (devices * rate) for rate in rates if rate > 0]
        note = ONLY_STEP if len(numbers) == 1 else ""
    else:
        step_s = _by_clock(numbers, medians, validated)
        note = (
            "step_s by the clock of the log"
            if step_s
            else "neither batch and devices nor times: no step_s"
        )
    if begins_again([number for number, _ in logged]):
        again = f"{AGAIN}; of a step its median counts"
        note = f"{note}; {again}" if note else again
    total = next((int(m[1]) for line in lines if (m := _TOTAL.search(line))), 0)
    if numbers and (0 < total <= numbers[-1] or any(_DONE.search(line) for line in lines)):
        status = COMPLETE
    else:
        status = OUT_OF_MEMORY if out_of_memory(text) else CUT
    memory_gib = max((row[2] for rows in by_step.values() for row in rows), default=0.0)
    return LoggedRun(
        source=source,
        log=TORCHTITAN,
        status=status,
        step_s=median_of(step_s),
        steps_counted=len(step_s),
        tokens_per_s_a_device=median_of(medians[step][0] for step in later),
        tflops_a_device=median_of(medians[step][1] for step in later),
        memory_gib=memory_gib or None,
        note=note,
        **values,
    )


def _steps(lines: Sequence[str]) -> Iterator[tuple[int, _Values]]:
    """The number and the values of each logged step, in the order of lines."""
    for line in lines:
        if (match := _STEP.search(line)) and (tokens := real(match[3])):
            memory, tflops = real(match[2]) or 0.0, real(match[4] or "") or 0.0
            yield int(match[1]), (tokens, tflops, memory, _seconds(line))


def _seconds(line: str) -> float:
    match = _TIME.search(line)
    if match is None:
        return math.nan
    try:
        return datetime.fromisoformat(match[1]).timestamp() + int(match[2]) / 1e3
    except ValueError:
        return math.nan


def _by_clock(
    numbers: Sequence[int], medians: Mapping[int, Sequence[float]], validated: Collection[int]
) -> list[float]:
    """Seconds a step, after warm-up, between logged steps that no validation separates."""
    spans = [
        (medians[b][3] - medians[a][3]) / (b - a)
        for a, b in pairwise(numbers)
        if not any(a <= step < b for step in validated)
    ]
    return after_warm_up([span for span in spans if span > 0])


def _settings(lines: Sequence[str], source: str) -> dict[str, Any]:
    """Shape, cut and batch."""
    settings: dict[str, Any] = {}
    for line in lines:
        if match := _DEVICE.search(line):
            settings.setdefault("accelerator", match[1])
        if match := _MODEL.search(line):
            settings.setdefault("model", match[1])
            settings.setdefault("tied_embedding", "yes" if _TIED in line else "no")
            for name, word in _SHAPE.findall(line):
                if size := whole(word):
                    settle(settings, _SHAPES[name], size, source)
        if (match := _SIZE.search(line)) and (count := real(match[1])):
            settings.setdefault("parameters_billion", count / 1e9)
        for name, size in _cut(line).items():
            settle(settings, name, size, source)
        if (match := _BATCH.search(line)) and (size := whole(match[1])):
            settle(settings, "global_batch", size, source)
        for name, pattern in (("micro_batch", _LOCAL), ("sequence_length", _SEQUENCE)):
            if (match := pattern.search(line)) and (size := whole(match[1])):
                settings.setdefault(name, size)
    return settings


def _cut(line: str) -> dict[str, int]:
    """Devices and their groups, where the line says them."""
    if match := _PARALLELISM.search(line):
        groups = dict(word.split("=") for word in match[1].split(", "))
        mesh = {name: int(size) for name, size in groups.items() if name in {*_DATA, *_OTHERS}}
    elif match := _MESH.search(line):
        dimensions = [name.strip(" '\"") for name in match[1].split(",")]
        counts = [int(size) for size in match[2].split(",") if size.strip()]
        if len(dimensions) != len(counts) or not set(dimensions) <= {*_DATA, *_OTHERS}:
            return {}
        mesh = dict(zip(dimensions, counts, strict=True))
    else:
        return {}
    data = math.prod(mesh.get(name, 1) for name in _DATA)
    others = {word: mesh.get(name, 1) for name, word in _OTHERS.items()}
    return {"devices": math.prod(mesh.values()), "data": data, **others}
