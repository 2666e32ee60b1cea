"""Seconds of a network's blocks on a device by its data sheet, layer by layer.

::

    kernel      max(operations / (efficiency of its kind x peak), bytes / (share x memory rate))
                + launch
    forward     one kernel an operation
    backward    products: the gradients of input and weights, each as the forward pass (the first
                convolution has none of its input); norm: reads its input and its gradient twice,
                writes one; element-wise: half as much again as the forward pass

A normalisation reads its input twice, for the statistics and to normalise. Efficiencies count
operations as a direct convolution takes them: a spatial one may exceed 1 in single precision, as
Winograd's algorithm takes up to 2.25 times fewer (Lavin and Gray, CVPR 2016). Products in tf32,
bf16 and fp16 run on matrix units, with an efficiency that kinds share; depthwise convolutions do
not. Matrix units read 16-bit images with their channels side by side. Software that keeps them
apart (NCHW) copies what each convolution reads and writes (NVIDIA, Convolutional Layers User's
Guide, "Tensor Layouts"); fused software keeps them side by side. Source: Williams, Waterman and
Patterson, "Roofline", CACM 2009.

The constants are in ``roofline.yaml`` beside this file, fitted by
:mod:`ddlbench.predict.roofline_score` and scored on networks and devices that were held out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from ddlbench.common.form import Name
from ddlbench.common.schema import read_checked, read_yaml
from ddlbench.planning.layer_table import KINDS, LayerBlock
from ddlbench.predict.constants import Array, HeldOut, WithConstants
from ddlbench.predict.hardware import DeviceSheet

PRODUCTS = ("first", "pointwise", "spatial", "depthwise", "linear", "attention")
ITEM_BYTES: Mapping[str, int] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_FILE = Path(__file__).with_suffix(".yaml")
_NORM_FORWARD, _NORM_BACKWARD = (2, 1), (3, 2)
"""Passes over the items that a normalisation reads, and over those that it writes."""
_ELEMENTWISE_BACKWARD = 1.5
_HALF_BYTES = 2
_COPIED = [KINDS.index(kind) for kind in ("first", "pointwise", "spatial")]
_UPDATE_KERNELS = 3
_COPY = 2
"""A copy reads and writes."""


@dataclass(frozen=True, kw_only=True)
class Roofline(WithConstants):
    """The constants, and what they were fitted on.

    Their names are ``<kind>_efficiency`` of vector units, ``matrix_efficiency``, ``memory_share``,
    ``launch_s`` and ``fused_share``, the part of the traffic of normalisations and element-wise
    operations that is left where software fuses them into their neighbours.
    """

    header: ClassVar[str] = "# Written by `ddlbench oracle roofline RUNS --output FILE`.\n"

    devices: HeldOut
    """Measured over predicted steps of whole networks on devices that were held out."""
    fitted_on: Name


@cache
def shipped() -> Roofline:
    """The constants of this version."""
    return read_checked(Roofline, read_yaml(_FILE), str(_FILE))


@dataclass(frozen=True)
class Layers:
    """Operations of a network as arrays of one length (o).

    Args:
        block: index of each operation's block.
        kind: index in :data:`KINDS`.
        operations, read_items, written_items: of one sample, forward.
        weights: values of the weights that it reads.
        times: equal operations.
        blocks: number of blocks.
    """

    block: Array
    kind: Array
    operations: Array
    read_items: Array
    written_items: Array
    weights: Array
    times: Array
    blocks: int

    @classmethod
    def of(cls, blocks: Sequence[LayerBlock]) -> Layers:
        rows = [
            (index, KINDS.index(operation.kind), operation.operations, operation.read_items,
             operation.written_items, operation.weights, operation.times)
            for index, block in enumerate(blocks)
            for operation in block.operations
        ]  # fmt: skip
        block, kind, *numbers = np.array(rows, dtype=float).reshape(-1, 7).T
        operations, read, written, weights, times = numbers
        return cls(
            block.astype(int), kind.astype(int), operations, read, written, weights, times,
            len(blocks),
        )  # fmt: skip

    def per_block(self, seconds: Array) -> Array:
        """Sums of (o,) over the operations of each block, (blocks,)."""
        return np.bincount(self.block, self.times * seconds, self.blocks)


def passes_s(
    layers: Layers,
    device: DeviceSheet,
    precision: str,
    samples: float,
    constants: Roofline,
    *,
    fused: bool = False,
) -> tuple[Array, Array]:
    """Seconds of the forward and of the backward pass of each block, (blocks,) each.

    Args:
        layers: of the network.
        device: its data sheet.
        precision: of activations and products: fp32, tf32, bf16 or fp16.
        samples: of the pass.
        constants: of the roofline.
        fused: the software fuses normalisations and element-wise operations.

    Raises:
        ConfigError: the data sheet has no such precision.
    """
    rate = _rates(device, precision, constants)[layers.kind]
    item_bytes = ITEM_BYTES[precision]
    memory = constants.constant("memory_share") * device.memory_bytes_per_s / item_bytes
    launch_s = constants.constant("launch_s")
    left = constants.constant("fused_share") if fused else 1.0
    read, written = samples * layers.read_items, samples * layers.written_items
    is_norm = layers.kind == KINDS.index("norm")
    is_product = layers.kind < len(PRODUCTS)
    is_first = layers.kind == KINDS.index("first")

    product_s = np.maximum(
        samples * layers.operations / rate, (read + written + layers.weights) / memory
    )
    if item_bytes == _HALF_BYTES and not fused:
        copied = np.isin(layers.kind, _COPIED)
        product_s = product_s + np.where(copied, _COPY * (read + written) / memory, 0.0)
    norm = [a * read + b * written for a, b in (_NORM_FORWARD, _NORM_BACKWARD)]
    plain = [factor * (read + written) for factor in (1.0, _ELEMENTWISE_BACKWARD)]
    moved = [left * np.where(is_norm, *pair) / memory for pair in zip(norm, plain, strict=True)]
    gradients = np.where(is_first, 1, 2)
    forward_s = np.where(is_product, product_s, moved[0]) + launch_s
    backward_s = np.where(is_product, gradients * product_s, moved[1])
    backward_s = backward_s + np.where(is_product, gradients, 1) * launch_s
    return layers.per_block(forward_s), layers.per_block(backward_s)


def _rates(device: DeviceSheet, precision: str, constants: Roofline) -> Array:
    """Operations a second of each kind of product; endless for kinds that only move memory."""
    vector, peak = device.peak("fp32"), device.peak(precision)
    matrix = constants.constant("matrix_efficiency") * peak
    rates = np.full(len(KINDS), np.inf)
    for index, kind in enumerate(PRODUCTS):
        on_vector = precision == "fp32" or kind == "depthwise"
        rates[index] = constants.constant(f"{kind}_efficiency") * vector if on_vector else matrix
    return rates


def whole_step_s(
    layers: Layers, device: DeviceSheet, precision: str, samples: float, constants: Roofline
) -> float:
    """Seconds of both passes and the update of one device, without loading."""
    both = passes_s(layers, device, precision, samples, constants)
    parameter_bytes = 4 * float((layers.weights * layers.times).sum())
    return sum(float(times_s.sum()) for times_s in both) + update_s(
        device, parameter_bytes, constants
    )


def update_s(
    device: DeviceSheet, parameter_bytes: float, constants: Roofline, states: int = 1
) -> float:
    """Seconds of an optimiser that keeps ``states`` a weight, in single precision.

    It reads weight, gradient and states, and writes weight and states.
    """
    rate = constants.constant("memory_share") * device.memory_bytes_per_s
    launches_s = _UPDATE_KERNELS * constants.constant("launch_s")
    return (3 + 2 * states) * parameter_bytes / rate + launches_s
