r"""One process trains what ranks train together, with each mini-batch in their parts.

::

    part 0 -> gradient \
    part 1 -> gradient -+-> mean -> update      a part: a micro-batch of a shard

Batch norm sees the samples of a part. Each shard has a module of its own with the same weights, so
that buffers, and what a module counts, are those of a rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ddlbench.experiment.cell import Cell
from ddlbench.networks.copying import copy_of
from ddlbench.strategies.replay import Batch, Loss, rate_of

State = dict[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """What training ends with.

    Args:
        states: weights and buffers by name, of each shard or replica.
        losses: of each shard or replica, the mean loss of each step.
    """

    states: list[State]
    losses: list[list[float]]

    @property
    def mean_losses(self) -> list[float]:
        """The loss of each step, over all shards."""
        return [sum(of_step) / len(of_step) for of_step in zip(*self.losses, strict=True)]


def train_in_parts(
    cell: Cell,
    network: nn.Module,
    batches: Iterable[Batch],
    loss_function: Loss,
    *,
    shards: int = 1,
    micro_batches: int = 1,
) -> Trained:
    """Sequential training, with each mini-batch in equal parts whose gradients are averaged.

    Args:
        cell: its learning rate and momentum are used.
        network: trained in place.
        batches: one a step.
        loss_function: (outputs, labels) -> mean over the samples.
        shards: parts with modules of their own.
        micro_batches: parts of a shard, which follow each other.
    """
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), cell.learning_rate, cell.momentum)
    weights: dict[Tensor, Tensor] = {weight: weight for weight in network.parameters()}
    of_shards = [network, *(copy_of(network, weights) for _ in range(shards - 1))]
    losses: list[list[float]] = [[] for _ in range(shards)]
    for step, (inputs, labels) in enumerate(batches):
        optimizer.zero_grad()
        shares = zip(inputs.chunk(shards), labels.chunk(shards), strict=True)
        for shard, share in enumerate(shares):
            loss = 0.0
            parts = zip(*(tensor.chunk(micro_batches) for tensor in share), strict=True)
            for part_inputs, part_labels in parts:
                part_loss = loss_function(of_shards[shard](part_inputs), part_labels)
                (part_loss / (shards * micro_batches)).backward()
                loss += part_loss.item() / micro_batches
            losses[shard].append(loss)
        for group in optimizer.param_groups:
            group["lr"] = rate_of(cell, step)
        optimizer.step()
    return Trained([one.state_dict() for one in of_shards], losses)
