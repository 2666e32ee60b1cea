"""The layers of a profile as the oracle knows layers: shapes, kinds, windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ddlbench.experiment.lines import Timing
from ddlbench.planning.workload import Workload
from ddlbench.predict.paradl.layers import Layer
from ddlbench.predict.prediction import NotPredictable

__all__ = ["Shape", "shapes_of", "split_layers"]

_ITEM_BYTES = 4
_KINDS = (
    ("BatchNorm", "batchnorm"),
    ("Conv", "conv"),
    ("Linear", "linear"),
    ("Pool", "pool"),
    ("ReLU", "relu"),
    ("Dropout", "dropout"),
)


@dataclass(frozen=True)
class Shape:
    """One layer, and its forward and backward times over batch size."""

    layer: Layer
    timings: tuple[Timing, Timing]


def shapes_of(workload: Workload) -> list[Shape]:
    """Layers that compute; what only gives a tensor another form is none.

    Raises:
        NotPredictable: the profile is older than shapes, a layer is of a kind without a model, or
            none is a convolution.
    """
    found = []
    for entry in workload.layer_entries:
        shape = entry.get("shape")
        if shape is None:
            raise NotPredictable(
                f"the profile of {workload.network} has no shapes of layers; make it again"
            )
        kind = next((name for part, name in _KINDS if part in entry["kind"]), None)
        if kind is None:
            if entry["kind"] in ("Flatten", "Identity"):
                continue
            raise NotPredictable(f"ParaDL has no row for layer {entry['name']} ({entry['kind']})")
        layer = Layer(
            name=entry["name"],
            kind=kind,
            input=tuple(shape["input"]),
            output=tuple(shape["output"]),
            weights=entry["parameter_bytes"] // _ITEM_BYTES,
            kernel=shape["kernel"],
            stride=shape["stride"],
            shortcut="downsample" in entry["name"],
        )
        found.append(Shape(layer, workload.layer_timings(entry)))
    if not any(shape.layer.kind == "conv" for shape in found):
        raise NotPredictable(f"ParaDL's table is of convolutions, and {workload.network} has none")
    return found


def split_layers(layers: Sequence[Layer]) -> int:
    """How many of the first layers a spatial split takes: up to the head.

    The head begins with the first layer that has no extents left, or that makes a single pixel of
    an image.
    """
    for number, layer in enumerate(layers):
        single = prod(layer.output[1:]) == 1 and prod(layer.input[1:]) > 1
        if layer.kind == "linear" or len(layer.input) == 1 or (single and layer.kind == "pool"):
            return number
    return len(layers)
