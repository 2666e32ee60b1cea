"""Memory of the fullest device, corrected.

Table III counts every activation twice, as a layer's output and as the next one's input, doubles
both for their gradients, which never live all at once, and forgets the optimizer. Here

    4 [ b (|x_1| + sum_l |y_l|)  outputs kept for the backward pass
      + b max_l (|x_l| + |y_l|)  gradients on both sides of the layer that goes backward
      + (2 + states) |w| ]       weights, gradients, optimizer

with what a split divides: filters and channels the weights of split convolutions (outputs are
gathered and stay whole), space the activations of the split layers, a pipeline both by stage, all
micro-batches in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

from ddlbench.predict.paradl.configuration import Configuration
from ddlbench.predict.paradl.corrected import stage_bounds, weight_shares
from ddlbench.predict.paradl.layers import Layer
from ddlbench.predict.paradl.platform import Platform
from ddlbench.predict.paradl.published import ITEM_BYTES
from ddlbench.predict.paradl.workload import Workload

__all__ = ["memory_bytes"]


def memory_bytes(workload: Workload, platform: Platform, asked: Configuration) -> float:
    """Bytes of the fullest device."""
    states = platform.device["optimizer_states"]
    layers = workload.layers
    if asked.strategy == "pipeline":
        bounds = stage_bounds(workload, platform, asked.devices)
        return max(
            _bytes(layers[start:end], asked.batch, [1.0] * (end - start),
                   sum(layer.weights for layer in layers[start:end]), states)
            for start, end in bounds
        )  # fmt: skip
    p = asked.inside
    shares = [1.0] * len(layers)
    weights = float(workload.weights)
    if asked.strategy in ("spatial", "data+spatial"):
        count = workload.spatial_layers
        even = [1 / p if index < count else 1.0 for index in range(len(layers))]
        shares = even if asked.own is None else list(asked.own.shares)
    elif asked.strategy in ("filter", "channel", "data+filter"):
        parts = zip(layers, weight_shares(workload, asked), strict=True)
        weights = sum(layer.weights * share for layer, share in parts)
    return _bytes(layers, asked.group_batch, shares, weights, states)


def _bytes(
    layers: Sequence[Layer], batch: float, shares: Sequence[float], weights: float, states: float
) -> float:
    kept = layers[0].x * shares[0]
    kept += sum(layer.y * share for layer, share in zip(layers, shares, strict=True))
    going = max((layer.x + layer.y) * share for layer, share in zip(layers, shares, strict=True))
    return ITEM_BYTES * (batch * (kept + going) + (2 + states) * weights)
