"""What the harness costs a step: the timed loop against a bare loop over the same network.

The bare loop trains on one batch that is already in memory and reads no clock; the harness
draws batches from a staged dataset, normalises them, waits for nothing else, marks the clock and
reports progress. A third loop, the harness on a batch that is there already, tells what the feed
takes of it. Blocks of steps of all alternate, so that a drifting machine slows all.

    python benchmarks/overhead/run.py [--json] [--device cuda]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ddlbench.datasets import stage
from ddlbench.datasets.loader import Batch, EpochStream
from ddlbench.datasets.loading import make_feed
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS, DataRequest
from ddlbench.networks import build
from ddlbench.planning.planner import make_plan
from ddlbench.runtime.watchdog import Reporter
from ddlbench.strategies.executor import Context, Executor


class Null(nn.Module):
    """Ten weights: as good as no computation."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(10))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The same logits for every sample."""
        return self.logits.expand(inputs.shape[0], 10)


@dataclass(frozen=True)
class Case:
    """One comparison: ``blocks`` pairs of ``steps`` steps each."""

    name: str
    dataset: str
    network: nn.Sequential
    batch_size: int
    blocks: int
    steps: int


class Resident:
    """A stream of one batch that is on the device already: a feed that costs nothing."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def batches(self, _first: int, count: int) -> Iterator[Batch]:
        """The same batch, so many times."""
        return repeat(self._batch, count)


def compare(case: Case, scratch: Path, device: torch.device) -> dict[str, float]:
    """Median seconds a step of each loop, and differences and ratios to the bare one, by turns."""
    loops = _loops(case, scratch, device)
    times: dict[str, list[float]] = {name: [] for name in loops}
    for block in range(case.blocks + 1):
        # Who goes first changes with every turn.
        names = list(loops)
        first = block % len(names)
        for name in (*names[first:], *names[:first]):
            begin = time.perf_counter()
            loops[name](block * case.steps)
            if block > 0:  # the first turn warms up
                times[name].append((time.perf_counter() - begin) / case.steps)
    row: dict[str, float] = {"steps": case.blocks * case.steps}
    for name, seconds in times.items():
        row[f"{name}_step_s"] = statistics.median(seconds)
    # The whole harness, and of it the loop alone: clock, progress, record.
    for name, prefix in (("harness", ""), ("resident", "loop_")):
        pairs = list(zip(times[name], times["bare"], strict=True))
        row |= _quartiles(f"{prefix}overhead", [ours_s - bare for ours_s, bare in pairs], "_s")
        row |= _quartiles(f"{prefix}ratio", [ours_s / bare for ours_s, bare in pairs], "")
    return row


def _loops(case: Case, scratch: Path, device: torch.device) -> dict[str, Callable[[int], None]]:
    """The harness, the harness on a batch that is there already, and a bare loop."""
    request = DataRequest(case.dataset, scale=0.01)
    cell = Cell(case.dataset, case.name, "sequential", case.batch_size)
    plan = make_plan(cell)
    feed = make_feed(
        stage(request, scratch).path,
        request,
        global_batch=case.batch_size,
        seed=0,
        device=device,
    )
    stream = EpochStream(feed, 0, feed.steps_per_epoch)
    executor = Executor()
    context = Context((device,), progress=Reporter(10**9, case.batch_size))
    executor.prepare(plan, plan.processes[0], case.network, stream, context)
    batch = next(iter(stream.batches(0, 1)))

    def harness(first: int) -> None:
        executor.data = stream
        executor.run(first, case.steps)

    def resident(first: int) -> None:
        executor.data = Resident(batch)
        executor.run(first, case.steps)

    def bare(_first: int) -> None:
        for _ in range(case.steps):
            executor.step(batch.inputs, batch.labels)
        if device.type == "cuda":  # the harness waits at the end of its run, too
            torch.cuda.synchronize(device)

    return {"harness": harness, "resident": resident, "bare": bare}


def _quartiles(name: str, values: list[float], unit: str) -> dict[str, float]:
    low, middle, high = (float(value) for value in np.percentile(values, [25, 50, 75]))
    return {f"{name}{unit}": middle, f"{name}_p25{unit}": low, f"{name}_p75{unit}": high}


def main() -> None:
    """Run both comparisons and print them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    torch.set_num_threads(1)
    resnet18 = build("resnet18", DATASETS["cifar10"], 0)
    steps = 2 if chosen.device == "cpu" else 50
    cases = [
        Case("null", "mnist", nn.Sequential(Null()), batch_size=1, blocks=60, steps=50),
        Case("resnet18", "cifar10", resnet18, batch_size=16, blocks=12, steps=steps),
    ]
    # Progress lines are part of the cost, but not of what this command says.
    with (
        tempfile.TemporaryDirectory() as scratch,
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        compared = {case.name: compare(case, Path(scratch), device) for case in cases}
    if chosen.json:
        print(json.dumps(compared, indent=1))
        return
    for name, row in compared.items():
        print(
            f"{name}: {row['steps']:.0f} steps of each, harness {row['harness_step_s'] * 1e6:.1f} "
            f"and bare loop {row['bare_step_s'] * 1e6:.1f} microseconds a step; overhead "
            f"{row['overhead_s'] * 1e6:.1f} (quartiles {row['overhead_p25_s'] * 1e6:.1f} to "
            f"{row['overhead_p75_s'] * 1e6:.1f}); ratio {row['ratio']:.4f} "
            f"(quartiles {row['ratio_p25']:.4f} to {row['ratio_p75']:.4f}); of it the loop without "
            f"the feed {row['loop_overhead_s'] * 1e6:.1f}, ratio {row['loop_ratio']:.4f}"
        )


if __name__ == "__main__":
    main()
