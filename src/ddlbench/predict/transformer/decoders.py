"""Decoders and how each is cut over devices, as columns of equal length.

::

    shape   layers l, hidden size h, attention heads, key and value heads (grouped queries),
            feed-forward size f (gated: SwiGLU's three products; else two and GELU),
            vocabulary V (tied: embedding and output share it), sequence length s
    layout  tensor t x data d x pipeline p x context c devices, micro-batch b, micro-batches m,
            ZeRO's stage over z devices (all replicas, or groups of them: HSDP), recomputation
    experts E of them in a layer, k active for a token, over x of the replicas

Each of c devices has s / c tokens of a sequence (context parallelism); they sum gradients as
replicas do.

How a pipeline's stages are cut. By cost, a layer counts as its weights and the output layer as
V h; the next stage begins as soon as the cost so far reaches (i + 1) / p of all
(huggingface/nanotron, ``pipeline_parallel/block`` and ``models/base``). 16 layers, and an output as
heavy as four of them::

    p = 2   [10, 6]    p = 4   [5, 5, 5, 1]    p = 8   [3, 2, 3, 2, 3, 2, 1, 0]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from ddlbench.predict.constants import Array, Rows
from ddlbench.predict.hardware import DeviceSheet, Fabric, Software

NUMBERS = (
    "layers", "hidden_size", "attention_heads", "key_value_heads", "feed_forward_size",
    "vocabulary", "sequence_length", "tensor", "data", "pipeline", "micro_batch", "micro_batches",
    "zero_stage", "tied_embedding", "gated", "devices_per_node",
)  # fmt: skip
"""Columns of numbers; ``tied_embedding`` and ``gated`` are 0 or 1."""
OPTIONAL: Mapping[str, float] = {
    "context": 1, "shards": 0, "experts": 1, "active_experts": 1, "expert_parallel": 1,
    "attention_width": 0,
}  # fmt: skip
"""Columns that may be left out; 0 shards are all replicas, a width of 0 is the network's."""
WORDS = ("recomputation",)
"""Columns of words: none, selective or full."""
OF_GPTS = (
    "global_batch", "schedule", "chunks", "sequence_parallel", "gradient_bytes", "precision",
)  # fmt: skip
"""Further columns of configurations (:mod:`.configurations`)."""


@dataclass(frozen=True)
class Stages:
    """Layers of each stage.

    Args:
        layers: (n, largest p); 0 beyond a row's own stages.
        output: the stage that holds the output layer, (n,).
        exists: (n, largest p).
    """

    layers: Array
    output: Array
    exists: Array


@dataclass(frozen=True)
class Decoders(Rows):
    """Decoders as columns.

    Args:
        columns: :data:`NUMBERS` as floats, :data:`WORDS`, and any of :data:`OPTIONAL`, each (n,);
            of GPTs also :data:`OF_GPTS`.
    """

    columns: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.columns["layers"])

    def __getitem__(self, name: str) -> Array:
        if name == "devices":
            return self.devices
        if name in OPTIONAL and name not in self.columns:
            return np.full(len(self), OPTIONAL[name])
        return self.columns[name]

    @cached_property
    def devices(self) -> Array:
        """Tensor x data x pipeline x context."""
        return np.asarray(self["tensor"] * self.replicas * self["pipeline"])

    @cached_property
    def replicas(self) -> Array:
        """Devices that sum their gradients: data x context."""
        return np.asarray(self["data"] * self["context"])

    @cached_property
    def sharers(self) -> Array:
        """Replicas over which ZeRO divides."""
        return np.where(self["shards"] > 0, self["shards"], self.replicas)

    @cached_property
    def alike(self) -> Array:
        """Replicas that hold the same experts."""
        return np.asarray(self.replicas / self["expert_parallel"])

    @cached_property
    def expert_sharers(self) -> Array:
        """Replicas over which ZeRO divides an expert: those of the sharers that hold it."""
        return np.maximum(self.sharers / self["expert_parallel"], 1.0)

    @cached_property
    def groups(self) -> Array:
        """Heads of keys and values for each head of queries, g."""
        return np.asarray(self["key_value_heads"] / self["attention_heads"])

    @cached_property
    def tokens(self) -> Array:
        """Tokens of a micro-batch on one device."""
        return np.asarray(self["micro_batch"] * self["sequence_length"] / self["context"])

    @cached_property
    def attention_width(self) -> Array:
        """Items of all heads of queries."""
        given = self["attention_width"]
        return np.where(given > 0, given, self["hidden_size"])

    @cached_property
    def attention_parameters(self) -> Array:
        """Parameters of a layer's four products; keys and values are as wide as their heads."""
        return np.asarray(2 * self["hidden_size"] * self.attention_width * (1 + self.groups))

    @cached_property
    def expert_parameters(self) -> Array:
        """Parameters of one feed-forward layer: 3 h f, or 2 h f without a gate."""
        products = 2 + self["gated"]
        return np.asarray(products * self["hidden_size"] * self["feed_forward_size"])

    @cached_property
    def layer_parameters(self) -> Array:
        """Weights of a layer with all its experts: 2 h^2 (1 + g) + 3 E h f."""
        return np.asarray(self.attention_parameters + self["experts"] * self.expert_parameters)

    @cached_property
    def active_parameters(self) -> Array:
        """Weights of a layer that a token is multiplied with."""
        active = self["active_experts"] * self.expert_parameters
        return np.asarray(self.attention_parameters + active)

    @cached_property
    def held_experts(self) -> Array:
        """Weights of a layer's experts on one device."""
        held = self["experts"] / self["expert_parallel"]
        return np.asarray(held * self.expert_parameters / self["tensor"])

    @cached_property
    def held_parameters(self) -> Array:
        """Weights of a layer on one device."""
        return np.asarray(self.attention_parameters / self["tensor"] + self.held_experts)

    @cached_property
    def embedding_parameters(self) -> Array:
        """V h: of the embedding, and again of the output."""
        return np.asarray(self["vocabulary"] * self["hidden_size"])

    @cached_property
    def parameters(self) -> Array:
        """Parameters of the whole network."""
        embeddings = np.where(self["tied_embedding"] > 0, 1, 2) * self.embedding_parameters
        return np.asarray(self["layers"] * self.layer_parameters + embeddings)

    def stage_parameters(self, cut: str) -> Array:
        """Parameters of one device of each stage, (n, largest p).

        Args:
            cut: as :meth:`stages`.
        """
        stages = self.stages(cut)
        places = np.arange(stages.layers.shape[1])
        ends = (places == 0).astype(float) + (places == stages.output[:, None])
        shared = (self["tied_embedding"] > 0)[:, None]
        ends = np.where(shared & (ends > 1), 1.0, ends)
        embeddings = ends * (self.embedding_parameters / self["tensor"])[:, None]
        return (stages.layers * self.held_parameters[:, None] + embeddings) * stages.exists

    def stages(self, cut: str) -> Stages:
        """Stages of each row, computed once: a fit wants them for each constant that it tries.

        Args:
            cut: "cost" or "layers" (equally many, the first ones longer).
        """
        if cut not in self._stages:
            self._stages[cut] = self._cut(cut)
        return self._stages[cut]

    @cached_property
    def _stages(self) -> dict[str, Stages]:
        return {}

    def _cut(self, cut: str) -> Stages:
        widest = int(self["pipeline"].max())
        layers = np.zeros((len(self), widest))
        output = np.zeros(len(self), dtype=int)
        # An output that is left out of the cost leaves equally many layers.
        weight = self.embedding_parameters if cut == "cost" else np.zeros(len(self))
        keys = np.stack([self["layers"], self["pipeline"], self.active_parameters, weight], axis=1)
        kinds, place = np.unique(keys, axis=0, return_inverse=True)
        for at, (count, stages, layer, head) in enumerate(kinds.tolist()):
            cuts, last = stage_cut(int(count), int(stages), layer, head)
            rows = place.ravel() == at
            layers[rows, : int(stages)] = cuts
            output[rows] = last
        exists = np.arange(widest) < self["pipeline"][:, None]
        return Stages(layers, output, exists)


@lru_cache(maxsize=4096)
def stage_cut(layers: int, stages: int, layer_cost: float, output_cost: float) -> tuple[Any, int]:
    """Layers of each stage, and the stage of the output layer.

    Args:
        layers: of the network.
        stages: of the pipeline.
        layer_cost: of one layer.
        output_cost: of the output layer, in the same unit; the last stage holds it.
    """
    whole = layers * layer_cost + output_cost
    ends, end = [], 0
    for stage in range(1, stages):
        share = whole * stage / stages * (1 - 1e-12)
        end = min(layers, max(end + 1, math.ceil(share / layer_cost)))
        ends.append(end)
    return tuple(last - first for first, last in pairwise([0, *ends, layers])), stages - 1


@dataclass(frozen=True)
class Machines(Rows):
    """Where each decoder trains: data sheets as columns, (n,) each.

    Args:
        peak_flops_per_s: of the software's precision.
        memory_bytes, memory_bytes_per_s: of a device.
        link_bytes_per_s: of a device to the others of its node, one way.
        network_bytes_per_s: of all network cards of a node, one way.
        network_latency_s: that a node adds to an all-reduce.
    """

    peak_flops_per_s: Array
    memory_bytes: Array
    memory_bytes_per_s: Array
    link_bytes_per_s: Array
    network_bytes_per_s: Array
    network_latency_s: Array


def machines(
    sheets: list[DeviceSheet], fabric: Fabric | None, software: Software, per_node: Array
) -> Machines:
    """Columns of data sheets.

    Args:
        sheets: one a row.
        fabric: between nodes; None for rows on one node.
        software: whose precision decides the peak.
        per_node: devices of a node, (n,).

    Raises:
        ConfigError: a device has no such precision.
    """
    network = [fabric.node_bytes_per_s(n) if fabric else np.inf for n in per_node.tolist()]
    return Machines(
        peak_flops_per_s=np.array([sheet.peak(software.precision) for sheet in sheets]),
        memory_bytes=np.array([sheet.memory_bytes for sheet in sheets]),
        memory_bytes_per_s=np.array([sheet.memory_bytes_per_s for sheet in sheets]),
        link_bytes_per_s=np.array([sheet.link.bytes_per_s for sheet in sheets]),
        network_bytes_per_s=np.array(network, dtype=float),
        network_latency_s=np.full(len(sheets), fabric.latency_s if fabric else 0.0),
    )
