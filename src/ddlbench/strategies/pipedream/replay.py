"""PipeDream's training, one mini-batch after the other on one device.

::

    mini-batch   0   1   2   3   4      stage 0 of two: weights of max(0, b - 1) updates
    stage 0     w0  w0  w1  w2  w3      both passes of a mini-batch use the same
    stage 1     w0  w1  w2  w3  w4

Source: Narayanan et al., SOSP 2019, section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.strategies.pipedream.descriptor import PipeDreamDetails, StagedStrategy
from ddlbench.strategies.replay import Loss, Run, rate_of

State = dict[str, Tensor]


@dataclass
class _Stage:
    """The weights of a stage.

    Args:
        weights: names of its parameters that are trained.
        replicas: mini-batches whose gradients one update averages.
        versions: weights by name after each update of the current run.
        waiting: gradients by name that no update has used yet.
    """

    weights: tuple[str, ...]
    replicas: int
    versions: list[State] = field(default_factory=list)
    waiting: list[Mapping[str, Tensor | None]] = field(default_factory=list)


def replay(
    plan: Plan, networks: Sequence[nn.Module], runs: Iterable[Run], loss_function: Loss
) -> Iterator[tuple[float, ...]]:
    """Train one network in place with the weights that each stage has for each mini-batch."""
    (network,) = networks
    strategy = cast(StagedStrategy, strategy_of(plan.cell.strategy))
    training = _Training(plan.cell, network, PipeDreamDetails.of(plan).stages)
    for count, batches in runs:
        schedule = strategy.schedule(plan.details, count)
        training.begin_run()
        for number, (inputs, labels) in enumerate(batches):
            versions = [
                strategy.version(plan.details, schedule, stage, number)
                for stage in range(len(training.stages))
            ]
            training.load(versions)
            loss = loss_function(network(inputs), labels)
            loss.backward()
            training.end_mini_batch(is_last=number == count - 1)
            yield (loss.item(),)
    training.load_newest()


class _Training:
    """Versions of the weights; SGD is written out: m = mu m + g, w = w - lr m.

    Args:
        cell: its learning rate and momentum are used.
        network: trained in place.
        stages: first block, block after the last, and replicas of each.
    """

    def __init__(
        self, cell: Cell, network: nn.Module, stages: Sequence[tuple[int, int, int]]
    ) -> None:
        self._cell, self._network = cell, network.train()
        self._parameters = dict(network.named_parameters())
        self.stages = _stages(network, stages)
        self._newest = {
            name: self._parameters[name].detach().clone()
            for stage in self.stages
            for name in stage.weights
        }
        self._momentum: State = {}
        self._done = 0

    def begin_run(self) -> None:
        """No gradient is under way, so all stages have their newest weights only."""
        for stage in self.stages:
            stage.versions = [{name: self._newest[name] for name in stage.weights}]

    def load(self, versions: Sequence[int]) -> None:
        """Give each stage a version of its weights, and the network no gradients."""
        for stage, version in zip(self.stages, versions, strict=True):
            self._load(stage.versions[version])
        self._network.zero_grad()

    def load_newest(self) -> None:
        self._load(self._newest)

    @torch.no_grad()
    def _load(self, values: State) -> None:
        for name, value in values.items():
            self._parameters[name].copy_(value)

    def end_mini_batch(self, is_last: bool) -> None:
        """Take the gradients; stages whose replicas all have one update."""
        self._done += 1
        for stage in self.stages:
            stage.waiting.append({name: self._parameters[name].grad for name in stage.weights})
            if len(stage.waiting) == stage.replicas or is_last:
                rate = rate_of(self._cell, self._done - len(stage.waiting))
                self._update(stage, rate * stage.replicas / self.stages[0].replicas)

    @torch.no_grad()
    def _update(self, stage: _Stage, rate: float) -> None:
        """Average the gradients that wait, and add a version; a weight without any stays."""
        for name in stage.weights:
            gradients = [g for waiting in stage.waiting if (g := waiting[name]) is not None]
            if not gradients:
                continue
            total = torch.stack([gradient.to_dense() for gradient in gradients]).sum(dim=0)
            mean = total / len(stage.waiting)
            if name in self._momentum:
                mean += self._cell.momentum * self._momentum[name]
            self._momentum[name] = mean
            self._newest[name] = self._newest[name] - rate * mean
        stage.versions.append({name: self._newest[name] for name in stage.weights})
        stage.waiting = []


def _stages(network: nn.Module, stages: Sequence[tuple[int, int, int]]) -> list[_Stage]:
    place = {name: number for number, name in enumerate(network._modules)}
    trained = [name for name, p in network.named_parameters() if p.requires_grad]
    return [
        _Stage(
            tuple(name for name in trained if first <= place[name.split(".")[0]] < end), replicas
        )
        for first, end, replicas in stages
    ]
