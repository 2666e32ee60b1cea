"""Which ordered pairs of ranks are measured: all of a small site, a sample of a large one.

::

    up to 500 pairs     all
    beyond              within the first node      every pair
                        node i <-> node i + 1      their first ranks, both ways
                        rank r -> rank r + 1       what a ring sends through, the closing hop too
                        others                     by lot, from a fixed seed, up to 500 in all

Pairs are measured one after the other, as two at a time would slow each other down, and 256 ranks
have 65 280: hours, and over NCCL a communicator each. No torch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise, permutations

__all__ = ["MOST_PAIRS", "RULE", "Pair", "chosen_pairs"]

MOST_PAIRS = 500
RULE = (
    "all pairs of the first node, the first ranks of neighbouring nodes both ways, each rank and "
    "the next, and others by lot"
)
_SEED = 0

Pair = tuple[int, int]  # sender, receiver


def chosen_pairs(nodes: Sequence[int], most: int = MOST_PAIRS) -> list[Pair]:
    """Pairs in the order in which they are measured, the same on every rank.

    Args:
        nodes: node of each rank; the ranks of a node follow one another.
        most: measured pairs.
    """
    size = len(nodes)
    if size * (size - 1) <= most:
        return list(permutations(range(size), 2))
    first_node = [rank for rank in range(size) if nodes[rank] == nodes[0]]
    heads = [0, *(b for a, b in pairwise(range(size)) if nodes[a] != nodes[b])]
    wanted: list[Pair] = list(permutations(first_node, 2))
    for one, next_one in pairwise(heads):
        wanted += [(one, next_one), (next_one, one)]
    wanted += [(rank, (rank + 1) % size) for rank in range(size)]
    wanted += [_pair(number, size) for number in _lots(size * (size - 1), most)]
    return list(dict.fromkeys(wanted))[:most]


def _lots(count: int, most: int) -> list[int]:
    return random.Random(_SEED).sample(range(count), most)


def _pair(number: int, size: int) -> Pair:
    """The pair of a number, when pairs are counted row by row without the diagonal."""
    sender, place = divmod(number, size - 1)
    return sender, place + (place >= sender)
