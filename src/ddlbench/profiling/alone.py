"""Times one device of a cell whose devices compute each layer together, without its peers.

::

    step of a cell   | part of layer 1 |-- messages --| part of layer 2 |-- messages --| ..
    measured here    | part of layer 1 | part of layer 2 | ..    median of windows of steps
    listed           messages: operation, ranks, bytes, count a step

A part of a layer takes longer than its share of the whole layer: fewer rows or filters fill a core
worse, and what is received is copied. Both are in the step. The executor is the cell's own; its
process group sends nothing (:mod:`ddlbench.strategies.alone`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from ddlbench.datasets.loader import ImageDataset
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.profile import LoneRun
from ddlbench.experiment.status import Status
from ddlbench.planning.strategy import strategy_of
from ddlbench.profiling.steps import StepRunner, window_means
from ddlbench.profiling.timers import median_with_interval, passes, steps_per_window
from ddlbench.runtime.failure import classify
from ddlbench.strategies.alone import MessageLog
from ddlbench.strategies.executor import Unsupported

_FEWEST_STEPS = 3
_MOST_STEPS = 1000
_WARM_STEPS = 2


def measure_alone(
    cells: Sequence[Cell],
    dataset: ImageDataset,
    device: torch.device,
    budget_s: float,
    notes: list[str],
) -> list[dict[str, Any]]:
    """Entries ``alone`` of profile.json, one for each cell that can run.

    Args:
        cells: of any sizes; each gets an equal share of the time.
        dataset: where samples come from.
        device: of this process.
        budget_s: seconds that all of them should take.
        notes: gets why a cell was left out.
    """
    entries = []
    for cell in cells:
        if cell.batch_size > len(dataset):
            notes.append(f"no device of {cell.strategy} alone: {len(dataset)} training images")
            continue
        try:
            entries.append(_measured(cell, dataset, device, budget_s / len(cells)))
        except Unsupported as error:
            notes.append(f"no device of {cell.strategy} alone: {error}")
        except (RuntimeError, MemoryError) as error:
            if classify(error)[0] != Status.OUT_OF_MEMORY:
                raise
            notes.append(f"no device of {cell.strategy} alone: out of memory")
    return entries


def _measured(
    cell: Cell, dataset: ImageDataset, device: torch.device, budget_s: float
) -> dict[str, Any]:
    log = MessageLog()
    runner = StepRunner(cell, dataset, device, alone=log)
    try:
        warm_s = runner.run(_WARM_STEPS)[0]
        count = passes(budget_s, statistics.median(warm_s), _FEWEST_STEPS, _MOST_STEPS)
        step_s, _ = runner.run(count)
        log.clear()
        runner.run(1)
    finally:
        runner.close()
    window = steps_per_window(sum(step_s) / count, count)
    median_s, interval_s = median_with_interval(window_means(step_s, window))
    work = strategy_of(cell.strategy).device_work(cell)
    assert work is not None
    interval = None if interval_s is None else tuple(interval_s)
    return LoneRun(work, count, median_s, interval, log.messages()).to_dict()
