"""PipeDream's training, one mini-batch after the other on one device.

::

    mini-batch   0   1   2   3   4      stage 0 of two: weights of max(0, b - 1) updates
    stage 0     w0  w0  w1  w2  w3      both passes of a mini-batch use the same
    stage 1     w0  w1  w2  w3  w4

Source: Narayanan et al., SOSP 2019, section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import StrategyPlan
from ddlbench.strategies.pipedream.descriptor import PipeDreamDetails, StagedStrategy
from ddlbench.strategies.replay import Loss, Run, rate_of

State = dict[str, Tensor]
VersionOf = Callable[[int, int], int]
"""(stage, number in the run) -> updates of the run that its weights have seen."""


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
    plan: StrategyPlan, networks: Sequence[nn.Module], runs: Iterable[Run], loss_function: Loss
) -> Iterator[tuple[float, ...]]:
    """Train one network in place with the weights that each stage has for each mini-batch."""
    (network,) = networks
    strategy = cast(StagedStrategy, plan.strategy)

    def versions_of(count: int) -> VersionOf:
        return partial(strategy.version, plan.details, strategy.schedule(plan.details, count))

    stages = PipeDreamDetails.of(plan).stages
    training = OldWeights(plan.cell, network, stages, versions_of)
    yield from ((loss,) for loss in training.train(runs, loss_function))


class OldWeights:
    """Training with versions of the weights; SGD is written out: m = mu m + g, w = w - lr m."""

    def __init__(
        self,
        cell: Cell,
        network: nn.Module,
        stages: Sequence[tuple[int, int, int]],
        versions_of: Callable[[int], VersionOf],
    ) -> None:
        self._cell, self._network, self._versions_of = cell, network.train(), versions_of
        self._parameters = dict(network.named_parameters())
        self._stages = _stages(network, stages)
        self._newest = {
            name: self._parameters[name].detach().clone()
            for stage in self._stages
            for name in stage.weights
        }
        self._momentum: State = {}
        self._done = 0

    def train(self, runs: Iterable[Run], loss_function: Loss) -> Iterator[float]:
        """Train, and yield the loss of each mini-batch."""
        for count, batches in runs:
            version_of = self._versions_of(count)
            for stage in self._stages:  # no gradient is under way
                stage.versions = [{name: self._newest[name] for name in stage.weights}]
            for number, (inputs, labels) in enumerate(batches):
                for place, stage in enumerate(self._stages):
                    self._load(stage.versions[version_of(place, number)])
                self._network.zero_grad()
                loss = loss_function(self._network(inputs), labels)
                loss.backward()
                self._end_mini_batch(is_last=number == count - 1)
                yield loss.item()
        self._load(self._newest)

    @torch.no_grad()
    def _load(self, values: State) -> None:
        for name, value in values.items():
            self._parameters[name].copy_(value)

    def _end_mini_batch(self, is_last: bool) -> None:
        """Take the gradients; stages whose replicas all have one update."""
        self._done += 1
        for stage in self._stages:
            stage.waiting.append({name: self._parameters[name].grad for name in stage.weights})
            if len(stage.waiting) == stage.replicas or is_last:
                rate = rate_of(self._cell, self._done - len(stage.waiting))
                self._update(stage, rate * stage.replicas / self._stages[0].replicas)

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
