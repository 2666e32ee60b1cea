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

Gradients are summed bucket by bucket; each bucket has the latency of every node. ZeRO 1 and 2
scatter the sums, half an all-reduce (ZeRO 2 after each micro-batch), and gather weights, the other
half; some software sums whole. FSDP (ZeRO 3) gathers a layer's weights before each pass and
scatters its gradients, prefetched: messages are one more part of the power mean, and nothing is
added but the update. In groups of z replicas (HSDP) the groups then sum their shares.

Context parallelism passes keys and values round c devices, 4 g n h / t bytes each time, another
part of the power mean. Experts get their tokens by two exchanges of all with all in a pass, k n h
items each; an expert's product has n k x / E rows. No published run here tests these three.

Sources: Dao et al., FlashAttention (2022); Korthikanti et al. (2022), section 4.2; ZeRO (SC 2020);
Zhao et al., PyTorch FSDP (VLDB 2023), section 3.3. Values of constants: config/software.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlbench.predict.constants import Array
from ddlbench.predict.hardware import Software
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
EXCHANGES = 2.0
"""Of tokens with their experts, in a pass: there and back."""
_HOST_FORWARD = 1 / 3
_SHARED_BYTES, _GATED_BYTES, _PLAIN_BYTES = 32.0, 6.0, 4.0
_LOGIT_BYTES, _EMBEDDING_BYTES = 40.0, 20.0
_HALF = 2.0
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
        self._item = software.item_bytes
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
        longest = each.max(axis=1)
        passes = self._table["micro_batches"] * longest
        held = self._table.stage_parameters(self._software.stage_cut)
        fullest = held.argmax(axis=1)
        rows = np.arange(len(self._table))
        many = self._table["experts"] > 1
        experts = stages.layers[rows, fullest] * self._table.held_experts * many
        gradients, update = self._after(held[rows, fullest], experts)
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
        wire, collective_s = self._collective()
        exchange_s, exchange_wire = self._exchange()
        together = np.where(self._tensor > 1, self._constant("host_tensor_factor"), 1.0)
        host = self._constant("host_layer_s") * together
        gather, scatter = self._weights()
        ring = self._context()
        again = COLLECTIVES + (WITH_GATHERED_AGAIN - COLLECTIVES) * (1 - self._kept)
        sharp = self._constant("sharpness")

        def longest(
            device: Array, count: Array | float, exchanges: Array | float, share: float,
            messages: Array,
        ) -> Array:  # fmt: skip
            busy = device + count * wire + exchanges * exchange_wire
            waits = count * collective_s + exchanges * exchange_s
            parts = (busy, waits, host * share, messages)
            return np.asarray(sum(part**sharp for part in parts) ** (1 / sharp))

        work = products + attention + elements
        forward = longest(work, COLLECTIVES, EXCHANGES, _HOST_FORWARD, gather + ring)
        full = (self._table["recomputation"] == "full").astype(float)
        back = BACKWARD * (products + elements) + ATTENTION_BACKWARD * attention
        backward = longest(
            back + full * work,
            again + full * COLLECTIVES,
            EXCHANGES * (1 + full),
            1 - _HOST_FORWARD,
            gather + scatter + (BACKWARD + full) * ring,
        )
        return forward, backward

    def _device(self) -> tuple[Array, Array, Array]:
        """Forward pass of a layer: products, attention, element-wise passes."""
        table, part = self._table, self._table.attention_width / self._tensor
        wide = table["feed_forward_size"] / self._tensor
        gated, active = table["gated"] > 0, table["active_experts"]
        rows = table.tokens * active * table["expert_parallel"] / table["experts"]
        feed = self._product(wide * np.where(gated, 2, 1), self._hidden, rows)
        feed = feed + self._product(self._hidden, wide, rows)
        products = (
            self._product(part * (1 + 2 * table.groups), self._hidden)
            + self._product(self._hidden, part)
            + active * feed
        )
        flash = self._software.flash_attention
        operations = (2 if flash else 4) * table["sequence_length"] * table.tokens * part
        attention = operations / (self._constant("attention_efficiency") * self._peak)
        moved = active * np.where(gated, _GATED_BYTES, _PLAIN_BYTES) * table["feed_forward_size"]
        moved = table.tokens * (_SHARED_BYTES * self._hidden + moved) / self._tensor
        if not flash:
            scores = table["attention_heads"] / self._tensor * table["sequence_length"]
            moved = moved + SCORE_BYTES * scores * table.tokens
        longer = self._constant("element_traffic") * self._item / _HALF
        return products, attention, longer * moved / self._memory

    def _product(self, columns: Array, inner: Array, rows: Array | None = None) -> Array:
        """Seconds of (tokens x inner) (inner x columns), in parts of ``rows`` each."""
        tokens, width = self._table.tokens, self._constant("product_width")
        rows = tokens if rows is None else rows
        longer = (1 + width / rows) * (1 + width / columns) * (1 + width / inner)
        rate = self._constant("product_efficiency") * self._peak
        return np.asarray(2 * tokens * columns * inner * longer / rate)

    def _collective(self) -> tuple[Array, Array]:
        """Seconds of an all-gather or reduce-scatter in a tensor group: its bytes, and in all."""
        tensor, per_node = self._tensor, self._per_node
        network = self._constant("network_share") * self._machines.network_bytes_per_s
        rate = np.where(tensor > per_node, np.minimum(self._inside, network), self._inside)
        items = self._table.tokens * self._hidden
        wire = self._item * items * (tensor - 1) / tensor / rate
        nodes = np.ceil(tensor / per_node)
        pipelined = (self._table["pipeline"] > 1) & self._over_nodes
        latency = (
            self._constant("collective_s") * np.log2(np.minimum(tensor, per_node))
            + self._node_s * (nodes - 1)
            + self._constant("pipeline_latency_s") * (tensor - 1) * pipelined
        )
        return wire, np.where(tensor > 1, latency + wire, 0.0)

    @property
    def _inside(self) -> Array:
        """Bytes a second of a device to the others of its node."""
        return np.asarray(self._constant("link_share") * self._machines.link_bytes_per_s)

    @property
    def _node_s(self) -> Array:
        """That a node adds to an all-gather: half of an all-reduce."""
        factor = self._constant("node_latency_factor")
        return np.asarray(factor * self._machines.network_latency_s / 2)

    def _exchange(self) -> tuple[Array, Array]:
        """All with all of the devices that share experts: the whole of one, and its bytes."""
        members = self._table["expert_parallel"]
        nodes, inside = self._group(members)
        sent = self._item * self._table["active_experts"] * self._table.tokens * self._hidden
        each = sent / self._tensor / members  # to one of them
        card = self._constant("network_share") * self._card
        wire = np.maximum(each * (members - inside) / card, each * (inside - 1) / self._inside)
        latency = self._constant("collective_s") * np.log2(inside) + self._node_s * (nodes - 1)
        return np.where(members > 1, latency + wire, 0.0), wire

    def _context(self) -> Array:
        """Keys and values of a layer once round the devices that share a sequence."""
        members = self._table["context"]
        nodes, _ = self._group(members)
        width = self._table.groups * self._table.attention_width
        block = 2 * self._item * self._table.tokens * width
        # A neighbour on another node is reached by the card of the device that sends.
        card = np.minimum(self._constant("network_share") * self._card, self._inside)
        rate = np.where(nodes > 1, card, self._inside)
        message = block / self._tensor / rate + self._constant("collective_s")
        return np.asarray((members - 1) * message + self._node_s * (nodes - 1) * (members > 1))

    def _group(self, members: Array) -> tuple[Array, Array]:
        """Nodes of a ring of so many replicas, and its members in each node."""
        inside = np.minimum(np.maximum(self._per_node // self._tensor, 1.0), members)
        return members / inside, inside

    def _data_rate(self, members: Array, share: str, apart: Array | float = 1.0) -> Array:
        """Bytes a second of a ring of replicas, which has the cards of its members in a node.

        If its members are so many replicas apart, the others have as many rings at the same time.
        """
        nodes, inside = self._group(members)
        cards = self._constant(share) * self._card * np.maximum(inside / apart, 1.0)
        return np.where(nodes > 1, np.minimum(cards, self._inside), self._inside)

    def _weights(self) -> tuple[Array, Array]:
        """FSDP: gather of a layer's weights before a pass, scatter of its gradients."""
        table, members = self._table, self._table.sharers
        nodes, inside = self._group(members)
        latency = self._constant("collective_s") * np.log2(inside) + self._node_s * (nodes - 1)
        rate = self._data_rate(members, "network_share")
        moved = (table.held_parameters - table.held_experts) * (1 - 1 / members) / rate
        rate = self._data_rate(members, "network_share", table["expert_parallel"])
        moved = moved + table.held_experts * (1 - 1 / table.expert_sharers) / rate
        used = self._sharded & (members > 1)
        gather = np.where(used, self._item * moved + latency, 0.0)
        scatter = self._software.gradient_message_bytes * moved + latency
        return gather, np.where(used, scatter, 0.0)

    def _output(self) -> Array:
        """Logits, loss and their gradients."""
        words = self._table["vocabulary"] / self._tensor
        moved = _LOGIT_BYTES * self._table.tokens * words
        _, collective_s = self._collective()
        return (
            (1 + BACKWARD) * self._product(words, self._hidden)
            + moved / self._memory
            + 3 * collective_s
        )

    def _embedding(self) -> Array:
        """Look-up of words and its gradient."""
        _, collective_s = self._collective()
        moved = _EMBEDDING_BYTES * self._table.tokens * self._hidden / self._tensor
        return np.asarray(moved / self._memory + collective_s)

    def _hop(self) -> Array:
        """One message to the next stage; on one node it costs next to nothing."""
        bytes_ = self._item * self._table.tokens * self._hidden / self._tensor
        seconds = self._constant("hop_s") + bytes_ / (self._card / 2)
        crosses = (self._table["pipeline"] > 1) & self._over_nodes
        return np.asarray(np.where(crosses, seconds, 0.0))

    def _after(self, parameters: Array, experts: Array) -> tuple[Array, Array]:
        """Sum of gradients with ZeRO's gather of weights, and the update.

        Args:
            parameters: of the fullest device.
            experts: those of them that only some of the replicas hold.
        """
        table, zero = self._table, self._table["zero_stage"]
        others = parameters - experts
        # Groups that share weights (HSDP) sum their shares; else all replicas sum all.
        shares = np.where(self._sharded, table.sharers, 1.0)
        expert_shares = np.where(self._sharded, table.expert_sharers, 1.0)
        members, alike = table.replicas / shares, table.alike / expert_shares
        nodes, _ = self._group(table.replicas)
        rate = self._data_rate(table.replicas, "gradient_share", shares)
        bucket_s = self._constant("gradient_latency_factor") * self._machines.network_latency_s
        moved = others / shares * (1 - 1 / members) / rate
        apart = table["expert_parallel"] * expert_shares
        rate = self._data_rate(table.replicas, "gradient_share", apart)
        moved = moved + experts / expert_shares * (1 - 1 / alike) / rate
        summed_items = others / shares + experts / expert_shares
        buckets = np.maximum(summed_items * self._item / self._software.bucket_bytes, 1.0)
        message = self._software.gradient_message_bytes
        gathered = self._item * moved + bucket_s / 2 * nodes
        between = (zero >= 1) & ~self._sharded
        scattered = between & ~np.isin(zero, self._software.whole_sums)
        passes = np.where(scattered, 1, 2)  # round the ring
        # ZeRO 2 keeps no whole gradients to which a later micro-batch could add.
        sums = np.where(zero == 2, table["micro_batches"], 1)
        summed = sums * passes * (message * moved + bucket_s / 2 * nodes * buckets)
        gradients = np.where(members > 1, summed + np.where(between, gathered, 0.0), 0.0)
        divided = zero >= 1
        updated = others / np.where(divided, table.sharers, 1.0)
        updated = updated + experts / np.where(divided, table.expert_sharers, 1.0)
        prepared = parameters * np.where(self._sharded, 0.0, _GRADIENT_BYTES)
        memory = self._constant("memory_share") * self._memory
        return gradients, (_UPDATE_BYTES * updated + prepared) / memory
