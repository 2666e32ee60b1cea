"""Layouts of a decoder over devices that nobody measured, the fastest that fit first.

::

    tensor x data x pipeline = devices;  micro-batch x micro-batches x data = global batch;
    stages of ZeRO that the software has with such a cut, 2 and 3 with neither tensor nor pipeline,
    3 over all replicas (FSDP) or those of a node (HSDP); experts over one replica or as many as can
    be; without and with full recomputation

Two layouts whose steps differ by less than the twins of published runs do are equally good
(docs/oracle.md).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.predict.constants import Array
from ddlbench.predict.hardware import Software, System
from ddlbench.predict.transformer.configurations import Shape
from ddlbench.predict.transformer.decoder_fit import LARGEST_FITTED, NO_PIPELINE, PIPELINE
from ddlbench.predict.transformer.decoder_memory import CANNOT_TELL, FITS, TOO_LARGE, memory_calls
from ddlbench.predict.transformer.decoder_time import step_time
from ddlbench.predict.transformer.decoders import Decoders, Machines, machines

EQUAL = 0.04
"""Steps closer than this are equal; the median of twins, which differ in ZeRO's stage alone."""
_LARGEST_MICRO_BATCH = 64
_ORDER = {FITS: 0, CANNOT_TELL: 1, TOO_LARGE: 2}
LAYOUT = (
    "tensor", "data", "pipeline", "micro_batch", "micro_batches", "zero_stage", "recomputation",
    "shards", "expert_parallel", "context",
)  # fmt: skip
"""Columns of a layout; 0 shards are all replicas."""


def layouts(
    shape: Shape, system: System, software: Software, global_batch: int, context: int = 1
) -> pd.DataFrame:
    """Every layout, those that fit first, the fastest of them first.

    Args:
        shape: of the decoder.
        system: devices and links.
        software: that trains.
        global_batch: sequences of a step.
        context: devices that share a sequence.

    Returns:
        One layout a row: :data:`LAYOUT`; ``step_s`` with its 90 % interval ``low_s``, ``high_s``
        (NaN where no run of the kind was held out); ``memory_bytes`` and ``least_memory_bytes`` of
        the fullest device; ``fits`` (:mod:`.decoder_memory`); ``tokens_per_s``; ``peak_share``, the
        model FLOPs utilisation of the data sheet's peak; ``equal_to_best``; ``beyond``: at least
        twice as many devices as any fitted run had.

    Raises:
        ConfigError: no layout divides the batch.
    """
    rows = pd.DataFrame(_cuts(shape, system, software, global_batch, context))
    if rows.empty:
        raise ConfigError(
            f"a batch of {global_batch} sequences is divided by no layout over {system.devices} "
            "devices; write a multiple of them"
        )
    table = decoders_of(shape, rows, system.devices_per_node)
    sheets = [system.device] * len(rows)
    where = machines(sheets, system.fabric, software, table["devices_per_node"])
    calls = memory_calls(table, software, where.memory_bytes)
    seconds = step_time(table, where, software).seconds
    low_s, high_s = _interval(table, where, software, seconds)
    tokens = global_batch * shape.sequence_length
    # As PaLM counts (appendix B), and a measured cell's mfu: scores and mixing, no position masked.
    attention = 2 * shape.layers * shape.attention_width * shape.sequence_length
    operations = 6 * (_products(shape, table) + attention)
    peak = system.devices * where.peak_flops_per_s
    rows = rows.assign(
        step_s=seconds,
        low_s=low_s,
        high_s=high_s,
        memory_bytes=calls.most_bytes,
        least_memory_bytes=calls.least_bytes,
        fits=calls.answers,
        tokens_per_s=tokens / seconds,
        peak_share=tokens * operations / seconds / peak,
        beyond=system.devices >= 2 * LARGEST_FITTED,
    )
    order = rows.assign(rank=rows["fits"].map(_ORDER)).sort_values(["rank", "step_s"]).index
    ranked = rows.loc[order].reset_index(drop=True)
    near = ranked["step_s"] <= ranked["step_s"].iloc[0] * (1 + EQUAL)
    return ranked.assign(equal_to_best=near & (ranked["fits"] == ranked["fits"].iloc[0]))


def _products(shape: Shape, table: Decoders) -> float:
    """Weights that a token is multiplied with: of layers and of the logits."""
    layers = float(table.active_parameters[0]) * shape.layers
    return layers + float(table.embedding_parameters[0])


def decoders_of(shape: Shape, rows: pd.DataFrame, devices_per_node: int) -> Decoders:
    """Layouts of one shape as columns.

    Args:
        shape: of all rows.
        rows: columns :data:`LAYOUT`.
        devices_per_node: of the cluster.
    """
    same = ("layers", "hidden_size", "attention_heads", "vocabulary", "sequence_length",
            "tied_embedding", "gated", "attention_width", "experts", "active_experts")  # fmt: skip
    usual = {
        **{name: getattr(shape, name) for name in same},
        "key_value_heads": shape.key_value_heads or shape.attention_heads,
        "feed_forward_size": shape.wide,
        "devices_per_node": devices_per_node,
    }
    columns: dict[str, Array] = {
        name: np.full(len(rows), float(value)) for name, value in usual.items()
    }
    numbers = [name for name in LAYOUT if name != "recomputation"]
    columns |= {name: rows[name].to_numpy(dtype=float) for name in numbers}
    return Decoders({**columns, "recomputation": rows["recomputation"].to_numpy()})


def _interval(
    table: Decoders, where: Machines, software: Software, seconds: Array
) -> tuple[Array, Array]:
    """From the shortest to the longest step that errors or a constant make probable.

    The errors are those of held-out runs of the same kind. What decides a step may have decided
    none of them, as the host of a small model; then the interval of that constant tells.
    """
    kinds = np.where(table["pipeline"] > 1, PIPELINE, NO_PIPELINE).tolist()
    known = [software.intervals.get(kind) for kind in kinds]
    ends = np.array([(of.low, of.high) if of else (np.nan, np.nan) for of in known])
    shortest, longest = seconds * ends[:, 0], seconds * ends[:, 1]
    for name, constant in software.constants.items():
        for value in filter(None, (constant.low, constant.high)):
            step_s = step_time(table, where, software.with_constants({name: value})).seconds
            shortest, longest = np.minimum(shortest, step_s), np.maximum(longest, step_s)
    return shortest, longest


def _cuts(
    shape: Shape, system: System, software: Software, global_batch: int, context: int
) -> Iterator[dict[str, Any]]:
    """Layouts that divide heads, layers and batch, and whose micro-batches are enough for 1F1B."""
    if system.devices % context:
        return
    devices = system.devices // context
    heads = min(shape.attention_heads, shape.key_value_heads or shape.attention_heads)
    for tensor in _divisors(devices):
        if heads % tensor or (tensor > 1 and not software.tensor):
            continue
        for pipeline in _divisors(devices // tensor):
            if (pipeline > 1 and not software.pipeline) or pipeline > shape.layers:
                continue
            data = devices // (tensor * pipeline)
            if global_batch % data:
                continue
            cut = {"tensor": tensor, "data": data, "pipeline": pipeline, "context": context}
            sharings = _sharings(software, cut, system.devices_per_node)
            experts = sorted({1, math.gcd(data, shape.experts)})
            for batch, sharing, held, again in itertools.product(
                _batches(global_batch // data, pipeline), sharings, experts, ("none", "full")
            ):
                further = {"expert_parallel": held, "recomputation": again}
                yield {**cut, **batch, **sharing, **further}


def _sharings(software: Software, cut: Mapping[str, int], per_node: int) -> list[dict[str, int]]:
    """Stages of ZeRO, and over how many replicas; 0 are all."""
    replicas = cut["data"] * cut["context"]
    if replicas == 1:
        return [{"zero_stage": 0, "shards": 0}]
    whole = cut["tensor"] == cut["pipeline"] == 1
    cut_stages = software.cut_zero_stages
    stages: list[int] = [stage for stage in software.zero_stages if whole or stage in cut_stages]
    sharings = [{"zero_stage": stage, "shards": 0} for stage in stages]
    if 3 in stages and replicas > per_node > 1:
        sharings.append({"zero_stage": 3, "shards": per_node})
    return sharings


def _batches(share: int, stages: int) -> Iterator[dict[str, int]]:
    """Micro-batches of a replica's share, at least as many as fill the other stages."""
    for size in range(1, min(share, _LARGEST_MICRO_BATCH) + 1):
        if share % size == 0 and share // size >= stages - 1:
            yield {"micro_batch": size, "micro_batches": share // size}


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
