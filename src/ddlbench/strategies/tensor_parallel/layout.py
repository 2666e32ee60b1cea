"""Which rank has which rows of an activation, or which weights: arithmetic, no tensors.

A split dimension of extent E lies on p ranks in even parts, rank r from ``r E // p`` on. Parts are
a function of the extent alone, so two branches of equal extent, as of a residual block, always
meet in the same parts. *Rows* stands for positions along the split dimension, whichever it is.

::

    rows of the input        | rank 0      | rank 1      | rank 2     |
    rows of the output       | rank 0  | rank 1  | rank 2  |              kernel 3, stride 2
    rank 1 needs                      [ . . . . . ]                       some of them from others

A convolution of G groups is G convolutions side by side; a linear layer or an ordinary
convolution has one group. A part of the filters may begin or end within a group::

    groups     |   0   |   1   |   2   |   3   |        weights (F, C / G, ...)
    filters    . . . . . . . . . . . . . . . . .
    rank 1               [ - | - - - - | - ]            part of 1, whole 2, part of 3: three pieces

Whole groups that lie side by side are one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Interval = tuple[int, int]
"""First position, and the one behind the last."""


@dataclass(frozen=True)
class Parts:
    """Consecutive parts of a dimension, one a rank.

    Args:
        bounds: where each part begins, and the extent.
    """

    bounds: tuple[int, ...]

    @classmethod
    def even(cls, extent: int, count: int) -> Parts:
        """``count`` parts whose sizes differ by one at most; some are empty if need be."""
        return cls(tuple(part * extent // count for part in range(count + 1)))

    @property
    def count(self) -> int:
        """Number of parts."""
        return len(self.bounds) - 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Extent of every part."""
        return tuple(b - a for a, b in zip(self.bounds, self.bounds[1:], strict=False))

    def __getitem__(self, rank: int) -> Interval:
        return self.bounds[rank], self.bounds[rank + 1]


@dataclass(frozen=True)
class Window:
    """How outputs of a convolution or a pooling read inputs, along one dimension.

    Args:
        before, after: padding.
    """

    kernel: int
    stride: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0

    def reads(self, outputs: Interval) -> Interval:
        """Positions of the input that outputs read; below 0 and past the extent is padding."""
        first, behind = outputs
        start = first * self.stride - self.before
        last = (behind - 1) * self.stride - self.before + self.dilation * (self.kernel - 1)
        return start, last + 1


@dataclass(frozen=True)
class Halo:
    """Who sends which rows to whom so that every rank has what its outputs read.

    Args:
        owned: parts of the input.
        wanted: rows of the input that each rank needs, padding left out.
        padding: positions of padding before and behind them, for each rank.
    """

    owned: Parts
    wanted: tuple[Interval, ...]
    padding: tuple[Interval, ...]

    @property
    def is_needless(self) -> bool:
        """Whether every rank has just what it needs."""
        own = tuple(self.owned[rank] for rank in range(self.owned.count))
        return self.wanted == own and not any(map(any, self.padding))

    def kept(self, rank: int) -> Interval:
        """Rows that the rank has and needs itself."""
        return overlap(self.owned[rank], self.wanted[rank])

    def sent(self, rank: int) -> list[tuple[int, Interval]]:
        """Other ranks, and the rows that each is sent."""
        return self._others(rank, [overlap(self.owned[rank], wanted) for wanted in self.wanted])

    def received(self, rank: int) -> list[tuple[int, Interval]]:
        """Other ranks, and the rows that each sends."""
        owners = range(self.owned.count)
        return self._others(rank, [overlap(self.owned[o], self.wanted[rank]) for o in owners])

    def _others(self, rank: int, rows: Sequence[Interval]) -> list[tuple[int, Interval]]:
        return [
            (other, interval)
            for other, interval in enumerate(rows)
            if other != rank and interval[0] < interval[1]
        ]


def halo_of(window: Window, inputs: Parts, outputs: Parts) -> Halo:
    """What each rank needs of the input for its part of the output."""
    extent = inputs.bounds[-1]
    wanted, padding = [], []
    for rank in range(outputs.count):
        start, behind = window.reads(outputs[rank])
        first = min(max(start, 0), extent)
        last = max(min(behind, extent), first)
        before = min(max(-start, 0), behind - start)
        wanted.append((first, last))
        padding.append((before, behind - start - before - (last - first)))
    return Halo(inputs, tuple(wanted), tuple(padding))


def overlap(one: Interval, other: Interval) -> Interval:
    """What two intervals share; empty intervals begin where they end."""
    first = max(one[0], other[0])
    return first, max(first, min(one[1], other[1]))


@dataclass(frozen=True)
class Piece:
    """One convolution of a rank.

    Args:
        filters: which outputs of the whole layer it computes, or adds to.
        channels: which inputs of the whole layer it reads.
        within: which of the weights' second dimension, input channels within a group, it has.
        groups: of this convolution.
    """

    filters: Interval
    channels: Interval
    within: Interval
    groups: int


def filter_pieces(part: Interval, filters: int, channels: int, groups: int) -> list[Piece]:
    """The pieces that compute the filters of ``part``.

    Args:
        part: the rank's filters.
        filters: of the whole layer.
        channels: of its input.
        groups: of the whole layer.
    """
    a_group, its_channels = filters // groups, channels // groups
    return [
        Piece(
            filters=outputs,
            channels=(first * its_channels, behind * its_channels),
            within=(0, its_channels),
            groups=behind - first,
        )
        for outputs, (first, behind) in _runs(part, a_group)
    ]


def channel_pieces(part: Interval, filters: int, channels: int, groups: int) -> list[Piece]:
    """The pieces that read the input channels of ``part``.

    Args:
        part: the rank's input channels.
        filters: of the whole layer.
        channels: of its input.
        groups: of the whole layer.
    """
    a_group, its_filters = channels // groups, filters // groups
    pieces = []
    for inputs, (first, behind) in _runs(part, a_group):
        start = inputs[0] - first * a_group
        whole = behind - first > 1
        within = (0, a_group) if whole else (start, start + inputs[1] - inputs[0])
        outputs = (first * its_filters, behind * its_filters)
        pieces.append(Piece(outputs, inputs, within, behind - first))
    return pieces


def _runs(part: Interval, size: int) -> Iterator[tuple[Interval, Interval]]:
    """``part`` cut at groups of ``size``: (positions, groups); neighbouring whole groups as one."""
    first, behind = part
    while first < behind:
        group = first // size
        whole = (behind - first) // size if first % size == 0 else 0
        last = group + max(whole, 1)
        stop = min(behind, last * size)
        yield (first, stop), (group, last)
        first = stop
