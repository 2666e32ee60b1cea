"""Project one iteration of a strategy with a variant of the oracle.

Limits: the most devices of a strategy, and the layer that limits them (Table III, last column). As
printed, a spatial split is a grid over width and height, and every convolution counts. Corrected,
a split is along one dimension, as is the cost of its halo, with at least one row per device. The
first convolution of channel parallelism stays whole, as an image has three channels. For this
project's strategies linear layers count too, and the dimensions along which the rows lie.

Memory of the fullest device: Table III counts every activation twice, as a layer's output and as
the next one's input. It doubles both for their gradients, which never live all at once, and it
leaves out the optimizer. Corrected:

    4 [ b (|x_1| + sum_l |y_l|)  outputs kept for the backward pass
      + b max_l (|x_l| + |y_l|)  gradients on both sides of the layer that goes backward
      + (2 + states) |w| ]       weights, gradients, optimizer

A split divides some of it: filters and channels divide the weights of split convolutions (outputs
are gathered and stay whole), space the activations of the split layers, a pipeline both by stage,
with all micro-batches in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import nearest
from ddlbench.common.units import GB
from ddlbench.predict.paradl import authors_code, corrected, printed
from ddlbench.predict.paradl.authors_code import ITEM_BYTES, Terms
from ddlbench.predict.paradl.configuration import Configuration, Projection
from ddlbench.predict.paradl.corrected import stage_bounds, weight_shares
from ddlbench.predict.paradl.workload import Layer, Workload
from ddlbench.predict.platform_file import Platform


def corrected_bytes(workload: Workload, platform: Platform, config: Configuration) -> float:
    """Bytes of the fullest device."""
    states = platform.device.optimizer_states
    layers = workload.layers
    if config.strategy == "pipeline":
        bounds = stage_bounds(workload, platform, config.devices)
        return max(
            _bytes(layers[start:end], config.batch, [1.0] * (end - start),
                   sum(layer.weights for layer in layers[start:end]), states)
            for start, end in bounds
        )  # fmt: skip
    p = config.inside
    shares = [1.0] * len(layers)
    weights = float(workload.weights)
    if config.strategy in ("spatial", "data+spatial"):
        count = workload.spatial_layers
        shares = [1 / p if index < count else 1.0 for index in range(len(layers))]
        if config.own is not None:
            shares = list(config.own.shares)
    elif config.strategy in ("filter", "channel", "data+filter"):
        parts = zip(layers, weight_shares(workload, config), strict=True)
        weights = sum(layer.weights * share for layer, share in parts)
    return _bytes(layers, config.group_batch, shares, weights, states)


def _bytes(
    layers: Sequence[Layer], batch: float, shares: Sequence[float], weights: float, states: float
) -> float:
    kept = layers[0].x * shares[0]
    kept += sum(layer.y * share for layer, share in zip(layers, shares, strict=True))
    going = max((layer.x + layer.y) * share for layer, share in zip(layers, shares, strict=True))
    return ITEM_BYTES * (batch * (kept + going) + (2 + states) * weights)


Limit = tuple[int, str]
_WITH_WEIGHTS = ("conv", "linear")


def published_limit(workload: Workload, config: Configuration) -> Limit:
    """Most devices, and what limits them, as a layer (Table III: W_l H_l of inputs)."""
    convolutions = _of_kinds(workload, "conv")
    split = workload.layers[: workload.spatial_layers]
    return _limit(
        workload, config, convolutions, min((one.x // one.channels, one.name) for one in split)
    )


def corrected_limit(workload: Workload, config: Configuration) -> Limit:
    """Most devices, and the layer or other thing that limits them."""
    divided = (
        _of_kinds(workload, "conv") if config.own is None else _of_kinds(workload, *_WITH_WEIGHTS)
    )
    if config.strategy == "channel":
        divided = divided[1:] or divided
    split = workload.layers[: workload.spatial_layers]
    # The rows of an output; along several dimensions the product of its extents.
    rows = min((prod(one.output[dim] for dim in config.split_dims), one.name) for one in split)
    return _limit(workload, config, divided, rows)


def _limit(
    workload: Workload, config: Configuration, divided: list[Layer], spatial: Limit
) -> Limit:
    filters = min((layer.filters, layer.name) for layer in divided)
    channels = min((layer.channels, layer.name) for layer in divided)
    samples = int(config.batch)
    return {
        "serial": (1, "one device"),
        "data": (samples, "the batch"),
        "filter": filters,
        "channel": channels,
        "spatial": spatial,
        "data+filter": (samples * filters[0], f"the batch and {filters[1]}"),
        "data+spatial": (samples * spatial[0], f"the batch and {spatial[1]}"),
        "pipeline": (len(workload.layers), "the number of layers"),
    }[config.strategy]


def _of_kinds(workload: Workload, *kinds: str) -> list[Layer]:
    return [layer for layer in workload.layers if layer.kind in kinds]


@dataclass(frozen=True)
class Variant:
    """One way to evaluate Table III."""

    terms: Mapping[str, Callable[[Workload, Platform, Configuration], Terms]]
    memory_bytes: Callable[[Workload, Platform, Configuration], float]
    limit: Callable[[Workload, Configuration], tuple[int, str]]


VARIANTS = {
    "authors-code": Variant(authors_code.TERMS, authors_code.memory_bytes, published_limit),
    "printed-table": Variant(printed.TERMS, authors_code.memory_bytes, published_limit),
    "corrected": Variant(corrected.TERMS, corrected_bytes, corrected_limit),
}


def variant_of(name: str) -> Variant:
    """The variant of that name; ConfigError if there is none."""
    if name not in VARIANTS:
        raise ConfigError(f"unknown variant {name!r} of the oracle; {nearest(name, VARIANTS)}")
    return VARIANTS[name]


def project(
    variant: str, workload: Workload, platform: Platform, config: Configuration
) -> Projection:
    """Seconds and bytes of one iteration, also beyond the strategy's limits.

    Raises:
        ConfigError: unknown variant, one without the strategy, or more devices than the platform
            has.
    """
    evaluated = variant_of(variant)
    if config.strategy not in evaluated.terms:
        raise ConfigError(
            f"{variant} has no row for {config.strategy}; it has {', '.join(evaluated.terms)}"
        )
    computation, communication = evaluated.terms[config.strategy](workload, platform, config)
    memory_bytes = evaluated.memory_bytes(workload, platform, config)
    limit = evaluated.limit(workload, config)
    return Projection(config, computation, communication, memory_bytes, *limit)


def refused(projection: Projection, platform: Platform) -> str:
    """The reason if a strategy cannot run like this; empty if it can."""
    config, capacity = projection.configuration, platform.device.memory_bytes
    if config.devices > projection.max_devices:
        return f"at most {projection.max_devices} device(s), limited by {projection.limiting_layer}"
    if projection.memory_bytes > capacity:
        needed = GB.text(projection.memory_bytes, ".1f")
        return f"needs {needed} of {GB.text(capacity, '.1f')} a device"
    return ""
