"""Many cases to choose in, on emulated accelerators: does ``recommend --measure`` find the fastest?

Four networks, three or four batches, one node of four devices and two nodes of two over two links:
42 cases of nine candidates each (``emulated.CASES``). Every candidate of every case is measured, so
that the truth is known; ``choices.py`` then replays the choice, with constants of other networks.
Takes more than two hours on two quiet cores; what is there is not measured again.
"""

from __future__ import annotations

import emulated
from bed_study import Study

from ddlbench.experiment.config import parse_experiment


def study() -> Study:
    """The study's folder, shared with the emulated study: equal cells are measured once."""
    return emulated.described(emulated.CASES)


def main() -> None:
    """Measure what is missing."""
    parse_experiment({**emulated.CASES}, "the study")
    study().run_here("links", "profiles", "cells")


if __name__ == "__main__":
    main()
