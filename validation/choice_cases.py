"""Many cases to choose in, on emulated accelerators: does ``recommend --measure`` find the fastest?

Four networks, three or four batches, two and four devices of one node, and two nodes of two over a
link: 42 cases of eight or nine candidates each (``emulated.CASES``). Every candidate of every case
is measured, so that the truth is known; ``choices.py`` then replays the choice, with constants of
other networks. Takes two hours on two quiet cores; what is there is not measured again.

A part is a batch size. The part ``repeats`` comes last and tells the noise: where a choice that
measured did not pick the fastest, it runs both two more times.
"""

from __future__ import annotations

import os
from typing import Any

import emulated
from bed_study import chosen_parts
from choices import RUNS, case_of, replayed

from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.paths import result_file
from ddlbench.experiment.site import load_site
from ddlbench.planning.matrix import expand

REPEATS = "repeats"
BATCHES: list[int] = emulated.CASES["matrix"]["batch_size"]


def part(batch_size: int) -> dict[str, Any]:
    """The cases of one batch size."""
    matrix = {**emulated.CASES["matrix"], "batch_size": [batch_size]}
    return {**emulated.CASES, "matrix": matrix}


def main() -> None:
    """Measure what is missing."""
    chosen = chosen_parts(__doc__, [*map(str, BATCHES), REPEATS]).parts
    for name in chosen:
        if name != REPEATS:
            emulated.described(part(int(name))).run_here("links", "profiles", "cells")
    if REPEATS in chosen:
        repeat()


def repeat() -> None:
    """Run both again, where a choice that measured did not pick the fastest."""
    study = emulated.described(emulated.CASES)
    os.chdir(study.folder)
    config = parse_experiment(emulated.CASES, "the study")
    rows = expand(config, load_site(config.site))
    cells = {(case_of(row.cell), row.cell.strategy): row.cell for row in rows}
    again = {
        cells[row["case"], row[which]].with_(repeat=number)
        for row in replayed([(lambda: study, emulated.CASES)])
        if row["way"].startswith("recommender") and row["measured_candidates"]
        for which in ("picked", "best")
        if row["picked"] != row["best"]
        for number in range(1, RUNS)
    }
    if again:
        study.run_here(*sorted(str(result_file(config.site, cell.id)) for cell in again))


if __name__ == "__main__":
    main()
