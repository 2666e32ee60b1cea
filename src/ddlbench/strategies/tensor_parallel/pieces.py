"""Which weights a rank holds when filters or input channels of a layer are dealt out.

A convolution of G groups is G convolutions side by side; a linear layer or an ordinary
convolution has one group. A part of the filters may begin or end within a group::

    groups     |   0   |   1   |   2   |   3   |        weights (F, C / G, ...)
    filters    . . . . . . . . . . . . . . . . .
    rank 1               [ - | - - - - | - ]            part of 1, whole 2, part of 3: three pieces

Whole groups that lie side by side are one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ddlbench.strategies.tensor_parallel.layout import Interval

__all__ = ["Piece", "channel_pieces", "filter_pieces"]


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
