"""Ask a variant of the oracle: question in, projection out.

Limits: how far each strategy can be cut, and which layer forbids more (Table III, last column).
As published, a spatial split is a grid over width and height, and every convolution counts.
Corrected, a split is along one dimension (what the halo's cost is of), at least one row a device,
and the first convolution of channel parallelism stays whole: an image has three channels. Of this
project's strategies linear layers count too, and the dimensions along which the rows lie.

Memory of the fullest device, corrected: Table III counts every activation twice, as a layer's
output and as the next one's input, doubles both for their gradients, which never live all at once,
and forgets the optimizer. Here

    4 [ b (|x_1| + sum_l |y_l|)  outputs kept for the backward pass
      + b max_l (|x_l| + |y_l|)  gradients on both sides of the layer that goes backward
      + (2 + states) |w| ]       weights, gradients, optimizer

with what a split divides: filters and channels the weights of split convolutions (outputs are
gathered and stay whole), space the activations of the split layers, a pipeline both by stage, all
micro-batches in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.schema import nearest
from ddlbench.experiment.units import GB
from ddlbench.predict.paradl import corrected, published
from ddlbench.predict.paradl.configuration import Configuration, Projection
from ddlbench.predict.paradl.corrected import stage_bounds, weight_shares
from ddlbench.predict.paradl.platform import Platform
from ddlbench.predict.paradl.published import ITEM_BYTES, Terms
from ddlbench.predict.paradl.workload import Layer, Workload


def corrected_bytes(workload: Workload, platform: Platform, asked: Configuration) -> float:
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


Limit = tuple[int, str]
_DEALT = ("conv", "linear")


def published_limit(workload: Workload, asked: Configuration) -> Limit:
    """Devices at most, and the layer (or other thing) that limits them."""
    convolutions = _of_kinds(workload, "conv")
    split = workload.layers[: workload.spatial_layers]
    return _limit(workload, asked, convolutions, min((_pixels(one), one.name) for one in split))


def corrected_limit(workload: Workload, asked: Configuration) -> Limit:
    """Devices at most, and the layer (or other thing) that limits them."""
    dealt = _of_kinds(workload, "conv") if asked.own is None else _of_kinds(workload, *_DEALT)
    if asked.strategy == "channel":
        dealt = dealt[1:] or dealt
    split = workload.layers[: workload.spatial_layers]
    rows = min((_rows(one, asked.split_dims), one.name) for one in split)
    return _limit(workload, asked, dealt, rows)


def _limit(workload: Workload, asked: Configuration, dealt: list[Layer], spatial: Limit) -> Limit:
    filters = min((layer.filters, layer.name) for layer in dealt)
    channels = min((layer.channels, layer.name) for layer in dealt)
    samples = int(asked.batch)
    return {
        "serial": (1, "one device"),
        "data": (samples, "the batch"),
        "filter": filters,
        "channel": channels,
        "spatial": spatial,
        "data+filter": (samples * filters[0], f"the batch and {filters[1]}"),
        "data+spatial": (samples * spatial[0], f"the batch and {spatial[1]}"),
        "pipeline": (len(workload.layers), "the number of layers"),
    }[asked.strategy]


def _of_kinds(workload: Workload, *kinds: str) -> list[Layer]:
    return [layer for layer in workload.layers if layer.kind in kinds]


def _pixels(layer: Layer) -> int:
    return layer.y // layer.filters


def _rows(layer: Layer, dims: Sequence[int]) -> int:
    """Rows of the output; of a grid, places for a device."""
    return prod(layer.output[dim] for dim in dims)


@dataclass(frozen=True)
class Variant:
    """One way to evaluate Table III."""

    terms: Mapping[str, Callable[[Workload, Platform, Configuration], Terms]]
    memory_bytes: Callable[[Workload, Platform, Configuration], float]
    limit: Callable[[Workload, Configuration], tuple[int, str]]


VARIANTS = {
    "as-published": Variant(published.TERMS, published.memory_bytes, published_limit),
    "corrected": Variant(corrected.TERMS, corrected_bytes, corrected_limit),
}


def variant_of(name: str) -> Variant:
    """The variant of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in VARIANTS:
        raise ConfigError(f"unknown variant {name!r} of the oracle; {nearest(name, VARIANTS)}")
    return VARIANTS[name]


def project(
    variant: str, workload: Workload, platform: Platform, asked: Configuration
) -> Projection:
    """What one iteration costs, also beyond the strategy's limits (the projection says them).

    Raises:
        ConfigError: unknown variant, or more devices than the platform has.
    """
    chosen = variant_of(variant)
    computation, communication = chosen.terms[asked.strategy](workload, platform, asked)
    most, why = chosen.limit(workload, asked)
    return Projection(
        asked,
        computation,
        communication,
        chosen.memory_bytes(workload, platform, asked),
        most,
        why,
    )


def refused(projection: Projection, platform: Platform) -> str:
    """Why a strategy cannot run like this; empty when it can."""
    asked, room = projection.question, platform.device["memory_bytes"]
    if asked.devices > projection.max_devices:
        return f"at most {projection.max_devices} device(s), limited by {projection.limiting_layer}"
    if projection.memory_bytes > room:
        return f"needs {GB.text(projection.memory_bytes, '.1f')} of {GB.text(room, '.1f')} a device"
    return ""
