"""The best way to cut a transformer over so many devices, and how far that scales.

Every (tensor, data, pipeline, micro-batch, recomputation) that fits the memory is timed with 1F1B.
The shortest few are tried with the other schedules, replayed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.common.units import GB
from ddlbench.predict.transformer.accelerators import Accelerators
from ddlbench.predict.transformer.configurations import Configurations, configurations
from ddlbench.predict.transformer.counts import RECOMPUTATIONS, step_operations
from ddlbench.predict.transformer.memory import memory_bytes
from ddlbench.predict.transformer.shapes import Shape
from ddlbench.predict.transformer.step import PARTS, steps

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
CHUNKS = (2, 4)
REPLAYED = 16
"""Cuts that are tried with schedules that need a replay."""
LARGEST_REPLAYED = 32
"""Stages of a pipeline that is replayed."""
USABLE = 0.94
"""Share of a device's memory that a training run gets; the rest are contexts, buffers, gaps."""
HALF = 0.5
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Question:
    """What is trained, on which devices.

    Args:
        shape: of the transformer.
        platform: its devices.
        batch: samples of a step, over all devices.
        memory_bytes: that a device's share may take.
        zero: stage of ZeRO.
        sequence_parallel: norms and dropout divided as well.
        recomputations: that are tried.
        replays: whether schedules that need a replay are tried.
    """

    shape: Shape
    platform: Accelerators
    batch: int
    memory_bytes: float
    zero: int = 0
    sequence_parallel: bool = False
    recomputations: Sequence[str] = RECOMPUTATIONS
    replays: bool = True


@dataclass(frozen=True)
class Answer:
    """One configuration.

    Args:
        row: its columns.
        step_s: predicted.
        low_s, high_s: 90 % interval of the platform's held-out rows.
        memory_bytes: of the fullest device.
        parts: seconds of the step by part.
        peak_share: operations that the model needs (no recomputation) over those that the devices
            could do in that time.
    """

    row: Mapping[str, Any]
    step_s: float
    low_s: float
    high_s: float
    memory_bytes: float
    parts: Mapping[str, float]
    peak_share: float

    @property
    def devices(self) -> int:
        return int(self.row["tensor"] * self.row["data"] * self.row["pipeline"])

    @property
    def tokens_per_s(self) -> float:
        return float(self.row["global_batch"] * self.row["sequence_length"] / self.step_s)

    def device_hours(self, tokens: float) -> float:
        """To train with so many tokens."""
        return tokens / self.tokens_per_s * self.devices / SECONDS_PER_HOUR


def best(asked: Question, devices: int) -> list[Answer]:
    """Every configuration that fits, fastest first; of one cut only its fastest schedule.

    Raises:
        ConfigError: a number is below 1, or nothing fits.
    """
    if devices < 1 or asked.batch < 1:
        raise ConfigError(
            f"{devices} devices and a batch of {asked.batch}: write numbers of 1 or more"
        )
    cuts = list(_cuts(asked, devices))
    if not cuts:
        raise ConfigError(
            f"{devices} devices cannot share a batch of {asked.batch} and {asked.shape.layers} "
            "layers evenly; change one of the numbers"
        )
    table = configurations(pd.DataFrame(cuts), "the search")
    needed = memory_bytes(table)
    fits = needed <= asked.memory_bytes
    if not fits.any():
        raise ConfigError(
            f"nothing fits: {devices} devices need at least {GB.text(needed.min(), '.1f')} each of "
            f"{GB.text(asked.memory_bytes, '.1f')}; take more devices, --zero 1 or a smaller batch"
        )
    answers = _timed(table.take(fits), asked)
    if asked.replays:
        answers += _replayed(answers, asked)
    answers.sort(key=lambda one: one.step_s)
    return _one_each(answers)


def scaling(asked: Question, sizes: Sequence[int]) -> list[Answer]:
    """The best configuration at each number of devices; sizes where nothing fits are left out."""
    found = []
    for devices in sizes:
        try:
            found.append(best(asked, devices)[0])
        except ConfigError:
            continue
    if not found:
        raise ConfigError(
            f"nothing fits on {sizes[0]} to {sizes[-1]} devices; take more, or --zero 1"
        )
    return found


def efficiencies(found: Sequence[Answer]) -> list[float]:
    """Tokens a second and device, over those of the size where they are most."""
    rates = [one.tokens_per_s / one.devices for one in found]
    return [rate / max(rates) for rate in rates]


def powers(most: int, least: int = 1) -> list[int]:
    """Powers of two between ``least`` and ``most``."""
    return [2**exponent for exponent in range(int(math.log2(most)) + 1) if 2**exponent >= least]


def _cuts(asked: Question, devices: int) -> Iterator[dict[str, Any]]:
    shape = asked.shape
    for tensor in powers(asked.platform.devices_per_node):
        if devices % tensor or shape.attention_heads % tensor:
            continue
        for pipeline in range(1, shape.layers + 1):
            if shape.layers % pipeline or (devices // tensor) % pipeline:
                continue
            data = devices // tensor // pipeline
            for micro_batch, again in product(MICRO_BATCHES, asked.recomputations):
                if asked.batch % (data * micro_batch) == 0:
                    yield {
                        **shape.columns(),
                        "global_batch": asked.batch,
                        "tensor": tensor,
                        "data": data,
                        "pipeline": pipeline,
                        "micro_batch": micro_batch,
                        "recomputation": again,
                        "schedule": "1f1b",
                        "chunks": 1,
                        "zero": asked.zero,
                        "sequence_parallel": int(asked.sequence_parallel and tensor > 1),
                    }


def _timed(table: Configurations, asked: Question) -> list[Answer]:
    found = steps(table, asked.platform)
    seconds, needed = found.seconds, memory_bytes(table)
    low, high = asked.platform.interval
    peak = table.devices * asked.platform.device["flops_per_s"]
    shape = asked.shape
    operations = step_operations(
        table["global_batch"], shape.sequence_length, shape.layers, shape.hidden_size,
        shape.vocabulary, recomputation="none",
    )  # fmt: skip
    shares = operations / (seconds * peak)
    return [
        Answer(
            row=row,
            step_s=float(seconds[place]),
            low_s=float(seconds[place] * low),
            high_s=float(seconds[place] * high),
            memory_bytes=float(needed[place]),
            parts={name: float(found.parts[name][place]) for name in PARTS},
            peak_share=float(shares[place]),
        )
        for place, row in enumerate(table.each())
    ]


def _replayed(answers: Sequence[Answer], asked: Question) -> list[Answer]:
    """The cuts that would be fastest without a bubble, with the schedules that make it shorter."""
    piped = [one for one in answers if 1 < one.row["pipeline"] <= LARGEST_REPLAYED]
    piped.sort(key=lambda one: one.step_s - one.parts["bubble"])
    rows = [row for one in piped[:REPLAYED] for row in _other_schedules(one.row)]
    if not rows:
        return []
    table = configurations(pd.DataFrame(rows), "the search")
    fits = memory_bytes(table) <= asked.memory_bytes
    return _timed(table.take(fits), asked) if fits.any() else []


def _other_schedules(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    pipeline, layers = int(row["pipeline"]), int(row["layers"])
    micro_batches = int(row["global_batch"]) // (int(row["data"]) * int(row["micro_batch"]))
    if layers % (2 * pipeline) == 0:
        yield {**row, "schedule": "zero-bubble-v", "chunks": 2}
    for chunks in CHUNKS:
        if layers % (chunks * pipeline) == 0 and micro_batches % pipeline == 0:
            yield {**row, "schedule": "interleaved-1f1b", "chunks": chunks}
    if micro_batches % pipeline == 0:
        yield {**row, "schedule": "interleaved-zero-bubble", "chunks": 1}


def _one_each(answers: Sequence[Answer]) -> list[Answer]:
    """The first answer of every cut and recomputation."""
    seen: dict[tuple[Any, ...], Answer] = {}
    names = ("tensor", "data", "pipeline", "micro_batch", "recomputation")
    for one in answers:
        seen.setdefault(tuple(one.row[name] for name in names), one)
    return list(seen.values())


def without_replays(asked: Question) -> Question:
    """The same question, answered with 1F1B alone."""
    return replace(asked, replays=False)


def below_half(found: Sequence[Answer]) -> int | None:
    """The first number of devices, above the best, whose efficiency is below a half; or None."""
    shares = efficiencies(found)
    after = list(zip(found, shares, strict=True))[shares.index(1.0) :]
    return next((one.devices for one, share in after if share < HALF), None)


def fewest(found: Sequence[Answer], tokens: float, seconds: float) -> Answer | None:
    """The first answer that trains with ``tokens`` in so many seconds."""
    return next((one for one in found if tokens / one.tokens_per_s <= seconds), None)
