"""Time of one training step of a decoder on devices that were never measured.

A pass of a layer is the longest of what its device computes, of the latency of its collectives, and
of what its host takes to launch it (a power mean, k = sharpness). Bytes of tensor parallelism add
to computing::

    forward  = ((device   + 4 wire)^k + (4 one)^k + (host / 3)^k)^(1/k)
    backward = ((device_b + j wire)^k + (j one)^k + (2 host / 3)^k)^(1/k)     j = 4; 6 if inputs are
                                                                              gathered again
    product(M, N, K) = 2 M N K / (e F) (1 + w/M) (1 + w/N) (1 + w/K)
    device   = products + attention + element-wise passes          n = s b tokens
             products:      queries, keys and values; output; gate and up (up alone); down
             attention:     2 s n h / t operations, half of them masked; backward 2.5 times
             element-wise:  eps (32 n h + 6 n f) / t bytes; without a gate 4 n f
    wire     = 2 n h (t - 1) / t / rate         one all-gather or reduce-scatter, the bytes
    one      = a log2 min(t, node) + a' (nodes - 1) + a'' (t - 1) [p > 1, over nodes] + wire

A stage of a pipeline, and the step::

    stage = layers (forward + backward) + output layer + embedding + 2 hops
    work  = (m - 1) max over stages + sum over stages              1F1B (Narayanan et al., SC 2021)
    step  = work + sum of gradients + ZeRO's gather + update + a fixed time

Gradients are summed bucket by bucket; each bucket has the latency of every node. FSDP (ZeRO 3)
gathers a layer's weights before each pass and scatters its gradients, prefetched: messages are one
more part of the power mean, and nothing is added but the update.

Sources: Dao et al., FlashAttention (2022); Korthikanti et al. (2022), section 4.2; ZeRO (SC 2020);
Zhao et al., PyTorch FSDP (VLDB 2023), section 3.3. Values of constants: config/software.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlbench.predict.hardware import Software
from ddlbench.predict.measured_steps import Array
from ddlbench.predict.transformer.decoder_memory import kept_inputs
from ddlbench.predict.transformer.decoders import Decoders, Machines
from ddlbench.predict.transformer.layer_time import SCORE_BYTES

CONSTANTS = (
    "product_efficiency", "product_width", "attention_efficiency", "element_traffic",
    "memory_share", "host_layer_s", "host_tensor_factor", "collective_s", "node_latency_factor",
    "pipeline_latency_s", "link_share", "network_share", "gradient_share",
    "gradient_latency_factor", "hop_s", "step_s", "sharpness",
)  # fmt: skip
BACKWARD, ATTENTION_BACKWARD = 2.0, 2.5
"""Of a forward pass; flash attention computes its scores once more."""
COLLECTIVES, WITH_GATHERED_AGAIN = 4.0, 6.0
"""All-gathers and reduce-scatters of a layer's pass."""
_HOST_FORWARD = 1 / 3
_SHARED_BYTES, _GATED_BYTES, _PLAIN_BYTES = 32.0, 6.0, 4.0
_LOGIT_BYTES, _EMBEDDING_BYTES = 40.0, 20.0
_ITEM = 2.0
_UPDATE_BYTES, _GRADIENT_BYTES = 32.0, 8.0
"""Read and written to update a parameter's share, and to prepare its gradient."""
PARTS = ("passes", "bubble", "gradients", "update", "fixed")


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, (n,) each.

    Args:
        parts: by name (:data:`PARTS`); they add up to the step.
    """

    parts: dict[str, Array]

    @property
    def seconds(self) -> Array:
        return np.sum(list(self.parts.values()), axis=0)


def step_time(
    table: Decoders, machines: Machines, software: Software, kept: Array | None = None
) -> StepTime:
    """How long a step takes.

    Args:
        table: n decoders.
        machines: of each.
        software: settings and constants.
        kept: 1 where gathered inputs are kept, 0 where they are gathered again, (n,); left out, the
            software's setting, and the middle where it is unknown.
    """
    return _Step(table, machines, software, kept).time()


class _Step:
    """One step of each row; names as in the module's text."""

    def __init__(
        self, table: Decoders, machines: Machines, software: Software, kept: Array | None
    ) -> None:
        self._table, self._machines, self._software = table, machines, software
        self._constant = software.constant
        self._kept = np.mean(kept_inputs(table, software), axis=0) if kept is None else kept
        self._tensor, self._hidden = table["tensor"], table["hidden_size"]
        self._per_node = table["devices_per_node"]
        self._over_nodes = table.devices > self._per_node
        self._card = machines.network_bytes_per_s / self._per_node
        self._sharded = table["zero_stage"] >= 3
        self._peak = machines.peak_flops_per_s
        self._memory = machines.memory_bytes_per_s

    def time(self) -> StepTime:
        """Parts of the step."""
        stages = self._table.stages(self._software.stage_cut)
        forward, backward = self._layer()
        at_output = np.arange(stages.layers.shape[1]) == stages.output[:, None]
        at_input = np.arange(stages.layers.shape[1]) == 0
        each = (
            stages.layers * (forward + backward)[:, None]
            + at_output * self._output()[:, None]
            + at_input * self._embedding()[:, None]
            + 2 * self._hop()[:, None]
        ) * stages.exists
        slots, longest = self._table["micro_batches"], each.max(axis=1)
        passes = slots * longest
        parameters = (
            np.max(
                (
                    stages.layers * self._table.layer_parameters[:, None]
                    + at_output * self._table.embedding_parameters[:, None]
                    + at_input
                    * np.where(
                        (self._table["tied_embedding"] > 0) & (self._table["pipeline"] == 1),
                        0.0,
                        self._table.embedding_parameters,
                    )[:, None]
                )
                * stages.exists,
                axis=1,
            )
            / self._tensor
        )
        gradients, update = self._after(parameters)
        return StepTime(
            {
                "passes": passes,
                "bubble": each.sum(axis=1) - longest,
                "gradients": gradients,
                "update": update,
                "fixed": np.full(len(self._table), self._constant("step_s")),
            }
        )

    def _layer(self) -> tuple[Array, Array]:
        """Forward and backward pass of a layer, with what its recomputation repeats."""
        products, attention, elements = self._device()
        wire, one = self._collective()
        together = np.where(self._tensor > 1, self._constant("host_tensor_factor"), 1.0)
        host = self._constant("host_layer_s") * together
        gather, scatter = self._weights()
        again = COLLECTIVES + (WITH_GATHERED_AGAIN - COLLECTIVES) * (1 - self._kept)

        sharp = self._constant("sharpness")

        def longest(device: Array, count: Array | float, share: float, messages: Array) -> Array:
            busy = device + count * wire
            parts = (busy, count * one, host * share, messages)
            return np.asarray(sum(part**sharp for part in parts) ** (1 / sharp))

        work = products + attention + elements
        forward = longest(work, COLLECTIVES, _HOST_FORWARD, gather)
        full = self._table["recomputation"] == "full"
        back = BACKWARD * (products + elements) + ATTENTION_BACKWARD * attention
        backward = longest(
            back + full * work,
            again + full * COLLECTIVES,
            1 - _HOST_FORWARD,
            gather + scatter,
        )
        return forward, backward

    def _device(self) -> tuple[Array, Array, Array]:
        """Forward pass of a layer: products, attention, element-wise passes."""
        table, part = self._table, self._hidden / self._tensor
        groups = table["key_value_heads"] / table["attention_heads"]
        wide = table["feed_forward_size"] / self._tensor
        gated = table["gated"] > 0
        products = (
            self._product(part * (1 + 2 * groups), self._hidden)
            + self._product(self._hidden, part)
            + self._product(wide * np.where(gated, 2, 1), self._hidden)
            + self._product(self._hidden, wide)
        )
        flash = self._software.flash_attention
        operations = (2 if flash else 4) * table["sequence_length"] * table.tokens * part
        attention = operations / (self._constant("attention_efficiency") * self._peak)
        feed = np.where(gated, _GATED_BYTES, _PLAIN_BYTES) * table["feed_forward_size"]
        moved = table.tokens * (_SHARED_BYTES * self._hidden + feed) / self._tensor
        if not flash:
            scores = table["attention_heads"] / self._tensor * table["sequence_length"]
            moved = moved + SCORE_BYTES * scores * table.tokens
        elements = self._constant("element_traffic") * moved / self._memory
        return products, attention, elements

    def _product(self, columns: Array, inner: Array) -> Array:
        """Seconds of (tokens x inner) (inner x columns)."""
        tokens, width = self._table.tokens, self._constant("product_width")
        longer = (1 + width / tokens) * (1 + width / columns) * (1 + width / inner)
        rate = self._constant("product_efficiency") * self._peak
        return np.asarray(2 * tokens * columns * inner * longer / rate)

    def _collective(self) -> tuple[Array, Array]:
        """Of a tensor group: bytes alone, and the whole of one all-gather or reduce-scatter."""
        tensor, per_node = self._tensor, self._per_node
        inside = self._constant("link_share") * self._machines.link_bytes_per_s
        network = self._constant("network_share") * self._machines.network_bytes_per_s
        rate = np.where(tensor > per_node, np.minimum(inside, network), inside)
        items = self._table.tokens * self._hidden
        wire = _ITEM * items * (tensor - 1) / tensor / rate
        nodes = np.ceil(tensor / per_node)
        pipelined = (self._table["pipeline"] > 1) & self._over_nodes
        latency = (
            self._constant("collective_s") * np.log2(np.minimum(tensor, per_node))
            + self._node_s * (nodes - 1)
            + self._constant("pipeline_latency_s") * (tensor - 1) * pipelined
        )
        return wire, np.where(tensor > 1, latency + wire, 0.0)

    @property
    def _node_s(self) -> Array:
        """That a node adds to an all-gather: half of an all-reduce."""
        factor = self._constant("node_latency_factor")
        return np.asarray(factor * self._machines.network_latency_s / 2)

    def _group(self) -> tuple[Array, Array]:
        """Of a ring of replicas: its nodes, and the share of their network cards it has."""
        inside = np.minimum(np.maximum(self._per_node // self._tensor, 1.0), self._table["data"])
        return self._table["data"] / inside, inside

    def _data_rate(self, share: str) -> Array:
        """Bytes a second of a ring of replicas."""
        nodes, inside = self._group()
        link = self._constant("link_share") * self._machines.link_bytes_per_s
        cards = self._constant(share) * self._card * inside
        return np.asarray(np.where(nodes > 1, np.minimum(cards, link), link))

    def _weights(self) -> tuple[Array, Array]:
        """FSDP: gather of a layer's weights before a pass, scatter of its gradients."""
        data = self._table["data"]
        nodes, inside = self._group()
        latency = self._constant("collective_s") * np.log2(np.maximum(inside, 1.0))
        latency = latency + self._node_s * (nodes - 1)
        moved = self._table.layer_parameters / self._tensor * (data - 1) / data
        used = self._sharded & (data > 1)
        rate = self._data_rate("network_share")
        gather = np.where(used, _ITEM * moved / rate + latency, 0.0)
        scatter = self._software.gradient_message_bytes * moved / rate + latency
        return gather, np.where(used, scatter, 0.0)

    def _output(self) -> Array:
        """Logits, loss and their gradients."""
        words = self._table["vocabulary"] / self._tensor
        moved = _LOGIT_BYTES * self._table.tokens * words
        _, one = self._collective()
        return (1 + BACKWARD) * self._product(words, self._hidden) + moved / self._memory + 3 * one

    def _embedding(self) -> Array:
        """Look-up of words and its gradient."""
        _, one = self._collective()
        moved = _EMBEDDING_BYTES * self._table.tokens * self._hidden / self._tensor
        return np.asarray(moved / self._memory + one)

    def _hop(self) -> Array:
        """One message to the next stage; on one node it costs next to nothing."""
        bytes_ = _ITEM * self._table.tokens * self._hidden / self._tensor
        seconds = self._constant("hop_s") + bytes_ / (self._card / 2)
        crosses = (self._table["pipeline"] > 1) & self._over_nodes
        return np.asarray(np.where(crosses, seconds, 0.0))

    def _after(self, parameters: Array) -> tuple[Array, Array]:
        """Sum of gradients with ZeRO's gather of weights, and the update."""
        data, zero = self._table["data"], self._table["zero_stage"]
        nodes, _ = self._group()
        bucket_s = self._constant("gradient_latency_factor") * self._machines.network_latency_s
        moved = parameters * (data - 1) / data / self._data_rate("gradient_share")
        buckets = np.maximum(parameters * _ITEM / self._software.bucket_bytes, 1.0)
        message = self._software.gradient_message_bytes
        summed = 2 * message * moved + bucket_s * nodes * buckets
        gathered = _ITEM * moved + bucket_s / 2 * nodes
        rings = summed + np.where(zero >= 1, gathered, 0.0)
        gradients = np.where((data > 1) & (zero < 3), rings, 0.0)
        shards = np.where(zero >= 1, data, 1.0)
        prepared = np.where(zero < 3, _GRADIENT_BYTES, 0.0)
        rate = self._constant("memory_share") * self._memory
        return gradients, parameters * (_UPDATE_BYTES / shards + prepared) / rate
