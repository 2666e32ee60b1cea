"""Memory of one device that trains a decoder: does a layout fit?

Bytes of a device of stage i; symbols as in :mod:`.decoders`, u = s b h items, g = key and value
heads over heads, z = devices that share the optimizer's state, q = min(p - i, m) micro-batches::

    state    = 2 P + G P + 12 P / z + B P [d > 1]     weights, gradients, master and Adam, buckets
    layer    = (14 + 4 g) u / t + 8 s b f / t         norms (4), queries (2), keys and values (4 g),
                                                      attention's output and its copy (4), second
                                                      norm (4); gate and up (4 f), silu (2 f),
                                                      product (2 f). GELU: 4 f, so 16 u. Experts:
                                                      k times, and 4 k u of tokens sent to them
    gathered = 4 u  a layer                           if gathered inputs are kept
    passes   = state + fragmentation q L_i (layer + gathered)
               + logit_bytes s b V / t + gather_bytes u [t > 1]
    update   = state + T P / z                        temporaries of the optimizer
    memory   = context_bytes + max(passes, update)

Weights are in half precision. In single precision they are 4 P, and are their own masters: 8 P / z.
Gradients have G bytes, buffers of messages B, temporaries T, as the software sets them; with SGD's
momentum instead of Adam's two moments 4 P / z are missing. Flash attention keeps no scores; without
it, and without selective recomputation, they are 5 a s^2 b / t. ZeRO 2 divides gradients, ZeRO 3
weights, too, and holds two layers' weights gathered; experts that x replicas share it divides over
z / x. Full recomputation keeps 2 u / t a layer, and one layer's activations where a stage has
layers.

Sources: Korthikanti et al. (2022), section 4; ZeRO (Rajbhandari et al., SC 2020), section 3; Dao et
al., FlashAttention (2022), section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlbench.predict.constants import Array
from ddlbench.predict.hardware import RESERVED_BYTES, Software
from ddlbench.predict.transformer.decoders import Decoders

CONSTANTS = ("logit_bytes", "gather_bytes", "fragmentation", "context_bytes")
_HALF = 2.0
SCORE_BYTES = 5.0
"""Of a score without flash attention: softmax (2), dropout (2) and its mask (1)."""
SCATTER = 0.065
"""Mean error of the memory of published runs, each model held out (docs/oracle.md)."""
FITS, TOO_LARGE, CANNOT_TELL = "fits", "does not fit", "cannot tell"


@dataclass(frozen=True)
class MemoryCalls:
    """Whether each layout fits.

    Args:
        least_bytes, most_bytes: of the fullest device, with gathered inputs gathered again, or
            kept; equal where the software's setting is known.
        answers: :data:`FITS`, :data:`TOO_LARGE` or :data:`CANNOT_TELL`, (n,).
    """

    least_bytes: Array
    most_bytes: Array
    answers: Array


def memory_bytes(table: Decoders, software: Software, kept: Array, stage: Array) -> Array:
    """Bytes of one device of a stage.

    Args:
        table: n decoders.
        software: constants and precision of gradients.
        kept: 1 where gathered inputs are kept, 0 where they are gathered again, (n,).
        stage: of each row, (n,); 0 is the first.
    """
    rows = np.arange(len(table)), stage
    parameters = table.stage_parameters(software.stage_cut)[rows]
    experts = table.stages(software.stage_cut).layers[rows] * table.held_experts
    layer = table.held_parameters - table.held_experts
    state, temporary = np.zeros(len(table)), np.zeros(len(table))
    for held, of_layer, sharers in (
        (parameters - experts, layer, table.sharers),
        (experts, table.held_experts, table.expert_sharers),
    ):
        gathered = 2 * software.item_bytes * of_layer * (_shards(table, 3, sharers) > 1)
        state += held * _state_bytes(table, software, sharers) + gathered
        temporary += held * software.temporary_bytes / _shards(table, 1, sharers)
    passes = state + _passes_bytes(table, software, kept, stage)
    update = state + temporary
    return np.asarray(software.constant("context_bytes") + np.maximum(passes, update))


def fullest_bytes(table: Decoders, software: Software, kept: Array) -> Array:
    """Bytes of the fullest of the first, the second and the last stage."""
    last = table["pipeline"].astype(int) - 1
    stages = (np.zeros_like(last), np.minimum(1, last), last)
    return np.max([memory_bytes(table, software, kept, stage) for stage in stages], axis=0)


def kept_inputs(table: Decoders, software: Software) -> tuple[Array, Array]:
    """The least and the most of ``kept`` that the software's setting leaves open."""
    low = np.full(len(table), 1.0 if software.gathered_inputs == "keep" else 0.0)
    high = np.full(len(table), 0.0 if software.gathered_inputs == "again" else 1.0)
    return low, high


def memory_calls(table: Decoders, software: Software, capacity_bytes: Array) -> MemoryCalls:
    """Say which layouts fit.

    1F1B needs p - 1 micro-batches: with fewer a layout counts as one that does not fit.

    Args:
        table: n decoders.
        software: whose ``gathered_inputs`` may be unknown.
        capacity_bytes: of a device, (n,); :data:`RESERVED_BYTES` of it are not to be had.
    """
    low, high = kept_inputs(table, software)
    least, most = fullest_bytes(table, software, low), fullest_bytes(table, software, high)
    room = capacity_bytes - RESERVED_BYTES
    short = table["micro_batches"] < table["pipeline"] - 1
    sure = most * (1 + SCATTER) <= room
    answers = np.where(short | (least > room), TOO_LARGE, np.where(sure, FITS, CANNOT_TELL))
    return MemoryCalls(least, most, answers)


def _shards(table: Decoders, stage: int, sharers: Array) -> Array:
    """Devices that share what ZeRO's ``stage`` divides."""
    return np.asarray(np.where(table["zero_stage"] >= stage, sharers, 1.0))


def _state_bytes(table: Decoders, software: Software, sharers: Array) -> Array:
    """Of a parameter that so many replicas share, on one device."""
    return np.asarray(
        software.item_bytes / _shards(table, 3, sharers)
        + software.gradient_bytes / _shards(table, 2, sharers)
        + (software.moment_bytes + software.master_bytes) / _shards(table, 1, sharers)
        + software.message_buffer_bytes * ((table.replicas > 1) & (table["zero_stage"] < 3))
    )


def _passes_bytes(table: Decoders, software: Software, kept: Array, stage: Array) -> Array:
    """Activations, logits and transients of one device."""
    stages, tensor = table.stages(software.stage_cut), table["tensor"]
    items = table.tokens * table["hidden_size"]
    flight = np.minimum(table["pipeline"] - stage, table["micro_batches"])
    layer = layer_bytes(table, flash=software.flash_attention) + 4 * items * kept * (tensor > 1)
    full = table["recomputation"] == "full"
    layers = stages.layers[np.arange(len(table)), stage]
    again = layer * (full & (layers > 0))  # the last stage may hold the output layer alone
    activations = flight * layers * np.where(full, 2 * items / tensor, layer) + again
    logits = software.constant("logit_bytes") * table.tokens * table["vocabulary"] / tensor
    transient = software.constant("gather_bytes") * items * (tensor > 1)
    longer = software.constant("fragmentation") * software.item_bytes / _HALF
    kept_bytes = longer * activations
    return np.asarray(kept_bytes + logits * (stage == stages.output) + transient)


def layer_bytes(table: Decoders, *, flash: bool = True) -> Array:
    """Activations in half precision that one layer keeps of a micro-batch, on one device."""
    items, active = table.tokens * table["hidden_size"], table["active_experts"]
    feed = np.where(table["gated"] > 0, 8.0, 4.0) * table.tokens * table["feed_forward_size"]
    sent = np.where(table["experts"] > 1, 4.0 * active * items, 0.0)
    scores = table["attention_heads"] * table.tokens * table["sequence_length"]
    # Queries, and the output of attention with its copy, are as wide as all heads.
    heads = (6 + 4 * table.groups) * table.tokens * table.attention_width
    kept = 8 * items + heads + active * feed + sent
    computed_again = flash | (table["recomputation"] == "selective")
    kept = kept + np.where(computed_again, 0.0, SCORE_BYTES) * scores
    return np.asarray(kept / table["tensor"])
