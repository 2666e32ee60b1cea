"""How far each strategy can be cut, and which layer forbids more (Table III, last column).

As published, a spatial split is a grid over width and height, and every convolution counts.
Corrected, a split is along one dimension (what the halo's cost is of), at least one row a device,
and the first convolution of channel parallelism stays whole: an image has three channels. Of this
project's strategies linear layers count too, and the dimensions along which the rows lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ddlbench.predict.paradl.configuration import Configuration
from ddlbench.predict.paradl.layers import Layer
from ddlbench.predict.paradl.workload import Workload

__all__ = ["corrected_limit", "published_limit"]

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
