"""Many cases to choose in, on emulated accelerators: does ``recommend --measure`` find the fastest?

Four networks, three or four batches, two and four devices of one node, and two nodes of two over
two links: 56 cases of eight or nine candidates each (``emulated.CASES``). Every candidate of every
case is measured, so that the truth is known; ``choices.py`` then replays the choice, with constants
of other networks. Takes two hours and a half on two quiet cores; what is there is not measured
again. A part is a fabric: default is one node.
"""

from __future__ import annotations

from typing import Any

import emulated
from bed_study import chosen_parts

FABRICS: list[str] = emulated.CASES["matrix"]["fabric"]


def part(fabric: str) -> dict[str, Any]:
    """The cases of one fabric."""
    matrix = {**emulated.CASES["matrix"], "fabric": [fabric]}
    return {**emulated.CASES, "matrix": matrix}


def main() -> None:
    """Measure what is missing."""
    for fabric in chosen_parts(__doc__, FABRICS).parts:
        emulated.described(part(fabric)).run_here("links", "profiles", "cells")


if __name__ == "__main__":
    main()
