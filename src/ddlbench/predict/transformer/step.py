"""One training step of a transformer that is cut over devices: its seconds and its memory.

::

    step = passes of all micro-batches through the stages      compute, tensor parallelism, host,
                                                               sends, bubble
         + sum of the gradients over the replicas              data parallelism
         + sum of a tied embedding's gradient, first + last stage     tied embedding
         + update                                              of weights and the optimizer's state

A stage waits for one message in each pass (Megatron's 1F1B sends and receives before it goes on),
and sends 1/t of the activation from each of its t devices, gathered again after the hop. Gradients
are summed when the last micro-batch is done: nothing hides them. ZeRO 1 and 2 scatter gradients and
gather weights, as many bytes as an all-reduce; ZeRO 3 gathers weights before every pass, which the
pass before hides as far as it is long enough.

Sources: Megatron-LM (Narayanan et al., SC 2021), sections 2 and 4; ZeRO (Rajbhandari et
al., SC 2020).

Pipelines take as long as the schedules of :mod:`ddlbench.planning.schedules`. GPipe and 1F1B have a
formula that equals their replay where the last stage is the slowest, as it is with the logits on
it: the first micro-batch passes all stages, the others follow one slot apart::

    sum over stages (F + B) + (m - 1) max (F + B)

All others are replayed. A long step repeats itself: what one more round of micro-batches adds is
replayed once (T(m) is a line beyond a few rounds).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ddlbench.common.statistics import grouped
from ddlbench.planning import schedules
from ddlbench.planning.schedules import Event, EventGraph
from ddlbench.predict.constants import Array
from ddlbench.predict.hardware import Accelerators
from ddlbench.predict.transformer.configurations import (
    bytes_of,
    data_rings,
    embedding_parameters,
    ends_rings,
    hop_senders,
    layer_parameters,
    stage_layers,
    words_of,
)
from ddlbench.predict.transformer.decoders import Decoders
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


def steps(table: Decoders, platform: Accelerators) -> Steps:
    """The step of every configuration.

    Raises:
        InvalidSchedule: a schedule does not fit a configuration's micro-batches.
    """
    times = layer_times(table, platform)
    hop_s = _hop_s(table, platform)
    layer = times.forward.plus(times.backward)
    ends = times.embedding.plus(times.head)
    whole = layer.times(table["layers"]).plus(ends)  # one micro-batch through all stages
    share = table["micro_batches"] / table["pipeline"]
    work = whole.times(share)  # of the mean device
    pipeline_s, sends_s = _pipeline_s(table, times, hop_s)
    parts = dict(work.parts)
    parts[SENDS] = sends_s
    parts[BUBBLE] = pipeline_s - sends_s - work.seconds
    parts[DATA] = _data_s(table, platform, layer)
    rings = ends_rings(table, platform.devices_per_node)
    words = words_of(table) * table["hidden_size"]
    tied_s = all_reduce_s(rings, table["gradient_bytes"] * words, platform)
    parts[EMBEDDING] = np.where(table["tied_embedding"] > 0, tied_s, 0.0)
    rate = platform.device.memory_bytes_per_s * platform.constant("update_efficiency")
    owners = np.where(table["zero_stage"] > 0, table["data"], 1.0)
    parts[UPDATE] = bytes_of(table, "update") * stage_parameters(table) / owners / rate
    return Steps(parts)


def stage_parameters(table: Decoders) -> Array:
    """Parameters of the fullest device: its layers and the embedding.

    An end stage holds the words once: the first for the embedding, the last for the logits. A
    single stage holds them twice if they are not tied.
    """
    hidden, tensor = table["hidden_size"], table["tensor"]
    words = words_of(table)
    embedding = embedding_parameters(hidden, words, table["sequence_length"])
    twice = (table["tied_embedding"] == 0) & (table["pipeline"] == 1)
    layers = stage_layers(table) * layer_parameters(hidden) / tensor
    return np.asarray(layers + embedding + twice * words * hidden)


def _pipeline_s(table: Decoders, times: LayerTimes, hop_s: Array) -> tuple[Array, Array]:
    """Seconds of all passes, and of the messages among them."""
    layer_s = times.forward.seconds + times.backward.seconds
    stages, micro_batches = table["pipeline"], table["micro_batches"]
    fullest = stage_layers(table) * layer_s
    # The logits are on the last stage, the embedding on the first; with one stage on the same.
    alone = stages == 1
    first = fullest + times.embedding.seconds
    last = fullest + times.head.seconds + np.where(alone, times.embedding.seconds, 0.0)
    slot = np.where(alone, last, np.maximum(first, last)) + 2 * hop_s
    whole = table["layers"] * layer_s + times.embedding.seconds + times.head.seconds
    seconds = whole + 2 * hop_s * stages + (micro_batches - 1) * slot
    sends_s = 2 * hop_s * (stages + micro_batches - 1)
    by_formula = np.isin(table["schedule"].astype(str), FORMULA) | alone
    cuts = [table[name][~by_formula].tolist() for name in ("schedule", "pipeline", "chunks")]
    alike = grouped(zip(zip(*cuts, strict=True), np.flatnonzero(~by_formula), strict=True))
    for (name, ranks, own_chunks), members in alike.items():
        places, chunks = np.array(members), _V if name == "zero-bubble-v" else int(own_chunks)
        seconds[places] = _replayed_group_s(table, times, hop_s, places, (name, int(ranks), chunks))
        sends_s[places] = 2 * hop_s[places] * micro_batches[places] * chunks
    return seconds, sends_s


def _replayed_group_s(
    table: Decoders,
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
        table["micro_batches"][places],
        forward_s=layers * times.forward.seconds[places] + hop_s[places] + ends / 3,
        backward_s=layers * times.backward.seconds[places] + hop_s[places] + 2 * ends / 3,
        input_share=times.input_share[places],
    )


def _hop_s(table: Decoders, platform: Accelerators) -> Array:
    """One message to the next stage, and its gathering there; 0 without a pipeline."""
    crosses, senders = hop_senders(table, platform.devices_per_node)
    inside, network = platform.node_bytes_per_s, platform.network_bytes_per_s
    tokens = table["micro_batch"] * table["sequence_length"]
    whole = bytes_of(table, "item") * tokens * table["hidden_size"]
    part = whole / table["tensor"]
    rate = np.where(crosses, np.minimum(inside, network / senders), inside)
    gather = (whole - part) / inside
    seconds = platform.constant("send_s") + part / rate + gather
    return np.where(table["pipeline"] > 1, seconds, 0.0)


def _data_s(table: Decoders, platform: Accelerators, layer: Pass) -> Array:
    rings = data_rings(table, platform.devices_per_node)
    weights = stage_parameters(table)
    whole = all_reduce_s(rings, table["gradient_bytes"] * weights, platform)
    scatter = reduce_scatter_s(rings, table["gradient_bytes"] * weights, platform)
    gather = reduce_scatter_s(rings, bytes_of(table, "item") * weights, platform)
    zero = table["zero_stage"]
    # ZeRO 3 gathers before the forward and before the backward pass of each micro-batch.
    pass_s = stage_layers(table) * layer.seconds / 2
    waited = 2 * table["micro_batches"] * np.maximum(gather - pass_s, 0.0) + scatter
    return np.where(zero == 0, whole, np.where(zero < 3, scatter + gather, waited))


FORMULA = ("1f1b", "gpipe")
_ROUNDS = 3
_V = 2
"""Chunks of a device in the schedule that is laid out as a V."""


def schedule_of(name: str, ranks: int, chunks: int, micro_batches: int) -> schedules.Schedule:
    """The schedule of one step, if no formula gives its length.

    Raises:
        InvalidSchedule: the numbers do not fit.
    """
    if name == "zero-bubble-v":
        return schedules.zero_bubble_v(ranks, micro_batches)
    if name == "interleaved-1f1b":
        return schedules.interleaved_1f1b(ranks, chunks, micro_batches)
    return schedules.interleaved_zero_bubble(ranks, chunks, micro_batches)


def replayed_s(
    name: str,
    ranks: int,
    chunks: int,
    micro_batches: Array,
    *,
    forward_s: Array,
    backward_s: Array,
    input_share: Array,
) -> Array:
    """Seconds of all passes of a step, for n configurations under one schedule.

    Args:
        name: a schedule.
        ranks: devices of a pipeline.
        chunks: stages of a device.
        micro_batches: of a step, (n,).
        forward_s: of each stage, (ranks * chunks, n), with the message that it waits for.
        backward_s: likewise.
        input_share: share of a backward pass that the stage before waits for, (n,).

    Raises:
        InvalidSchedule: the numbers do not fit.
    """
    counts = np.asarray(micro_batches, dtype=int)
    few = _ROUNDS * ranks + counts % ranks
    long = counts > few + ranks
    begins, ends = np.where(long, few, counts), np.where(long, few + ranks, counts)
    seconds = np.zeros((2, len(counts)))
    for row, replayed in enumerate((begins, ends)):
        for count in np.unique(replayed[long] if row else replayed):
            of = (replayed == count) & (long | (row == 0))
            graph = _graph(name, ranks, chunks, int(count))
            seconds[row, of] = _end_s(graph, forward_s[:, of], backward_s[:, of], input_share[of])
    rounds = np.where(long, (counts - few) / ranks, 0.0)
    return np.asarray(seconds[0] + (seconds[1] - seconds[0]) * rounds)


@lru_cache(maxsize=64)
def _graph(name: str, ranks: int, chunks: int, micro_batches: int) -> EventGraph:
    return schedules.events_of(schedule_of(name, ranks, chunks, micro_batches))


def _end_s(graph: EventGraph, forward_s: Array, backward_s: Array, input_share: Array) -> Array:
    """When the last event ends, (n,): :meth:`EventGraph.ends_s` for n configurations at once."""
    of_key: list[Array | None] = [
        _duration_s(event, forward_s, backward_s, input_share) for event in graph.keys
    ]
    ends: list[Array] = []
    nothing = np.zeros(len(input_share))
    for before, key in zip(graph.before, graph.key_numbers, strict=True):
        begins = ends[before[0]] if before else nothing
        for earlier in before[1:]:
            begins = np.maximum(begins, ends[earlier])
        duration = of_key[key]
        ends.append(begins if duration is None else begins + duration)
    last = [ends[line[-1].ends] for line in graph.lines]
    return np.asarray(np.max(last, axis=0))


def _duration_s(
    event: Event, forward_s: Array, backward_s: Array, input_share: Array
) -> Array | None:
    """Seconds of a pass; None where an event takes no time of its own."""
    action = event.action
    if event.role != "action" or action is None or not action.computes:
        return None
    if action.kind == "forward":
        return np.asarray(forward_s[action.stage])
    shares = {"backward_input": input_share, "backward_weight": 1 - input_share}
    return np.asarray(backward_s[action.stage] * shares.get(action.kind, 1.0))
