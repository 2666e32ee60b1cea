"""Whether `ddlbench compare` finds a device that became slower, and no change where there is none.

    python validation/regression.py

Five configurations on emulated accelerators, three repeats a tree of results. Five trees are of one
device, so that each of ten pairs of them compares five configurations without a change. In two more
the device is 10 % and 1 % slower. Trees stay in validation/.work/regression: what is missing is
measured (forty minutes at first), then verdicts are counted.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import Accelerator, Site, load_site
from ddlbench.runtime.staging import stage_cell
from ddlbench.runtime.supervise import run_cell

ROOT = Path(__file__).resolve().parents[1]
TREES = ROOT / "validation" / ".work" / "regression"
SLOW_DOWN = 2.0
REPEATS = 3
UNCHANGED = [f"unchanged-{number}" for number in range(1, 6)]
CHANGED = {"slower-by-10": 1.10, "slower-by-1": 1.01}
FIRST = Cell(
    dataset="cifar10",
    network="mobilenetv2",
    strategy="sequential",
    batch_size=8,
    epochs=1,
    warmup_steps=1,
    max_steps=8,
    data_scale=0.002,
)
CELLS = [
    FIRST,
    *(
        FIRST.with_(strategy=strategy, devices_per_node=2)
        for strategy in ("ddp", "horovod", "pipe-gpipe", "pipe-1f1b")
    ),
]


def main() -> None:
    """Measure what is missing."""
    for tree in (UNCHANGED[0], *CHANGED, *UNCHANGED[1:]):
        measure(tree, CHANGED.get(tree, 1.0))


def measure(tree: str, slower: float) -> None:
    """Measure the cells of a tree that have no result, on a device so many times slower."""
    for repeat in range(REPEATS):
        for cell in (one.with_(repeat=repeat) for one in CELLS):
            folder = TREES / tree / "accelerators" / "cells" / cell.id
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
