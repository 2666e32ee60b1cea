"""Executor and replay of local SGD and DiLoCo, over gloo (CPU) or NCCL (CUDA).

The replay has all replicas on one device::

    replica 0   | step | step | mean of all weights | step ...
    replica 1   | step | step |                     | step ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ddlbench.planning.plan import Plan
from ddlbench.strategies.executor import Executor
from ddlbench.strategies.local_sgd.descriptor import LocalSgdOptions
from ddlbench.strategies.process_group import GradientSum, join_all
from ddlbench.strategies.training import SGD, Loss, Run, make_optimizer, rate_of, state_tensors


class LocalSgdExecutor(Executor):
    """One replica for each process; its weights become the mean of all once a round.

    Momentum and batch-norm statistics stay the replica's own.

    Attributes:
        in_round: steps since the last averaging.
        outer: the outer SGD; None for plain averages.
        anchors: its weights, those before the round; the same on all ranks.
    """

    def place(self, network: nn.Sequential) -> nn.Module:
        join_all(self.context, self.process, self.plan.world_size)
        network.to(self.context.devices[0])
        self.options = LocalSgdOptions.of(self.plan)
        self.in_round = 0
        self.weights = [p for p in network.parameters() if p.requires_grad]
        self.anchors: list[nn.Parameter] = []
        self.outer: torch.optim.Optimizer | None = None
        if self.options.outer_optimizer == "nesterov":
            self.anchors = [nn.Parameter(weight.detach().clone()) for weight in self.weights]
            self.outer = SGD(
                self.anchors,
                lr=self.options.outer_lr,
                momentum=self.options.outer_momentum,
                nesterov=True,
                foreach=False,  # one tensor after the other needs less memory
            )
        # NCCL connects with the first messages, which may be due only in a measured step.
        zeros = [torch.zeros_like(weight) for weight in self.weights]
        list(GradientSum(zeros, None).wait())
        return network

    def update(self) -> None:
        super().update()
        self.in_round += 1
        if self.in_round == self.options.average_every_steps:
            self.in_round = 0
            self.average()

    @torch.no_grad()
    def average(self) -> None:
        """End a round: all replicas get the mean of their weights, or the outer SGD's."""
        self.spans.phase("all_reduce")
        weights = [weight.detach() for weight in self.weights]
        total = GradientSum(weights, None, in_place=True)
        means = total.wait(self.plan.world_size)
        if self.outer is None:
            for weight, mean in zip(weights, means, strict=True):
                weight.copy_(mean)
            return
        for anchor, mean in zip(self.anchors, means, strict=True):
            # The sum's memory is free to hold the outer gradient.
            anchor.grad = torch.sub(anchor, mean, out=mean)
        self.spans.phase("update")
        self.outer.step()
        self.outer.zero_grad()
        for weight, anchor in zip(weights, self.anchors, strict=True):
            weight.copy_(anchor)

    def checkpoint_state(self) -> dict[str, Any]:
        state = {**super().checkpoint_state(), "in_round": self.in_round}
        if self.outer is not None:
            state["anchors"] = [anchor.detach() for anchor in self.anchors]
            state["outer"] = self.outer.state_dict()
        return state

    def load_checkpoint_state(self, state: Mapping[str, Any]) -> None:
        super().load_checkpoint_state(state)
        self.in_round = int(state["in_round"])
        if self.outer is not None:
            with torch.no_grad():
                for anchor, value in zip(self.anchors, state["anchors"], strict=True):
                    anchor.copy_(value)
            self.outer.load_state_dict(state["outer"])

    def persistent_tensors(self) -> Iterator[Tensor]:
        yield from super().persistent_tensors()
        yield from self.anchors
        if self.outer is not None:
            yield from state_tensors(self.outer)

    def filling(self) -> int:
        """Steps to the end of the round: averaging needs memory of its own."""
        return self.options.average_every_steps - self.in_round

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Make the recorded step the last of a round, so that it shows an averaging."""
        self.in_round = self.options.average_every_steps - 1
        yield


def replay(
    plan: Plan, networks: Sequence[nn.Module], runs: Iterable[Run], loss_function: Loss
) -> Iterator[tuple[float, ...]]:
    """Train each replica in place on its share of each mini-batch."""
    cell, details = plan.cell, LocalSgdOptions.of(plan)
    optimizers = [make_optimizer(cell, network.train().parameters()) for network in networks]
    outer = _Outer(networks, details)
    step = 0
    for _, batches in runs:
        for inputs, labels in batches:
            shares = zip(inputs.chunk(len(networks)), labels.chunk(len(networks)), strict=True)
            losses = []
            for network, optimizer, share in zip(networks, optimizers, shares, strict=True):
                optimizer.zero_grad()
                loss = loss_function(network(share[0]), share[1])
                loss.backward()
                for group in optimizer.param_groups:
                    group["lr"] = rate_of(cell, step)
                optimizer.step()
                losses.append(loss.item())
            step += 1
            if step % details.average_every_steps == 0:
                outer.end_round()
            yield tuple(losses)


class _Outer:
    """What ends a round: the mean of all weights, or a step of the outer SGD."""

    def __init__(self, networks: Sequence[nn.Module], details: LocalSgdOptions) -> None:
        self._details = details
        trained = [[p for p in network.parameters() if p.requires_grad] for network in networks]
        self._copies = list(zip(*trained, strict=True))
        self._before = [weights[0].detach().clone() for weights in self._copies]
        self._speed = [torch.zeros_like(weight) for weight in self._before]

    @torch.no_grad()
    def end_round(self) -> None:
        for index, weights in enumerate(self._copies):
            mean = torch.stack([weight.detach() for weight in weights]).mean(dim=0)
            self._before[index] = self._after(index, mean)
            for weight in weights:
                weight.copy_(self._before[index])

    def _after(self, index: int, mean: Tensor) -> Tensor:
        """A weight after the round."""
        if self._details.outer_optimizer != "nesterov":
            return mean
        gradient, friction = self._before[index] - mean, self._details.outer_momentum
        self._speed[index] = friction * self._speed[index] + gradient
        direction = gradient + friction * self._speed[index]
        return self._before[index] - self._details.outer_lr * direction
