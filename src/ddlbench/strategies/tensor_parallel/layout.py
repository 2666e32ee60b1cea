"""Which rank has which rows of an activation, and which rows it needs: arithmetic, no tensors.

A split dimension of extent E lies on p ranks in even parts, rank r from ``r E // p`` on. Parts are
a function of the extent alone, so two branches of equal extent, as of a residual block, always
meet in the same parts. *Rows* stands for positions along the split dimension, whichever it is.

::

    rows of the input        | rank 0      | rank 1      | rank 2     |
    rows of the output       | rank 0  | rank 1  | rank 2  |              kernel 3, stride 2
    rank 1 needs                      [ . . . . . ]                       some of them from others
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Halo", "Interval", "Parts", "Window", "halo_of", "overlap"]

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
