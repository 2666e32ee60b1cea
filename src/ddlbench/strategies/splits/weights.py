"""Convolutions and linear layers of which each rank has its own filters or channels.

::

    filter     x whole --share--> own filters  --gather--> y whole     bias: of the own filters
    channel    x whole --take---> partial sums --total---> y whole     bias: whole, added once

Activations between layers are whole on every rank, and every rank computes what is between these
layers. Source: Kahira et al., section 3 (filter and channel parallelism).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.splits.layout import Interval, Parts, Piece, channel_pieces, filter_pieces
from ddlbench.strategies.splits.row_layers import FUNCTIONS, Convolution
from ddlbench.strategies.splits.shard_group import ShardGroup, gather, share, take, total

# (input, weight, bias, groups) -> output
_Apply = Callable[[Tensor, Tensor, Tensor | None, int], Tensor]


class WeightSplit(nn.Module):
    """Base of both splits: pieces of the weight; whole input -> whole output."""

    def __init__(
        self, layer: Convolution | nn.Linear, pieces: list[Piece], bias: Interval, group: ShardGroup
    ) -> None:
        super().__init__()
        self.group, self.pieces = group, pieces
        self.apply_layer, self.dim = _application(layer)
        self._whole = {"weight": layer.weight.shape}
        self._places: dict[str, tuple[str, tuple[slice, ...]]] = {}
        for number, piece in enumerate(pieces):
            place = (slice(*piece.filters), slice(*piece.within))
            self._keep(f"weight_{number}", "weight", layer.weight, place)
        self.has_bias = layer.bias is not None
        if layer.bias is not None:
            self._whole["bias"] = layer.bias.shape
            self._keep("bias_0", "bias", layer.bias, (slice(*bias),))

    def _keep(self, key: str, name: str, whole: Tensor, place: tuple[slice, ...]) -> None:
        part = nn.Parameter(whole.detach()[place].clone(), requires_grad=whole.requires_grad)
        self.register_parameter(key, part)
        self._places[key] = (name, place)

    @property
    def weight(self) -> Tensor:
        """There is no whole weight.

        Raises:
            Unsupported: always.
        """
        raise _whole_is_read("weight")

    @property
    def bias(self) -> Tensor | None:
        """There is no whole bias.

        Raises:
            Unsupported: the layer has one.
        """
        if self.has_bias:
            raise _whole_is_read("bias")
        return None

    def weight_of(self, number: int) -> Tensor:
        return self.get_parameter(f"weight_{number}")

    def bias_of_rank(self) -> Tensor:
        return self.get_parameter("bias_0")

    def whole_state(self) -> dict[str, Tensor]:
        """The whole layer's parameters, on every rank; all ranks call this together."""
        # Every rank adds its own part to zeros, which changes no value.
        like = self.weight_of(0)
        state = {}
        for name, shape in self._whole.items():
            whole = torch.zeros(shape, dtype=like.dtype, device=like.device)
            for key, (part_of, place) in self._places.items():
                if part_of == name and self._adds(name):
                    whole[place] = getattr(self, key).detach()
            state[name] = self.group.all_reduce(whole)
        return state

    def _adds(self, name: str) -> bool:
        """Whether this rank adds its part of a parameter, which no other rank adds."""
        return True


def _whole_is_read(what: str) -> Unsupported:
    return Unsupported(
        f"a block reads the {what} of a layer that is split; call the layer instead, or take a "
        "strategy that splits no layer",
        code="cannot_be_split",
    )


class FilterSplit(WeightSplit):
    """A layer of which this rank computes its own filters (output features)."""

    def __init__(self, layer: Convolution | nn.Linear, group: ShardGroup) -> None:
        filters, channels, groups = features_of(layer)
        parts = Parts.even(filters, group.size)
        part = parts[group.rank]
        super().__init__(layer, filter_pieces(part, filters, channels, groups), part, group)
        self.parts, self.first = parts, part[0]

    def forward(self, whole: Tensor) -> Tensor:
        shared = share(whole, self.group)
        outputs = []
        for number, piece in enumerate(self.pieces):
            bias = None
            if self.has_bias:
                first, end = piece.filters
                bias = self.bias_of_rank()[first - self.first : end - self.first]
            read = _channels(shared, self.dim, piece.channels)
            outputs.append(self.apply_layer(read, self.weight_of(number), bias, piece.groups))
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, self.dim)
        return gather(output, self.dim, self.parts, self.group)


class ChannelSplit(WeightSplit):
    """A layer of which this rank reads its own input channels (features)."""

    def __init__(self, layer: Convolution | nn.Linear, group: ShardGroup) -> None:
        filters, channels, groups = features_of(layer)
        parts = Parts.even(channels, group.size)
        part = parts[group.rank]
        pieces = channel_pieces(part, filters, channels, groups)
        super().__init__(layer, pieces, (0, filters), group)
        self.parts, self.first, self.filters = parts, part[0], filters

    def forward(self, whole: Tensor) -> Tensor:
        taken = take(whole, self.dim, self.parts, self.group)
        outputs = []
        for number, piece in enumerate(self.pieces):
            first, end = piece.channels
            read = _channels(taken, self.dim, (first - self.first, end - self.first))
            outputs.append(self.apply_layer(read, self.weight_of(number), None, piece.groups))
        addend = outputs[0] if len(outputs) == 1 else torch.cat(outputs, self.dim)
        summed = total(self._padded(addend), self.group)
        if not self.has_bias:
            return summed
        bias = self.bias_of_rank().to(summed.dtype)
        return summed + bias.view(-1, *[1] * self._dims_after_channels(summed))

    def _padded(self, addend: Tensor) -> Tensor:
        """The addend with zeros for the filters of groups of which this rank reads no channel."""
        before, after = self.pieces[0].filters[0], self.filters - self.pieces[-1].filters[1]
        if before == after == 0:
            return addend
        return F.pad(addend, [0, 0] * self._dims_after_channels(addend) + [before, after])

    def _dims_after_channels(self, outputs: Tensor) -> int:
        return outputs.dim() - 1 - self.dim % outputs.dim()

    def _adds(self, name: str) -> bool:
        return name == "weight" or self.group.rank == 0


def features_of(layer: Convolution | nn.Linear) -> tuple[int, int, int]:
    """Numbers of filters, input channels and groups."""
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features, 1
    return layer.out_channels, layer.in_channels, layer.groups


def _channels(tensor: Tensor, dim: int, interval: Interval) -> Tensor:
    first, end = interval
    return tensor.narrow(dim, first, end - first)


def _application(layer: Convolution | nn.Linear) -> tuple[_Apply, int]:
    """The layer's function for other weights, and the dimension of its features."""
    if isinstance(layer, nn.Linear):
        return lambda inputs, weight, bias, _groups: F.linear(inputs, weight, bias), -1
    convolve = FUNCTIONS[len(layer.kernel_size)]
    stride, padding, dilation = layer.stride, layer.padding, layer.dilation
    around, mode = layer._reversed_padding_repeated_twice, layer.padding_mode

    def apply(inputs: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        if mode == "zeros":
            return convolve(inputs, weight, bias, stride, padding, dilation, groups)
        padded = F.pad(inputs, around, mode)
        return convolve(padded, weight, bias, stride, 0, dilation, groups)

    return apply, 1
