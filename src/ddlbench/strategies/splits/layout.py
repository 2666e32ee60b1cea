"""Which rank has which rows or weights, and which shapes and operations a split meets.

The first is arithmetic without tensors. A split dimension of extent E is cut into even parts for p
ranks; that of rank r begins at ``r E // p``. Parts depend on the extent alone, so branches of equal
extent, as in a residual block, have the same parts. *Rows* are positions along the split dimension,
whichever it is.

::

    rows of the input        | rank 0      | rank 1      | rank 2     |
    rows of the output       | rank 0  | rank 1  | rank 2  |              kernel 3, stride 2
    rank 1 needs                      [ . . . . . ]                       some from other ranks

A convolution of G groups is G independent convolutions; an ordinary convolution or a linear layer
has one group. A part of the filters may begin or end within a group::

    groups     |   0   |   1   |   2   |   3   |        weights (F, C / G, ...)
    filters    . . . . . . . . . . . . . . . . .
    rank 1               [ - | - - - - | - ]            part of 1, whole 2, part of 3: three pieces

Neighbouring whole groups are one piece.

To learn the shapes of its layers, the network runs once on fake tensors (no data), and hooks note
them; layers are modules without children. Between layers, as at an addition or concatenation, each
operation is checked: a split activation allows only those that treat every position alike. The
split ends at the network's *head*, the first block that reads all positions at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ddlbench.networks.block_forms import TensorForm, run_blocks
from ddlbench.networks.inspection import reads_all_rows
from ddlbench.planning.network_tables import ELEMENT_WISE

Interval = tuple[int, int]
"""First position, and the one after the last."""


@dataclass(frozen=True)
class Parts:
    """Consecutive parts of a dimension, one for each rank.

    Args:
        bounds: the begin of each part, and the extent.
    """

    bounds: tuple[int, ...]

    @classmethod
    def even(cls, extent: int, count: int) -> Parts:
        """``count`` parts whose sizes differ by at most one; some may be empty."""
        return cls(tuple(part * extent // count for part in range(count + 1)))

    @property
    def count(self) -> int:
        return len(self.bounds) - 1

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in zip(self.bounds, self.bounds[1:], strict=False))

    def __getitem__(self, rank: int) -> Interval:
        return self.bounds[rank], self.bounds[rank + 1]


@dataclass(frozen=True)
class Window:
    """The inputs that outputs of a convolution or pooling read, along one dimension.

    Args:
        kernel, stride, dilation: of the layer.
        before, after: padding.
    """

    kernel: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    def reads(self, outputs: Interval) -> Interval:
        """Input positions that outputs read; those below 0 or past the extent are padding."""
        first, end = outputs
        start = first * self.stride - self.before
        last = (end - 1) * self.stride - self.before + self.dilation * (self.kernel - 1)
        return start, last + 1


@dataclass(frozen=True)
class Halo:
    """The exchange of rows after which every rank has the inputs of its outputs.

    Args:
        owned: parts of the input.
        wanted: input rows that each rank needs, without padding.
        padding: positions of padding before and after them, for each rank.
    """

    owned: Parts
    wanted: tuple[Interval, ...]
    padding: tuple[Interval, ...]

    @property
    def is_needless(self) -> bool:
        """Whether every rank has exactly the rows that it needs."""
        owned = tuple(self.owned[rank] for rank in range(self.owned.count))
        return self.wanted == owned and not any(map(any, self.padding))

    def kept(self, rank: int) -> Interval:
        """Rows that the rank both has and needs."""
        return overlap(self.owned[rank], self.wanted[rank])

    def sent(self, rank: int) -> list[tuple[int, Interval]]:
        """Receiving ranks, and the rows that each gets."""
        return self._others(rank, [overlap(self.owned[rank], wanted) for wanted in self.wanted])

    def received(self, rank: int) -> list[tuple[int, Interval]]:
        """Sending ranks, and the rows that each gives."""
        owners = range(self.owned.count)
        return self._others(rank, [overlap(self.owned[o], self.wanted[rank]) for o in owners])

    def _others(self, rank: int, rows: Sequence[Interval]) -> list[tuple[int, Interval]]:
        return [
            (other, interval)
            for other, interval in enumerate(rows)
            if other != rank and interval[0] < interval[1]
        ]


def halo_of(window: Window, inputs: Parts, outputs: Parts) -> Halo:
    """The exchange for a window, given the parts of its input and output."""
    extent = inputs.bounds[-1]
    wanted, padding = [], []
    for rank in range(outputs.count):
        start, end = window.reads(outputs[rank])
        first = min(max(start, 0), extent)
        last = max(min(end, extent), first)
        before = min(max(-start, 0), end - start)
        wanted.append((first, last))
        padding.append((before, end - start - before - (last - first)))
    return Halo(inputs, tuple(wanted), tuple(padding))


def overlap(interval: Interval, other: Interval) -> Interval:
    """Intersection of two intervals; an empty one begins where it ends."""
    first = max(interval[0], other[0])
    return first, max(first, min(interval[1], other[1]))


@dataclass(frozen=True)
class Piece:
    """One convolution of a rank.

    Args:
        filters: outputs of the whole layer that it computes or adds to.
        channels: inputs of the whole layer that it reads.
        within: its part of the weights' second dimension, the input channels within a group.
        groups: of this convolution.
    """

    filters: Interval
    channels: Interval
    within: Interval
    groups: int


def filter_pieces(part: Interval, filters: int, channels: int, groups: int) -> list[Piece]:
    """The pieces that compute the filters of ``part``, of a layer with these numbers."""
    group_filters, group_channels = filters // groups, channels // groups
    return [
        Piece(
            filters=outputs,
            channels=(first * group_channels, end * group_channels),
            within=(0, group_channels),
            groups=end - first,
        )
        for outputs, (first, end) in _runs(part, group_filters)
    ]


def channel_pieces(part: Interval, filters: int, channels: int, groups: int) -> list[Piece]:
    """The pieces that read the input channels of ``part``, of a layer with these numbers."""
    group_channels, group_filters = channels // groups, filters // groups
    pieces = []
    for inputs, (first, end) in _runs(part, group_channels):
        start = inputs[0] - first * group_channels
        whole = end - first > 1
        within = (0, group_channels) if whole else (start, start + inputs[1] - inputs[0])
        outputs = (first * group_filters, end * group_filters)
        pieces.append(Piece(outputs, inputs, within, end - first))
    return pieces


def _runs(part: Interval, size: int) -> Iterator[tuple[Interval, Interval]]:
    """Cut ``part`` at groups of ``size``, but not between whole groups: (positions, groups)."""
    first, end = part
    while first < end:
        group = first // size
        whole = (end - first) // size if first % size == 0 else 0
        last = group + max(whole, 1)
        stop = min(end, last * size)
        yield (first, stop), (group, last)
        first = stop


# Layers that treat every position alike, so that they need no exchange of rows.
POINTWISE = (
    *(getattr(nn, name) for name in sorted(ELEMENT_WISE)),
    nn.PReLU,  # its weights are of channels, which are whole
    nn.Sequential,  # a layer only where it is empty, as the shortcut of some residual blocks
)

# Ranks with different rows would draw different numbers of random numbers.
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


Shapes = tuple[tuple[int, ...], tuple[int, ...]]
"""Shapes of a layer's input and output."""

_HARMLESS = (
    "alias", "clone", "detach", "_to_copy", "lift_fresh", "empty_like", "ones_like", "zeros_like",
    # Element-wise, though torch does not tag them so.
    "hardswish", "hardswish_", "log_sigmoid_forward", "masked_fill", "masked_fill_", "mish_",
    "threshold_",
)  # fmt: skip


@dataclass
class BlockTrace:
    """One block of the network.

    Args:
        name: of the block.
        shapes: of the block's input and output.
        layers: shapes of every call of each layer, by the layer's name in the network, in the
            order of the first calls; without calls that have not one tensor in and out.
        mixing: the first operation between layers that does not treat every position alike; else
            "".
    """

    name: str
    shapes: Shapes = ((), ())
    layers: dict[str, list[Shapes]] = field(default_factory=dict)
    mixing: str = ""


def trace(network: nn.Sequential, sample: TensorForm, device: torch.device) -> list[BlockTrace]:
    """Trace the network, which is not changed."""

    def run(double: nn.Sequential, name: str, inputs: Tensor) -> tuple[Tensor, BlockTrace]:
        block, block_trace = double.get_submodule(name), BlockTrace(name)
        with _tracing(double, block, block_trace):
            outputs = block(inputs)
        block_trace.shapes = tuple(inputs.shape), tuple(outputs.shape)
        return outputs, block_trace

    return run_blocks(network, sample, device, run)


@contextmanager
def _tracing(network: nn.Sequential, block: nn.Module, block_trace: BlockTrace) -> Iterator[None]:
    operations = _Operations(block_trace)

    def enter(_module: nn.Module, _inputs: Any) -> None:
        operations.depth += 1

    def leave(name: str, _layer: nn.Module, inputs: Any, output: Any) -> None:
        operations.depth -= 1
        calls = block_trace.layers.setdefault(name, [])
        if len(inputs) == 1 and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
            calls.append((tuple(inputs[0].shape), tuple(output.shape)))

    modules = set(block.modules())
    with ExitStack() as hooks:
        for name, layer in network.named_modules():
            if layer in modules and not list(layer.children()):
                hooks.enter_context(layer.register_forward_pre_hook(enter))
                hooks.enter_context(layer.register_forward_hook(partial(leave, name)))
        with operations:
            yield


class _Operations(TorchDispatchMode):
    """Notes the first operation between layers that mixes positions."""

    def __init__(self, block_trace: BlockTrace) -> None:
        super().__init__()
        self.block_trace = block_trace
        self.depth = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.depth == 0 and not self.block_trace.mixing and _mixes(func, args, kwargs):
            self.block_trace.mixing = str(func)
        return func(*args, **kwargs)


def _mixes(func: Any, args: Any, kwargs: Any) -> bool:
    name = func.overloadpacket.__name__
    if name == "cat":  # along channels, positions stay in place
        return (args[1] if len(args) > 1 else kwargs.get("dim", 0)) != 1
    # "prim" asks for a tensor's device or type, as autocast does.
    known = func.namespace == "prim" or name in _HARMLESS
    return not known and torch.Tag.pointwise not in func.tags


def replace_layers(network: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> None:
    """Replace every key of ``replaced`` by its value, wherever it occurs; keep its mode."""
    for parent in list(network.modules()):
        for name, child in parent._modules.items():
            if child is not None and child in replaced:
                parent._modules[name] = replaced[child].train(child.training)


def head_of(network: nn.Sequential, traced: Sequence[BlockTrace]) -> int:
    """Index of the first block that reads all rows; the number of blocks without one."""
    for index, block in enumerate(traced):
        if reads_all_rows(network._modules[block.name], *map(len, block.shapes)):
            return index
    return len(traced)
