"""Many cases to choose in, on emulated accelerators: does ``recommend --measure`` find the fastest?

Four networks, three or four batches, two and four devices of one node, and two nodes of two over a
link: 42 cases of eight or nine candidates each (``emulated.CASES``). Every candidate of every case
is measured, so that the truth is known; ``choices.py`` then replays the choice, with constants of
other networks. Takes two hours on two quiet cores; what is there is not measured again. A part is a
batch size.
"""

from __future__ import annotations

from typing import Any

import emulated
from bed_study import chosen_parts

BATCHES: list[int] = emulated.CASES["matrix"]["batch_size"]


def part(batch_size: int) -> dict[str, Any]:
    """The cases of one batch size."""
    matrix = {**emulated.CASES["matrix"], "batch_size": [batch_size]}
    return {**emulated.CASES, "matrix": matrix}


def main() -> None:
    """Measure what is missing."""
    for batch_size in chosen_parts(__doc__, map(str, BATCHES)).parts:
        emulated.described(part(int(batch_size))).run_here("links", "profiles", "cells")


if __name__ == "__main__":
    main()
