"""What the harness costs a step: the timed loop against a bare loop over the same network.

The bare loop trains on one batch that is already in memory and reads no clock; the harness
draws batches from a staged dataset, normalises them, waits for nothing else, marks the clock and
reports progress. Blocks of steps of both alternate, so that a drifting machine slows both.

    python benchmarks/overhead/run.py [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ddlbench.datasets import stage
from ddlbench.datasets.loading import make_feed
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.data_size import DataRequest
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import build
from ddlbench.planning.plan import make_plan
from ddlbench.runtime.progress import Reporter
from ddlbench.runtime.stream import EpochStream
from ddlbench.strategies.executor import Context
from ddlbench.strategies.sequential.executor import SequentialExecutor


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


def compare(case: Case, scratch: Path) -> dict[str, float]:
    """Median seconds a step of both, their difference and their ratio, pair by pair."""
    request = DataRequest(case.dataset, scale=0.01)
    cell = Cell(case.dataset, case.name, "sequential", case.batch_size)
    plan = make_plan(cell)
    feed = make_feed(stage(request, scratch).path, request, global_batch=case.batch_size, seed=0)
    stream = EpochStream(feed, 0, feed.steps_per_epoch)
    executor = SequentialExecutor()
    device = torch.device("cpu")
    context = Context((device,), progress=Reporter(10**9, case.batch_size))
    executor.prepare(plan, plan.processes[0], case.network, stream, context)
    batch = next(iter(stream.batches(0, 1)))

    def harness(first: int) -> None:
        executor.run(first, case.steps)

    def bare(_first: int) -> None:
        for _ in range(case.steps):
            executor.step(batch.inputs, batch.labels)

    times: dict[str, list[float]] = {"harness": [], "bare": []}
    for block in range(case.blocks + 1):
        # Who goes first changes with every pair.
        order = [("harness", harness), ("bare", bare)][:: 1 if block % 2 else -1]
        for name, run in order:
            begin = time.perf_counter()
            run(block * case.steps)
            if block > 0:  # the first pair warms up
                times[name].append((time.perf_counter() - begin) / case.steps)
    differences = [h - b for h, b in zip(times["harness"], times["bare"], strict=True)]
    ratios = [h / b for h, b in zip(times["harness"], times["bare"], strict=True)]
    low, high = np.percentile(differences, [25, 75])
    ratio_low, ratio_high = np.percentile(ratios, [25, 75])
    return {
        "steps": case.blocks * case.steps,
        "harness_step_s": statistics.median(times["harness"]),
        "bare_step_s": statistics.median(times["bare"]),
        "overhead_s": statistics.median(differences),
        "overhead_p25_s": float(low),
        "overhead_p75_s": float(high),
        "ratio": statistics.median(ratios),
        "ratio_p25": float(ratio_low),
        "ratio_p75": float(ratio_high),
    }


def main() -> None:
    """Run both comparisons and print them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json = parser.parse_args().json
    torch.set_num_threads(1)
    resnet18 = build("resnet18", DATASETS["cifar10"], 0)
    cases = [
        Case("null", "mnist", nn.Sequential(Null()), batch_size=1, blocks=60, steps=50),
        Case("resnet18", "cifar10", resnet18, batch_size=16, blocks=12, steps=2),
    ]
    # Progress lines are part of the cost, but not of what this command says.
    with (
        tempfile.TemporaryDirectory() as scratch,
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        found = {case.name: compare(case, Path(scratch)) for case in cases}
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for name, row in found.items():
        print(
            f"{name}: {row['steps']:.0f} steps of each, harness {row['harness_step_s'] * 1e6:.1f} "
            f"and bare loop {row['bare_step_s'] * 1e6:.1f} microseconds a step; overhead "
            f"{row['overhead_s'] * 1e6:.1f} (quartiles {row['overhead_p25_s'] * 1e6:.1f} to "
            f"{row['overhead_p75_s'] * 1e6:.1f}); ratio {row['ratio']:.4f} "
            f"(quartiles {row['ratio_p25']:.4f} to {row['ratio_p75']:.4f})"
        )


if __name__ == "__main__":
    main()
