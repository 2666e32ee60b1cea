"""Layers as shapes: what a workload file says of a network, by arithmetic on extents alone.

A network is a sequence of layers; a shortcut's projection stands where its block ends.
|x|, |y| are items of one sample, |w| items of the layer (Kahira et al., Table II).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

__all__ = ["Layer", "Shape", "Stack", "layer_dict"]

Shape = tuple[int, ...]
"""Channels, then the spatial extents."""


@dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
        input, output: channels and spatial extents of one sample.
        weights: trained items, biases and both vectors of a batch normalisation included.
        kernel, stride: extent and step along every spatial dimension; 1 where there is none.
        shortcut: a projection beside a residual block.
    """

    name: str
    kind: str
    input: Shape
    output: Shape
    weights: int = 0
    kernel: int = 1
    stride: int = 1
    shortcut: bool = False

    @property
    def x(self) -> int:
        """|x|: input items of one sample."""
        return prod(self.input)

    @property
    def y(self) -> int:
        """|y|: output items of one sample."""
        return prod(self.output)

    @property
    def channels(self) -> int:
        """Input channels, C."""
        return self.input[0]

    @property
    def filters(self) -> int:
        """Output channels, F."""
        return self.output[0]

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one sample forward."""
        if self.kind == "conv":
            window = self.kernel ** len(self.input[1:])
            return self.y * self.channels * window
        return self.x * self.y if self.kind == "linear" else 0

    @property
    def row(self) -> int:
        """Items of one row of the input: a slice of extent 1 along the first spatial dimension."""
        return self.slice_items(1)

    def slice_items(self, dim: int) -> int:
        """Items of a slice of the input of extent 1 along a dimension of its shape."""
        return self.x // self.input[dim]

    @property
    def halo_rows(self) -> int:
        """Rows of both neighbours together that an inner part needs: kernel less stride."""
        return max(0, self.kernel - self.stride) if self.kind in ("conv", "pool") else 0


class Stack:
    """Layers one after the other, each as large as the one before leaves it."""

    def __init__(self, sample: Shape) -> None:
        self.shape = sample
        self.layers: list[Layer] = []

    def conv(
        self,
        name: str,
        filters: int,
        kernel: int,
        stride: int = 1,
        pad: int | str = 0,
        *,
        bias: bool = True,
    ) -> None:
        """Add a convolution; ``pad="same"`` leaves extent / stride, rounded up."""
        extents = tuple(_extent(size, kernel, stride, pad) for size in self.shape[1:])
        window = kernel ** len(extents)
        weights = self.shape[0] * filters * window + (filters if bias else 0)
        self._add(Layer(name, "conv", self.shape, (filters, *extents), weights, kernel, stride))

    def pool(self, name: str, kernel: int, stride: int, round_up: bool = False) -> None:
        """Add a pooling layer without padding."""
        over = stride - 1 if round_up else 0
        extents = tuple((size - kernel + over) // stride + 1 for size in self.shape[1:])
        shape = (self.shape[0], *extents)
        self._add(Layer(name, "pool", self.shape, shape, 0, kernel, stride))

    def pointwise(self, name: str, kind: str) -> None:
        """Add a layer whose output is as large as its input."""
        weights = 2 * self.shape[0] if kind == "batchnorm" else 0
        self._add(Layer(name, kind, self.shape, self.shape, weights))

    def linear(self, name: str, features: int) -> None:
        """Add a fully connected layer over everything before it."""
        weights = (prod(self.shape) + 1) * features
        shape = (features, *(1 for _ in self.shape[1:]))
        self._add(Layer(name, "linear", self.shape, shape, weights))

    def shortcut(self, other: Stack) -> None:
        """Add the layers of a projection that another stack holds; the shape stays."""
        self.layers += [replace(layer, shortcut=True) for layer in other.layers]

    def _add(self, layer: Layer) -> None:
        self.layers.append(layer)
        self.shape = layer.output


def _extent(size: int, kernel: int, stride: int, pad: int | str) -> int:
    if isinstance(pad, str):
        return -(-size // stride)
    return (size + 2 * pad - kernel) // stride + 1


def layer_dict(layer: Layer) -> dict[str, Any]:
    """A layer as a workload file writes it; what is usual is left out."""
    value: dict[str, Any] = {
        "name": layer.name,
        "kind": layer.kind,
        "input": list(layer.input),
        "output": list(layer.output),
        "weights": layer.weights,
    }
    if layer.kernel > 1 or layer.stride > 1:
        value |= {"kernel": layer.kernel, "stride": layer.stride}
    if layer.shortcut:
        value["shortcut"] = True
    return value
