"""What cutting a library network costs: start-up, and step time against the uncut module.

    python benchmarks/recorded/run.py [--pairs N] [--json FILE]

Both forms have equal weights and train on equal data with SGD on this machine's CPU. Steps take
turns, each pair in the other order than the one before, and only ratios within a pair are
summarised. Times are CPU seconds of a single thread, so other work on the machine counts little.
Start-up is what `build` takes more than the library's own constructor: at first, when
recorded blocks are compared with the module, and later, when that comparison is known.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import load
from ddlbench.networks.factory import build
from ddlbench.networks.foreign import seeded, whole
from ddlbench.networks.inputs import made_up_inputs

NETWORKS = {
    "torchvision:resnet18": ("cifar10", 16),
    "torchvision:resnet50": ("cifar10", 8),
    "torchvision:mobilenet_v2": ("cifar10", 8),
    "torchvision:densenet121": ("cifar10", 8),
    "torchvision:convnext_tiny": ("cifar10", 8),
    "hf:gpt2?n_layer=4,n_embd=256,n_head=4": ("tokens", 2),
}
WARM_UP = 3
BUILDS = 8


def main() -> None:
    """Measure each network, print a line of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=80)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        measure(network, dataset, samples, options.pairs)
        for network, (dataset, samples) in NETWORKS.items()
    ]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


def measure(network: str, dataset: str, samples: int, pairs: int) -> dict[str, Any]:
    """Start-up seconds and ratios of step times of a network."""
    spec = DATASETS[dataset]
    factory = load("ddlbench.networks", network)
    factory(spec)  # imports its library
    torch.manual_seed(1)
    inputs = made_up_inputs(spec, samples)
    labels = torch.randint(spec.num_classes, inputs.shape if spec.kind == "tokens" else (samples,))

    def module() -> nn.Module:
        with seeded(1):
            return whole(factory(spec), "")

    def blocks() -> nn.Module:
        return build(network, spec, seed=1)

    starts, ratios, count = [], [], 0
    for which in range(BUILDS):
        # Where weights lie in memory changes a step by up to a tenth: build in both orders.
        made = {}
        for form in (module, blocks) if which % 2 else (blocks, module):
            begin = time.process_time()
            network_made = form()
            made[form] = time.process_time() - begin, Training(network_made, inputs, labels)
        starts.append(made[blocks][0] - made[module][0])
        count = len(list(made[blocks][1].network.children()))
        ratios += paired(made[blocks][1], made[module][1], pairs // BUILDS)
    low, middle, high = statistics.quantiles(ratios, n=4)
    later = statistics.median(starts[1:])
    row = {
        "network": network,
        "blocks": count,
        "pairs": len(ratios),
        "step_ratio": middle,
        "step_ratio_quartiles": [low, high],
        "first_start_s": starts[0],
        "later_start_s": later,
    }
    print(
        f"{network:40} {count:3} blocks  step x {middle:.3f} ({low:.3f} to {high:.3f})"
        f"  start +{starts[0]:.1f} s, then +{later:.1f} s",
        flush=True,
    )
    return row


def paired(first: Training, second: Training, pairs: int) -> list[float]:
    """Ratios of step times of two forms that take turns."""
    for _ in range(WARM_UP):
        first.step()
        second.step()
    ratios = []
    for pair in range(pairs):
        order = (first, second) if pair % 2 else (second, first)
        times = {id(form): seconds(form) for form in order}
        ratios.append(times[id(first)] / times[id(second)])
    return ratios


class Training:
    """A network with its optimiser and data."""

    def __init__(self, network: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.network = network.train()
        self.inputs, self.labels = inputs, labels
        self.optimiser = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9)

    def step(self) -> None:
        """Forward, backward, update."""
        self.optimiser.zero_grad()
        scores = self.network(self.inputs)
        nn.functional.cross_entropy(scores.flatten(0, -2), self.labels.flatten()).backward()
        self.optimiser.step()


def seconds(training: Training) -> float:
    """How long a step takes."""
    begin = time.process_time()
    training.step()
    return time.process_time() - begin


if __name__ == "__main__":
    main()
