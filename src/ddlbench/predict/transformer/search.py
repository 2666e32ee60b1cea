"""The best way to cut a transformer over so many devices, and how far that scales.

Every (tensor, data, pipeline, micro-batch, recomputation) that fits the memory is timed with 1F1B.
The shortest few are tried with the other schedules, replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.common.statistics import GB, HOURS, doubled
from ddlbench.predict.platforms import Accelerators
from ddlbench.predict.transformer.configurations import (
    RECOMPUTATIONS,
    Configurations,
    Shape,
    configurations,
    load_shape,
    step_operations,
)
from ddlbench.predict.transformer.step import PARTS, memory_bytes, steps

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
CHUNKS = (2, 4)
REPLAYED = 16
"""Cuts that are tried with schedules that need a replay."""
LARGEST_REPLAYED = 32
"""Stages of a pipeline that is replayed."""
USABLE = 0.94
"""Share of a device's memory that a training run gets; the rest are contexts, buffers, gaps."""
HALF = 0.5


@dataclass(frozen=True)
class Question:
    """What is trained, on which devices.

    Args:
        network: name of the transformer, or its file.
        platform: the devices.
        batch_size: samples of a step, over all devices.
        memory_gb: of a device; :data:`USABLE` of the platform's if left out.
        zero: stage of ZeRO.
        sequence_parallel: norms and dropout divided as well.
        recomputation: that is tried; all if left out.
        max_devices: that are tried.
    """

    network: str
    platform: Accelerators
    batch_size: int
    memory_gb: float | None = None
    zero: int = 0
    sequence_parallel: bool = False
    recomputation: str | None = None
    max_devices: int = 4096

    @cached_property
    def shape(self) -> Shape:
        return load_shape(self.network)

    @property
    def memory_bytes(self) -> float:
        """What a device's share may take."""
        if self.memory_gb:
            return self.memory_gb * GB.size
        return self.platform.device.memory_bytes * USABLE


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
        return HOURS.of(tokens / self.tokens_per_s) * self.devices


def best(question: Question, devices: int, *, replays: bool = True) -> list[Answer]:
    """Every configuration that fits, fastest first; of one cut only its fastest schedule.

    ``replays``: also with schedules that need a replay.

    Raises:
        ConfigError: a number is below 1, or nothing fits.
    """
    if devices < 1 or question.batch_size < 1:
        raise ConfigError(
            f"{devices} devices and a batch of {question.batch_size}: write numbers of 1 or more"
        )
    cuts = list(_cuts(question, devices))
    if not cuts:
        raise ConfigError(
            f"{devices} devices cannot share a batch of {question.batch_size} and "
            f"{question.shape.layers} layers evenly; change one of the numbers"
        )
    table = configurations(pd.DataFrame(cuts), "the search")
    needed = memory_bytes(table)
    fits = needed <= question.memory_bytes
    if not fits.any():
        raise ConfigError(
            f"nothing fits: {devices} devices need at least {GB.text(needed.min(), '.1f')} each of "
            f"{GB.text(question.memory_bytes, '.1f')}; take more devices, --zero 1 or a smaller "
            "batch"
        )
    answers = _timed(table.take(fits), question)
    if replays:
        answers += _replayed(answers, question)
    answers.sort(key=lambda answer: answer.step_s)
    return _one_each(answers)


def scaling(question: Question, least: int = 1) -> list[Answer]:
    """The best configuration with 1F1B on ``least`` devices, twice that, ... up to the most.

    Sizes where nothing fits are left out.

    Raises:
        ConfigError: nothing fits on any of them.
    """
    answers = []
    for devices in doubled(least, question.max_devices):
        with suppress(ConfigError):
            answers.append(best(question, devices, replays=False)[0])
    if not answers:
        raise ConfigError(
            f"nothing fits on {least} to {question.max_devices} devices; take more, or --zero 1"
        )
    return answers


def efficiencies(answers: Sequence[Answer]) -> list[float]:
    """Tokens a second and device, over those of the size where they are most."""
    rates = [answer.tokens_per_s / answer.devices for answer in answers]
    return [rate / max(rates) for rate in rates]


def _cuts(question: Question, devices: int) -> Iterator[dict[str, Any]]:
    shape = question.shape
    recomputations = [question.recomputation] if question.recomputation else RECOMPUTATIONS
    for tensor in doubled(1, question.platform.devices_per_node):
        if devices % tensor or shape.attention_heads % tensor:
            continue
        for pipeline in range(1, shape.layers + 1):
            if shape.layers % pipeline or (devices // tensor) % pipeline:
                continue
            data = devices // tensor // pipeline
            for micro_batch, again in product(MICRO_BATCHES, recomputations):
                if question.batch_size % (data * micro_batch) == 0:
                    yield {
                        **shape.columns(),
                        "global_batch": question.batch_size,
                        "tensor": tensor,
                        "data": data,
                        "pipeline": pipeline,
                        "micro_batch": micro_batch,
                        "recomputation": again,
                        "schedule": "1f1b",
                        "chunks": 1,
                        "zero": question.zero,
                        "sequence_parallel": int(question.sequence_parallel and tensor > 1),
                    }


def _timed(table: Configurations, question: Question) -> list[Answer]:
    predicted = steps(table, question.platform)
    seconds, needed, interval = predicted.seconds, memory_bytes(table), question.platform.interval
    peak = table.devices * question.platform.device.flops_per_s
    shape = question.shape
    operations = step_operations(
        table["global_batch"], shape.sequence_length, shape.layers, shape.hidden_size,
        shape.vocabulary, recomputation="none",
    )  # fmt: skip
    shares = operations / (seconds * peak)
    return [
        Answer(
            row=row,
            step_s=float(seconds[place]),
            low_s=float(seconds[place] * interval.low),
            high_s=float(seconds[place] * interval.high),
            memory_bytes=float(needed[place]),
            parts={name: float(predicted.parts[name][place]) for name in PARTS},
            peak_share=float(shares[place]),
        )
        for place, row in enumerate(table.each())
    ]


def _replayed(answers: Sequence[Answer], question: Question) -> list[Answer]:
    """The cuts that would be fastest without a bubble, with the schedules that make it shorter."""
    piped = [answer for answer in answers if 1 < answer.row["pipeline"] <= LARGEST_REPLAYED]
    piped.sort(key=lambda answer: answer.step_s - answer.parts["bubble"])
    rows = [row for answer in piped[:REPLAYED] for row in _other_schedules(answer.row)]
    if not rows:
        return []
    table = configurations(pd.DataFrame(rows), "the search")
    fits = memory_bytes(table) <= question.memory_bytes
    return _timed(table.take(fits), question) if fits.any() else []


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
    for answer in answers:
        seen.setdefault(tuple(answer.row[name] for name in names), answer)
    return list(seen.values())


def below_half(answers: Sequence[Answer]) -> int | None:
    """The first number of devices, above the best, whose efficiency is below a half; or None."""
    shares = efficiencies(answers)
    after = list(zip(answers, shares, strict=True))[shares.index(1.0) :]
    return next((answer.devices for answer, share in after if share < HALF), None)


def fewest(answers: Sequence[Answer], tokens: float, seconds: float) -> Answer | None:
    """The first answer that trains with ``tokens`` in so many seconds."""
    return next((answer for answer in answers if tokens / answer.tokens_per_s <= seconds), None)
