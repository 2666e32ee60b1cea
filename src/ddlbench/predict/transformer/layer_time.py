"""How long one device computes a layer, the embedding and the logits, for one micro-batch.

A pass of a layer is the longer of what the device does and what its host takes to launch it::

    device   products with weights + attention + element-wise passes + two all-reduces
    host     a fixed time a layer, and for each all-reduce log2 t times another one: t hosts meet,
             and the slowest decides

    time = (device^k + host^k)^(1/k)

Alone a device only waits where its host is slower. At an all-reduce all wait for the latest of t
hosts, so a host that is nearly as slow as its device already costs time: k is smaller.

Products. 2 M N K operations at ``matmul_efficiency`` of the peak, longer by 1 + w / n for each of
the three sizes n, with w = ``matmul_width``. A backward pass has the same sizes in another order,
so it takes twice as long. Attention's products are narrow: they have their own share of the peak.

Element-wise passes read and write at ``memory_efficiency`` of the memory's rate; bytes of a
forward pass, with items of 2 bytes and masks of 1::

    22 s b h        two norms (4 each), two sums of dropout, bias and residual (7 each)
    32 s b h / t    GELU of 4h (16), copies of queries, keys, values and contexts (16)
    12 a s^2 b / t  scores: softmax reads the lower half (3), dropout (5), products (4)

A backward pass moves twice as many. Each kernel takes ``kernel_s`` more, to start and to end.

Megatron's fused softmax needs b a / t to be a multiple of four (``fused_softmax.py``,
``is_kernel_available``); else it runs as several kernels, which take the host ``host_softmax_s``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlbench.predict.constants import Array
from ddlbench.predict.hardware import Accelerators
from ddlbench.predict.transformer.configurations import (
    HALF,
    Rings,
    bytes_of,
    tensor_rings,
    words_of,
)
from ddlbench.predict.transformer.decoders import Decoders

BACKWARD = 2.0
"""Work of a backward pass in forward passes."""
SHARPNESS_ALONE, SHARPNESS_TOGETHER = 8.0, 2.0
"""k: how sharply the longer of device and host wins, without and with tensor parallelism."""
KERNELS = 17
"""Of a layer's forward pass: 6 products, 2 norms, 4 copies, softmax, GELU, 3 with dropout."""
HEAD_KERNELS = 12
ALL_REDUCES = 2
"""Of a pass of a layer: after attention's projection, and after the second product of 4h."""
SHARED_BYTES, SPLIT_BYTES, SCORE_BYTES = 22.0, 32.0, 12.0
EMBEDDING_BYTES = 10.0
HEAD_BYTES = 58.0
"""Of one logit: written (2), to single precision (6), largest (4), less it (8), exponential (8),
sum (4), divided (8); backward its gradient (8), to half precision (6), read by two products (4)."""
_FUSED = 4
_ALIGNED = 8
"""Sizes of a product that tensor cores compute at full rate are multiples of this."""
MATMUL, ATTENTION, MEMORY, TENSOR, HOST = (
    "products", "attention", "element-wise", "tensor parallelism", "host",
)  # fmt: skip
PARTS = (MATMUL, ATTENTION, MEMORY, TENSOR, HOST)


@dataclass(frozen=True)
class Pass:
    """Seconds of a pass of one micro-batch, by part; ``HOST`` is what the device waits for it."""

    parts: dict[str, Array]

    @property
    def seconds(self) -> Array:
        return np.sum(list(self.parts.values()), axis=0)

    def times(self, factor: Array | float) -> Pass:
        return Pass({name: seconds * factor for name, seconds in self.parts.items()})

    def plus(self, other: Pass) -> Pass:
        return Pass({name: seconds + other.parts[name] for name, seconds in self.parts.items()})


@dataclass(frozen=True)
class LayerTimes:
    """Passes of one layer, and of what the first and the last stage do besides.

    Args:
        forward, backward: of one layer; with recomputation in the backward pass.
        embedding, head: forward and backward pass together.
        input_share: share of the backward pass that the stage before waits for, in zero bubbles.
    """

    forward: Pass
    backward: Pass
    embedding: Pass
    head: Pass
    input_share: Array


def layer_times(table: Decoders, platform: Accelerators) -> LayerTimes:
    """Passes of each configuration's layers."""
    device = _Device(table, platform)
    forward = device.layer(1.0)
    backward = device.layer(BACKWARD)
    again = device.attention_again()
    full, selective = (table["recomputation"] == word for word in ("full", "selective"))
    partly = again.times(selective)
    repeated = Pass(
        {name: np.where(full, forward.parts[name], partly.parts[name]) for name in PARTS}
    )
    weights = 0.5 * backward.parts[MATMUL]  # of the two products, one gives the weights' gradient
    with_again = backward.plus(repeated)
    return LayerTimes(
        forward, with_again, device.embedding(), device.head(), 1 - weights / with_again.seconds
    )


def all_reduce_s(
    rings: Rings, bytes_: Array, platform: Accelerators, rate_share: Array | float = 1.0
) -> Array:
    """Seconds of a ring all-reduce (Patarasuk & Yuan 2009): 2 (n - 1) messages of bytes / n.

    Args:
        rings: all that run at the same time.
        bytes_: of one device's tensor.
        platform: the links.
        rate_share: of a node's links that a ring gets.
    """
    passes = 2 * _ring_pass_s(rings, bytes_, platform, rate_share)
    return passes + platform.constant("collective_s") * (rings.members > 1)


def reduce_scatter_s(rings: Rings, bytes_: Array, platform: Accelerators) -> Array:
    """Seconds of half an all-reduce; an all-gather takes as long."""
    passes = _ring_pass_s(rings, bytes_, platform, 1.0)
    return passes + platform.constant("collective_s") * (rings.members > 1)


def _ring_pass_s(
    rings: Rings, bytes_: Array, platform: Accelerators, rate_share: Array | float
) -> Array:
    """Once round the ring: n - 1 messages of bytes / n."""
    inside, network = platform.node_bytes_per_s * rate_share, platform.network_bytes_per_s
    rate = np.where(rings.crosses, np.minimum(inside, network / rings.sharing), inside)
    return np.asarray((rings.members - 1) * (bytes_ / rings.members / rate))


class _Device:
    """One device's share of a micro-batch."""

    def __init__(self, table: Decoders, platform: Accelerators) -> None:
        self._table, self._platform = table, platform
        self._tokens = table["micro_batch"] * table["sequence_length"]
        self._hidden, self._tensor = table["hidden_size"], table["tensor"]
        self._rings = tensor_rings(table, platform.devices_per_node)
        self._score_items = (
            table["micro_batch"] * table["attention_heads"] * table["sequence_length"] ** 2
        ) / self._tensor

    def layer(self, work: float) -> Pass:
        """A pass of ``work`` forward passes; the host takes as long for a backward pass."""
        table, constant = self._table, self._platform.constant
        hidden, part = self._hidden, self._hidden / self._tensor
        products = (
            self._product_s(3 * part, hidden)
            + self._product_s(hidden, part)
            + self._product_s(4 * part, hidden)
            + self._product_s(hidden, 4 * part)
        )
        kernels = KERNELS * constant("kernel_s")
        shared = np.where(table["sequence_parallel"] > 0, 1 / self._tensor, 1.0)
        moved = (
            self._tokens * hidden * (SHARED_BYTES * shared + SPLIT_BYTES / self._tensor)
            + SCORE_BYTES * self._score_items
        )
        unfused = (table["micro_batch"] * table["attention_heads"] / self._tensor) % _FUSED != 0
        return self._pass(
            {
                MATMUL: products * work,
                ATTENTION: self._attention_s() * work,
                MEMORY: (self._memory_s(moved) + kernels) * work,
                TENSOR: ALL_REDUCES * self._all_reduce_s(),
            },
            constant("host_layer_s")
            + ALL_REDUCES * constant("host_collective_s") * np.log2(self._tensor)
            + constant("host_softmax_s") * unfused,
        )

    def attention_again(self) -> Pass:
        """Selective recomputation: scores, softmax, dropout, and contexts once more."""
        kernels = 4 * self._platform.constant("kernel_s")
        return self._pass(
            {
                ATTENTION: self._attention_s(),
                MEMORY: self._memory_s(SCORE_BYTES * self._score_items) + kernels,
            },
            0.25 * self._platform.constant("host_layer_s"),
        )

    def embedding(self) -> Pass:
        """Look-up of words and its gradient; with tensor parallelism an all-reduce."""
        return self._pass(
            {
                MEMORY: self._memory_s(2 * EMBEDDING_BYTES * self._tokens * self._hidden),
                TENSOR: self._all_reduce_s(),
            },
            0.0,
        )

    def head(self) -> Pass:
        """Logits, loss and their gradients."""
        words = words_of(self._table)
        uneven = self._platform.constant("uneven_vocabulary")
        slower = np.where(words % _ALIGNED == 0, 1.0, uneven)
        kernels = (1 + BACKWARD) * HEAD_KERNELS * self._platform.constant("kernel_s")
        return self._pass(
            {
                MATMUL: (1 + BACKWARD) * self._product_s(words, self._hidden) * slower,
                MEMORY: self._memory_s(HEAD_BYTES * self._tokens * words) + kernels,
                TENSOR: self._all_reduce_s(),
            },
            self._platform.constant("host_layer_s"),
        )

    def _pass(self, device: dict[str, Array], host_s: Array | float) -> Pass:
        """A pass; parts that are left out take no time."""
        nothing = np.zeros(len(self._table))
        device = {name: device.get(name, nothing) for name in PARTS if name != HOST}
        busy = np.sum(list(device.values()), axis=0)
        k = np.where(self._tensor > 1, SHARPNESS_TOGETHER, SHARPNESS_ALONE)
        longer = (busy**k + np.asarray(host_s) ** k) ** (1 / k)
        return Pass({**device, HOST: longer - busy})

    def _product_s(self, columns: Array, inner: Array) -> Array:
        """Seconds of (tokens x inner) (inner x columns)."""
        platform = self._platform
        width = platform.constant("matmul_width")
        operations = 2 * self._tokens * columns * inner
        longer = (1 + width / self._tokens) * (1 + width / columns) * (1 + width / inner)
        rate = platform.device.flops_per_s * platform.constant("matmul_efficiency")
        return operations * longer / rate

    def _attention_s(self) -> Array:
        table, platform = self._table, self._platform
        part = self._hidden / self._tensor
        operations = 4 * table["micro_batch"] * table["sequence_length"] ** 2 * part  # 4 b s^2 h
        rate = platform.device.flops_per_s * platform.constant("attention_efficiency")
        return np.asarray(operations / rate)

    def _memory_s(self, bytes_: Array) -> Array:
        rate = self._platform.device.memory_bytes_per_s
        longer = bytes_of(self._table, "item") / HALF
        return bytes_ * longer / (rate * self._platform.constant("memory_efficiency"))

    def _all_reduce_s(self) -> Array:
        """Seconds of the all-reduce of an activation; sequence parallelism sends as many bytes.

        Rings of a half, a quarter... of the node get ``half_node_share`` of the rate each time.
        """
        halvings = np.log2(np.maximum(self._platform.devices_per_node / self._tensor, 1.0))
        share = self._platform.constant("half_node_share") ** halvings
        bytes_ = bytes_of(self._table, "item") * self._tokens * self._hidden
        return all_reduce_s(self._rings, bytes_, self._platform, share)
