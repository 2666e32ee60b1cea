"""What the devices of a group compute of each layer together, as far as others must know it.

::

    rows       | rows 0 | rows 1 |     of every activation before block ``end``
    weights    | filters 0 | .. 1 |    a share of each layer's weights; activations stay whole
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["LayerSplit", "rows_share"]


@dataclass(frozen=True)
class LayerSplit:
    """How a plan splits the layers of a profiled network.

    Args:
        weight_shares: what the fullest device has of each layer's weights, by the layer's name.
        grid: devices along each split dimension of activations, counted from the last (-1 is
            width); empty where activations stay whole.
        end: first block that every device computes whole; None where no rows are split.
    """

    weight_shares: Mapping[str, float]
    grid: Mapping[int, int] = field(default_factory=dict)
    end: int | None = None


def rows_share(extents: Sequence[int], grid: Mapping[int, int]) -> float:
    """Share of an activation that the fullest device has; 1 where it has no rows."""
    share = 1.0
    for dim, size in grid.items():
        if len(extents) > -dim:
            share *= -(-extents[dim] // size) / extents[dim]
    return share
