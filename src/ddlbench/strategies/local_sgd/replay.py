"""Local SGD and DiLoCo with all replicas on one device.

::

    replica 0   | step | step | mean of all weights | step ...
    replica 1   | step | step |                     | step ...

With ``outer_optimizer: nesterov`` the mean is a direction (Douillard et al. 2023, algorithm 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from ddlbench.planning.plan import Plan
from ddlbench.strategies.local_sgd.descriptor import LocalSgdOptions
from ddlbench.strategies.replay import Loss, Run, rate_of


def replay(
    plan: Plan, networks: Sequence[nn.Module], runs: Iterable[Run], loss_function: Loss
) -> Iterator[tuple[float, ...]]:
    """Train each replica in place on its share of each mini-batch."""
    cell, details = plan.cell, LocalSgdOptions.of(plan)
    optimizers = [
        torch.optim.SGD(network.train().parameters(), cell.learning_rate, cell.momentum)
        for network in networks
    ]
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
