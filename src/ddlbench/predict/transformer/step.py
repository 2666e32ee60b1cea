"""One training step of a transformer that is cut over tensor x data x pipeline devices.

::

    step = passes of all micro-batches through the stages      compute, tensor parallelism, host,
                                                               sends, bubble
         + sum of the gradients over the replicas              data parallelism
         + sum of the embedding's gradient, first + last stage embedding
         + update                                              of weights and the optimizer's state

A stage waits for one message in each pass (Megatron's 1F1B sends and receives before it goes on),
and sends 1/t of the activation from each of its t devices, gathered again behind the hop. Gradients
are summed when the last micro-batch is done: nothing hides them. ZeRO 1 and 2 scatter gradients and
gather weights, as many bytes as an all-reduce; ZeRO 3 gathers weights before every pass, which the
pass before hides as far as it is long enough.

Sources: Megatron-LM (Narayanan et al., SC 2021), sections 2 and 4; ZeRO (Rajbhandari et
al., SC 2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ddlbench.predict.measured_steps import Array
from ddlbench.predict.platform_file import Accelerators
from ddlbench.predict.transformer.configurations import Configurations
from ddlbench.predict.transformer.counts import embedding_parameters, layer_parameters
from ddlbench.predict.transformer.layer_time import (
    ATTENTION,
    HOST,
    MATMUL,
    MEMORY,
    TENSOR,
    LayerTimes,
    Pass,
    all_reduce_s,
    layer_times,
    reduce_scatter_s,
)
from ddlbench.predict.transformer.pipeline import FORMULA, chunks_of, replayed_s
from ddlbench.predict.transformer.rank_order import data_rings, ends_rings, hop_senders

SENDS, BUBBLE, DATA, EMBEDDING, UPDATE = (
    "sends", "bubble", "data parallelism", "tied embedding", "update",
)  # fmt: skip
PARTS = (MATMUL, ATTENTION, MEMORY, HOST, TENSOR, SENDS, BUBBLE, DATA, EMBEDDING, UPDATE)


@dataclass(frozen=True)
class Steps:
    """Seconds of each configuration's step, by part (:data:`PARTS`)."""

    parts: Mapping[str, Array]

    @property
    def seconds(self) -> Array:
        return np.asarray(np.sum([self.parts[name] for name in PARTS], axis=0))


def steps(table: Configurations, platform: Accelerators) -> Steps:
    """The step of every configuration.

    Raises:
        InvalidSchedule: a schedule does not fit a configuration's micro-batches.
    """
    times = layer_times(table, platform)
    hop_s = _hop_s(table, platform)
    layer = times.forward.plus(times.backward)
    ends = times.embedding.plus(times.head)
    whole = layer.times(table["layers"]).plus(ends)  # one micro-batch through all stages
    share = table.micro_batches / table["pipeline"]
    work = whole.times(share)  # of the mean device
    pipeline_s, sends_s = _pipeline_s(table, times, hop_s)
    parts = dict(work.parts)
    parts[SENDS] = sends_s
    parts[BUBBLE] = pipeline_s - sends_s - work.seconds
    parts[DATA] = _data_s(table, platform, layer)
    rings = ends_rings(table, platform.devices_per_node)
    words = table.vocabulary * table["hidden_size"] / table["tensor"]
    parts[EMBEDDING] = all_reduce_s(rings, table["gradient_bytes"] * words, platform)
    rate = platform.device.memory_bytes_per_s * platform.constant("update_efficiency")
    owners = np.where(table["zero"] > 0, table["data"], 1.0)
    parts[UPDATE] = table.bytes_of("update") * stage_parameters(table) / owners / rate
    return Steps(parts)


def stage_parameters(table: Configurations) -> Array:
    """Parameters of the fullest device: its layers, and the embedding that both end stages hold."""
    hidden, tensor = table["hidden_size"], table["tensor"]
    embedding = embedding_parameters(hidden, table.vocabulary / tensor, table["sequence_length"])
    layers = table.stage_layers * layer_parameters(hidden) / tensor
    return np.asarray(layers + embedding)


def _pipeline_s(table: Configurations, times: LayerTimes, hop_s: Array) -> tuple[Array, Array]:
    """Seconds of all passes, and of the messages among them."""
    layer_s = times.forward.seconds + times.backward.seconds
    stages, micro_batches = table["pipeline"], table.micro_batches
    fullest = table.stage_layers * layer_s
    # The logits are on the last stage, the embedding on the first; with one stage on the same.
    alone = stages == 1
    first = fullest + times.embedding.seconds
    last = fullest + times.head.seconds + np.where(alone, times.embedding.seconds, 0.0)
    slot = np.where(alone, last, np.maximum(first, last)) + 2 * hop_s
    whole = table["layers"] * layer_s + times.embedding.seconds + times.head.seconds
    seconds = whole + 2 * hop_s * stages + (micro_batches - 1) * slot
    sends_s = 2 * hop_s * (stages + micro_batches - 1)
    by_formula = np.isin(table["schedule"].astype(str), FORMULA) | alone
    groups = table.rows.loc[~by_formula].groupby(["schedule", "pipeline", "chunks"])
    for (name, ranks, own_chunks), own in groups:
        places, chunks = own.index.to_numpy(), chunks_of(name, int(own_chunks))
        seconds[places] = _replayed_s(table, times, hop_s, places, (name, int(ranks), chunks))
        sends_s[places] = 2 * hop_s[places] * micro_batches[places] * chunks
    return seconds, sends_s


def _replayed_s(
    table: Configurations,
    times: LayerTimes,
    hop_s: Array,
    places: Array,
    schedule: tuple[str, int, int],
) -> Array:
    """Seconds of all passes of some configurations under one schedule, replayed."""
    name, ranks, chunks = schedule
    stages = ranks * chunks
    layers = table["layers"][places] / stages
    ends = np.zeros((stages, len(places)))
    ends[0] += times.embedding.seconds[places]
    ends[-1] += times.head.seconds[places]
    # A third of the embedding's and logits' work is their forward pass.
    return replayed_s(
        name,
        ranks,
        chunks,
        table.micro_batches[places],
        forward_s=layers * times.forward.seconds[places] + hop_s[places] + ends / 3,
        backward_s=layers * times.backward.seconds[places] + hop_s[places] + 2 * ends / 3,
        input_share=times.input_share[places],
    )


def _hop_s(table: Configurations, platform: Accelerators) -> Array:
    """One message to the next stage, and its gathering there; 0 without a pipeline."""
    crosses, senders = hop_senders(table, platform.devices_per_node)
    inside, network = platform.node_bytes_per_s, platform.network_bytes_per_s
    tokens = table["micro_batch"] * table["sequence_length"]
    whole = table.bytes_of("item") * tokens * table["hidden_size"]
    part = whole / table["tensor"]
    rate = np.where(crosses, np.minimum(inside, network / senders), inside)
    gather = (whole - part) / inside
    seconds = platform.constant("send_s") + part / rate + gather
    return np.where(table["pipeline"] > 1, seconds, 0.0)


def _data_s(table: Configurations, platform: Accelerators, layer: Pass) -> Array:
    rings = data_rings(table, platform.devices_per_node)
    weights = stage_parameters(table)
    whole = all_reduce_s(rings, table["gradient_bytes"] * weights, platform)
    scatter = reduce_scatter_s(rings, table["gradient_bytes"] * weights, platform)
    gather = reduce_scatter_s(rings, table.bytes_of("item") * weights, platform)
    zero = table["zero"]
    # ZeRO 3 gathers before the forward and before the backward pass of each micro-batch.
    pass_s = table.stage_layers * layer.seconds / 2
    waited = 2 * table.micro_batches * np.maximum(gather - pass_s, 0.0) + scatter
    return np.where(zero == 0, whole, np.where(zero < 3, scatter + gather, waited))
