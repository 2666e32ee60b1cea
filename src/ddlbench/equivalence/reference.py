r"""One process trains what ranks train together: in parts, with old gradients, or as replicas.

::

    in parts    part 0 -> gradient \
                part 1 -> gradient -+-> mean -> update      a part: a micro-batch of a shard
    delayed     weights of an older version -> gradient -> update of the newest one
    replicas    replica 0 | step | step | mean of all weights | step ...
                replica 1 | step | step |                     | step ...

Batch norm sees the samples of a part. Each shard has buffers of its own, as each rank has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ddlbench.experiment.cell import Cell

Batch = tuple[Tensor, Tensor]
"""Inputs (N, ...) and labels (N,), or tokens (N, T) and (N, T)."""

Loss = Callable[[Tensor, Tensor], Tensor]
State = dict[str, Tensor]

_OPTIONS_OF_ROUNDS = ("average_every_steps", "outer_optimizer", "outer_lr", "outer_momentum")


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


def rate_of(cell: Cell, mini_batch: int) -> float:
    """Learning rate of a mini-batch's update: it rises linearly over the first steps."""
    steps = max(1, cell.learning_rate_warmup_steps)
    return cell.learning_rate * min(1.0, (mini_batch + 1) / steps)


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
        shards: parts with buffers of their own.
        micro_batches: parts of a shard, which follow each other.
    """
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), cell.learning_rate, cell.momentum)
    buffers = [_buffers(network) for _ in range(shards)]
    losses: list[list[float]] = [[] for _ in range(shards)]
    for step, (inputs, labels) in enumerate(batches):
        optimizer.zero_grad()
        shares = zip(inputs.chunk(shards), labels.chunk(shards), strict=True)
        for shard, share in enumerate(shares):
            _restore(network, buffers[shard])
            loss = 0.0
            parts = zip(*(tensor.chunk(micro_batches) for tensor in share), strict=True)
            for part_inputs, part_labels in parts:
                part_loss = loss_function(network(part_inputs), part_labels)
                (part_loss / (shards * micro_batches)).backward()
                loss += part_loss.item() / micro_batches
            losses[shard].append(loss)
            buffers[shard] = _buffers(network)
        for group in optimizer.param_groups:
            group["lr"] = rate_of(cell, step)
        optimizer.step()
    weights = network.state_dict()
    return Trained([_with_buffers(weights, kept) for kept in buffers], losses)


def _buffers(network: nn.Module) -> State:
    return {name: value.clone() for name, value in network.named_buffers()}


@torch.no_grad()
def _restore(network: nn.Module, values: State) -> None:
    for name, buffer in network.named_buffers():
        if not torch.equal(buffer, values[name]):  # constant ones may share memory with themselves
            buffer.copy_(values[name])


def _with_buffers(weights: State, buffers: State) -> State:
    return {name: buffers.get(name, value).clone() for name, value in weights.items()}


# Old gradients ----------------------------------------------------------------------------------


@dataclass
class _Stage:
    """The weights of a pipeline's stage.

    Args:
        weights: names of its parameters that are trained.
        replicas: mini-batches whose gradients one update averages.
        versions: weights by name after each update of the current run.
        waiting: gradients by name that no update has used yet.
    """

    weights: tuple[str, ...]
    replicas: int
    versions: list[State]
    waiting: list[dict[str, Tensor | None]]


def train_with_old_gradients(
    cell: Cell,
    network: nn.Module,
    runs: Sequence[Sequence[Batch]],
    loss_function: Loss,
    *,
    stages: Sequence[Sequence[int]],
    version_of: Callable[[int, int], int],
) -> Trained:
    """PipeDream's training, one mini-batch after the other.

    Each stage computes a mini-batch with an older version of its weights, forward and backward
    (Narayanan et al., SOSP 2019, section 3.3). SGD is written out: m = mu m + g, w = w - lr m.

    Args:
        cell: its learning rate and momentum are used.
        network: trained in place.
        runs: mini-batches of each call of ``run``, after which no gradient is under way.
        loss_function: (outputs, labels) -> mean over the samples.
        stages: first block, block after the last, and replicas of each.
        version_of: (stage, number in the run) -> updates of the run that its weights have seen.
    """
    network.train()
    parameters = dict(network.named_parameters())
    parts = _stages(network, stages)
    newest = {name: parameters[name].detach().clone() for part in parts for name in part.weights}
    momentum: State = {}
    losses: list[float] = []
    for batches in runs:
        for part in parts:
            part.versions = [{name: newest[name] for name in part.weights}]
        for number, (inputs, labels) in enumerate(batches):
            for stage, part in enumerate(parts):
                _load(parameters, part.versions[version_of(stage, number)])
            network.zero_grad()
            loss = loss_function(network(inputs), labels)
            loss.backward()
            losses.append(loss.item())
            at = len(losses) - 1
            for part in parts:
                part.waiting.append({name: parameters[name].grad for name in part.weights})
                if len(part.waiting) < part.replicas and number < len(batches) - 1:
                    continue
                rate = rate_of(cell, at + 1 - len(part.waiting)) * part.replicas / stages[0][2]
                _update(part, newest, momentum, rate, cell.momentum)
    _load(parameters, newest)
    return Trained([network.state_dict()], [losses])


def _stages(network: nn.Module, stages: Sequence[Sequence[int]]) -> list[_Stage]:
    place = {name: number for number, name in enumerate(network._modules)}
    trained = [name for name, p in network.named_parameters() if p.requires_grad]
    return [
        _Stage(
            tuple(name for name in trained if first <= place[name.split(".")[0]] < behind),
            replicas,
            [],
            [],
        )
        for first, behind, replicas in stages
    ]


@torch.no_grad()
def _load(parameters: dict[str, nn.Parameter], values: State) -> None:
    for name, value in values.items():
        parameters[name].copy_(value)


@torch.no_grad()
def _update(part: _Stage, newest: State, momentum: State, rate: float, friction: float) -> None:
    """Average the gradients that wait, and add a version; a weight without any stays."""
    for name in part.weights:
        gradients = [g for waiting in part.waiting if (g := waiting[name]) is not None]
        if not gradients:
            continue
        dense = [g.to_dense() if g.is_sparse else g for g in gradients]
        mean = torch.stack(dense).sum(dim=0) / len(part.waiting)
        momentum[name] = mean if name not in momentum else friction * momentum[name] + mean
        newest[name] = newest[name] - rate * momentum[name]
    part.versions.append({name: newest[name] for name in part.weights})
    part.waiting = []


# Replicas ---------------------------------------------------------------------------------------


def train_replicas(
    cell: Cell,
    networks: Sequence[nn.Module],
    batches: Iterable[Batch],
    loss_function: Loss,
    options: Mapping[str, Any],
) -> Trained:
    """Local SGD: each replica trains alone, then all take the mean of their weights.

    With ``outer_optimizer: nesterov`` the mean is a direction (Douillard et al. 2023, algorithm 1).

    Args:
        cell: its learning rate and momentum are used.
        networks: the replicas, with equal weights; trained in place.
        batches: one a step, of which each replica gets an equal share.
        loss_function: (outputs, labels) -> mean over the samples.
        options: of the strategy, with its defaults.
    """
    every, outer, outer_rate, friction = (options[name] for name in _OPTIONS_OF_ROUNDS)
    rate, inertia = cell.learning_rate, cell.momentum
    inner = [torch.optim.SGD(net.parameters(), rate, inertia) for net in networks]
    trained = [[p for p in net.train().parameters() if p.requires_grad] for net in networks]
    before = [p.detach().clone() for p in trained[0]]
    speed = [torch.zeros_like(p) for p in before]
    losses: list[list[float]] = [[] for _ in networks]
    for step, (inputs, labels) in enumerate(batches):
        shares = zip(inputs.chunk(len(networks)), labels.chunk(len(networks)), strict=True)
        for replica, share in enumerate(shares):
            inner[replica].zero_grad()
            loss = loss_function(networks[replica](share[0]), share[1])
            loss.backward()
            for group in inner[replica].param_groups:
                group["lr"] = rate_of(cell, step)
            inner[replica].step()
            losses[replica].append(loss.item())
        if (step + 1) % every:
            continue
        for index, copies in enumerate(zip(*trained, strict=True)):
            new = torch.stack([weight.detach() for weight in copies]).mean(dim=0)
            if outer == "nesterov":
                outer_gradient = before[index] - new
                speed[index] = friction * speed[index] + outer_gradient
                new = before[index] - outer_rate * (outer_gradient + friction * speed[index])
            before[index] = new.clone()
            for weight in copies:
                weight.data.copy_(new)
    return Trained([net.state_dict() for net in networks], losses)
