"""How far each strategy can be cut, and which layer forbids more (Table III, last column).

As published, a spatial split is a grid over width and height, and every convolution counts.
Corrected, a split is along one dimension (what the halo's cost is of), at least one row a device,
and the first convolution of channel parallelism stays whole: an image has three channels.
"""

from __future__ import annotations

from ddlbench.predict.paradl.layers import Layer
from ddlbench.predict.paradl.question import Question
from ddlbench.predict.paradl.workload import Workload

__all__ = ["corrected_limit", "published_limit"]

Limit = tuple[int, str]


def published_limit(workload: Workload, asked: Question) -> Limit:
    """Devices at most, and the layer (or other thing) that limits them."""
    convolutions = _convolutions(workload)
    split = workload.layers[: workload.spatial_layers]
    return _limit(workload, asked, convolutions, min((_pixels(one), one.name) for one in split))


def corrected_limit(workload: Workload, asked: Question) -> Limit:
    """Devices at most, and the layer (or other thing) that limits them."""
    convolutions = _convolutions(workload)
    if asked.strategy == "channel":
        convolutions = convolutions[1:] or convolutions
    split = workload.layers[: workload.spatial_layers]
    return _limit(workload, asked, convolutions, min((one.output[1], one.name) for one in split))


def _limit(workload: Workload, asked: Question, convolutions: list[Layer], spatial: Limit) -> Limit:
    filters = min((layer.filters, layer.name) for layer in convolutions)
    channels = min((layer.channels, layer.name) for layer in convolutions)
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


def _convolutions(workload: Workload) -> list[Layer]:
    return [layer for layer in workload.layers if layer.kind == "conv"]


def _pixels(layer: Layer) -> int:
    return layer.y // layer.filters
