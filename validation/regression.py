"""Whether `ddlbench compare` finds a device that became slower, and no change where there is none.

    python validation/regression.py [TREE ...]

Four configurations on emulated accelerators, three repeats a tree of results. Four trees are of one
device: each of their six pairs compares four configurations without a change. In two more trees the
device is 10 % and 1 % slower. Trees stay in validation/.work/regression. What is missing is
measured (half an hour at first), then the verdicts are counted; of trees that are named, only the
first is done.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import Accelerator, Site, load_site
from ddlbench.report.regression_texts import lines_of, verdicts
from ddlbench.report.regressions import Verdict, compare_trees
from ddlbench.report.run_trees import Tree, read_tree
from ddlbench.runtime.staging import stage_cell
from ddlbench.runtime.supervise import run_cell

ROOT = Path(__file__).resolve().parents[1]
TREES = ROOT / "validation" / ".work" / "regression"
SLOW_DOWN = 8.0
REPEATS = 3
UNCHANGED = [f"unchanged-{number}" for number in range(1, 5)]
CHANGED = {"slower-by-10": 1.10, "slower-by-1": 1.01}
FIRST = Cell(
    dataset="cifar10",
    network="mobilenetv2",
    strategy="sequential",
    batch_size=8,
    epochs=1,
    warmup_steps=1,
    max_steps=5,
    data_scale=0.001,
)
CELLS = [
    FIRST,
    *(
        FIRST.with_(strategy=strategy, devices_per_node=2)
        for strategy in ("ddp", "pipe-gpipe", "pipe-1f1b")
    ),
]


def main() -> None:
    """Measure what is missing, then compare."""
    named = sys.argv[1:]
    for name in named or (UNCHANGED[0], *CHANGED, *UNCHANGED[1:]):
        measure(name, CHANGED.get(name, 1.0))
    if named:
        return
    unchanged = [tree(name) for name in UNCHANGED]
    counts: Counter[Verdict] = Counter()
    for first, second in combinations(unchanged, 2):
        counts.update(compare_trees(first, second).counts)
    print(f"unchanged, {len(unchanged)} trees in pairs: {dict(counts)}")
    for name in CHANGED:
        changed = tree(name)
        print("\n".join(["", *lines_of(compare_trees(unchanged[0], changed))]))
        for first in unchanged[1:]:
            print(f"against {first.name}: {verdicts(compare_trees(first, changed))}")


def tree(name: str) -> Tree:
    """The results of a tree, with a short name."""
    return dataclasses.replace(read_tree(TREES / name), name=name)


def measure(name: str, slower: float) -> None:
    """Measure the cells of a tree that have no result, on a device so many times slower."""
    for repeat in range(REPEATS):
        for cell in (each.with_(repeat=repeat) for each in CELLS):
            folder = TREES / name / "accelerators" / "cells" / cell.id
            if not (folder / "result.json").is_file():
                where = site(slower)
                run_cell(cell, where, folder, stage_cell(cell, where, folder))


def site(slower: float) -> Site:
    """One node of two devices that are so many times slower."""
    accelerator = Accelerator(
        str(ROOT / "config" / "accelerators" / "one-core"), slow_down=SLOW_DOWN * slower
    )
    return dataclasses.replace(
        load_site("accelerators"), nodes=1, devices_per_node=2, accelerator=accelerator
    )


if __name__ == "__main__":
    main()
