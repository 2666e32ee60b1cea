"""Carries out one process's actions of a schedule: its messages, and the passes of its stage.

::

    receive_activation   wait for the stage before        send_activation   start, do not wait
    forward              with the planned version         send_gradient     start, do not wait
    receive_gradient     wait for the next stage          all_reduce        start, do not wait
    backward             with the same version            update            wait for the sum; step

With ``stage_all_reduce: async``, update t waits for sum t - 1 only, which had the time of a whole
round; the last update of a run applies its own sum, too.

Messages between stages go from point to point, in the order of the schedule, without blocking it::

    sender     isend b0   isend b1   isend b2 ...     returns at once; awaits the oldest only when
                                                      as many are under way as can be in flight
    receiver   | irecv b1 posted | wait for b0 |      one receive ahead: b1 arrives during b0's pass

A channel is one direction between two ranks. Activations and gradients have separate process
groups: over NCCL, a send without a posted receive blocks its communicator, and an activation must
not block a gradient on its way back.

Over NCCL nothing may wait for the whole device while a receive is posted
(:mod:`ddlbench.strategies.alone`), so from :meth:`Channels.open` to the last receive.

All tensors of a kind have one form, which both sides know, so messages carry no header.

A stage keeps what its passes need::

    forward    inputs, weights of a version -> outputs (the loss, on the last stage)   | kept
    backward   gradient of the outputs -> gradients of the inputs and of that version  | freed

The backward pass of a mini-batch uses the weights of its forward pass (PipeDream, Narayanan et al.,
SOSP 2019, section 3.3, "weight stashing")::

    update            0   1   2   3
    version       0   1   2   3   4        newest: the module's own parameters
    used by          b3  b4  b5            kept for mini-batches in flight, then freed
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from ddlbench.networks.block_forms import TensorForm
from ddlbench.planning.schedules import Action, Schedule
from ddlbench.strategies.executor import Context, MiniBatch
from ddlbench.strategies.process_group import Channel, GradientSum, receive, send
from ddlbench.strategies.timing import SpanRecorder, StepClock

ACTIVATION, GRADIENT = "activation", "gradient"

Groups = dict[str, dist.ProcessGroup]  # of activations and of gradients


class Channels:
    """All messages of one process in one run.

    Args:
        actions: of the process, in order.
        groups: the process groups of activations and gradients.
        forms: of received activations (from the stage before) and gradients (from the next).
        device: of the tensors.
        most: most sends under way on one channel.
        ahead: receives posted on a channel beyond the awaited one.
        spans: records the waits.
    """

    def __init__(
        self,
        actions: Sequence[Action],
        groups: Groups,
        forms: dict[str, TensorForm],
        *,
        device: torch.device,
        most: int,
        ahead: int,
        spans: SpanRecorder,
    ) -> None:
        self._groups, self._forms, self._device = groups, forms, device
        self._most, self._ahead, self._spans = most, ahead, spans
        self._left = Counter(_channel(a) for a in actions if a.kind.startswith("receive"))
        self._posted: dict[tuple[str, int], deque[tuple[Tensor, dist.Work]]] = {
            channel: deque() for channel in self._left
        }
        self._sent: dict[tuple[str, int], deque[tuple[Tensor, dist.Work]]] = {}

    def open(self) -> None:
        """Post the first receives of every channel; from now on, do not synchronise the device."""
        for channel in self._posted:
            self._post(channel, self._ahead)

    def receive(self, action: Action) -> Tensor:
        """Wait for the message of an action."""
        channel = _channel(action)
        self._post(channel, self._ahead + 1)
        tensor, work = self._posted[channel].popleft()
        with self._spans.span("receive_wait", action.micro_batch):
            work.wait()
        return tensor

    def send(self, action: Action, tensor: Tensor) -> None:
        """Start to send; the tensor must not change afterwards."""
        kind, peer = _channel(action)
        sent = self._sent.setdefault((kind, peer), deque())
        if len(sent) >= self._most:
            with self._spans.span("send_wait", action.micro_batch):
                sent.popleft()[1].wait()
        sent.append((tensor, send(tensor, peer, self._groups[kind])))

    def finish(self) -> None:
        """Wait until all messages are sent."""
        for sent in self._sent.values():
            for _, work in sent:
                work.wait()
            sent.clear()

    def _post(self, channel: tuple[str, int], wanted: int) -> None:
        """Post receives of a channel until ``wanted`` are posted or no message is left."""
        kind, peer = channel
        posted = self._posted[channel]
        while self._left[channel] and len(posted) < wanted:
            self._left[channel] -= 1
            tensor = self._forms[kind].tensor(self._device)
            posted.append((tensor, receive(tensor, peer, self._groups[kind])))


def channels_between(stage_ranks: Sequence[Sequence[int]]) -> list[Channel]:
    """The channels of all neighbouring stages, in the same order on all ranks."""
    return [
        (kind, source, target)
        for kind, towards in ((ACTIVATION, 1), (GRADIENT, -1))
        for stage, senders in enumerate(stage_ranks)
        if 0 <= stage + towards < len(stage_ranks)
        for source in senders
        for target in stage_ranks[stage + towards]
    ]


def _channel(action: Action) -> tuple[str, int]:
    assert action.peer is not None
    return action.kind.split("_")[1], action.peer


class MadeUpMessages:
    """Messages of a stage's dry run: it receives zeros and sends nothing."""

    def __init__(self, forms: dict[str, TensorForm], device: torch.device) -> None:
        self._forms, self._device = forms, device

    def open(self) -> None:
        pass

    def receive(self, action: Action) -> Tensor:
        return self._forms[action.kind.removeprefix("receive_")].tensor(self._device).zero_()

    def send(self, action: Action, tensor: Tensor) -> None:
        pass

    def finish(self) -> None:
        pass


@dataclass
class StageParts:
    """The state of a process that outlives a run."""

    number: int
    stage: Stage
    versions: WeightVersions
    replica_group: dist.ProcessGroup | None  # None for a single replica
    asynchronous: bool  # whether an update waits for the sum of the one before
    context: Context


@dataclass
class ScheduleRunner:
    """One run.

    Args:
        parts: of the process.
        schedule: of the run.
        version: number of this run's updates in the weights for a mini-batch.
        set_rate: gets the number of a mini-batch before its update.
        batches: this process's data, in its order.
        messages, spans, clock: of this run.

    Attributes:
        losses: of the last stage, by the mini-batch's number in the run.
        load_s: seconds of waiting for data, by that number.
    """

    parts: StageParts
    schedule: Schedule
    version: Callable[[int], int]
    set_rate: Callable[[int], None]
    batches: Iterator[MiniBatch] | None
    messages: Channels | MadeUpMessages
    spans: SpanRecorder
    clock: StepClock
    losses: dict[int, Tensor] = field(default_factory=dict)
    load_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._base = self.parts.versions.newest
        self._replicas = len(self.schedule.stage_ranks[self.parts.number])
        self._updates = -(-self.schedule.micro_batches // self._replicas)
        self._arrived: Tensor | None = None
        self._leaving: Tensor | None = None
        self._gradients: list[Tensor | None] | None = None
        self._sums: list[tuple[int, GradientSum]] = []
        self._do: dict[str, Callable[[Action], None]] = {
            "receive_activation": self._receive,
            "receive_gradient": self._receive,
            "send_activation": self._send,
            "send_gradient": self._send,
            "forward": self._forward,
            "backward": self._backward,
            "all_reduce": self._all_reduce,
            "update": self._update,
        }

    def run(self, rank: int) -> None:
        """Carry out all actions of a rank; the clock marks each update."""
        self._expect(self.schedule.stage_ranks[self.parts.number].index(rank))
        self.clock.start()
        self.messages.open()  # after the clock's start, which waits for the device
        for action in self.schedule.actions[rank]:
            self._do[action.kind](action)
        self.messages.finish()
        self.parts.versions.settle()

    def mini_batches(self, update: int) -> range:
        """Numbers of the mini-batches whose gradients an update of this stage averages."""
        first = update * self._replicas
        return range(first, min(first + self._replicas, self.schedule.micro_batches))

    def _expect(self, number: int) -> None:
        """Announce the mini-batch of the next forward pass; past the last there is none."""
        goes_on = number < self.schedule.micro_batches
        needed = self.version(number) if goes_on else self._updates + 1
        self.parts.versions.expect(self._base + needed)

    def _receive(self, action: Action) -> None:
        self._arrived = self.messages.receive(action)

    def _send(self, action: Action) -> None:
        assert self._leaving is not None
        self.messages.send(action, self._leaving)
        self._leaving = None

    def _forward(self, action: Action) -> None:
        number, labels = action.micro_batch, None
        inputs, self._arrived = self._arrived, None
        if self.batches is not None:
            begin_s = time.perf_counter()
            with self.spans.span("load", number):
                batch = next(self.batches)
            self.load_s[number] = time.perf_counter() - begin_s
            inputs = batch.inputs if inputs is None else inputs
            labels = batch.labels
        assert inputs is not None
        weights = self.parts.versions.acquire(self._base + self.version(number))
        self._expect(number + self._replicas)
        with self.spans.span("forward", number):
            outputs = self.parts.stage.forward(number, inputs, weights, labels)
        if action.stage == self.schedule.num_stages - 1:
            self.losses[number] = outputs
        else:
            self._leaving = outputs

    def _backward(self, action: Action) -> None:
        number = action.micro_batch
        gradient, self._arrived = self._arrived, None
        with self.spans.span("backward", number):
            self._leaving, self._gradients = self.parts.stage.backward(number, gradient)
        self.parts.versions.release(self._base + self.version(number))

    def _all_reduce(self, action: Action) -> None:
        # At the end, other replicas may have one mini-batch more.
        gradients = self.parts.versions.complete(self._gradients)
        self._gradients = None
        total = GradientSum(gradients, self.parts.replica_group)
        self._sums.append((action.micro_batch, total))

    def _update(self, action: Action) -> None:
        last = action.micro_batch == self._updates - 1
        if self._replicas == 1:
            assert self._gradients is not None
            self._step(action.micro_batch, self._gradients)
            self._gradients = None
        waiting = 1 if self.parts.asynchronous and not last else 0
        while len(self._sums) > waiting:
            update, total = self._sums.pop(0)
            with self.spans.span("all_reduce_wait", update * self._replicas):
                gradients = list(total.wait(len(self.mini_batches(update))))
            self._step(update, self.parts.versions.in_their_places(gradients))
        self.clock.mark()
        self.parts.context.progress(self.mini_batches(action.micro_batch).stop)

    def _step(self, update: int, gradients: list[Tensor | None]) -> None:
        with self.spans.span("update", update * self._replicas), torch.no_grad():
            self.set_rate(update * self._replicas)
            self.parts.versions.update(gradients)


Weights = dict[str, Tensor]
"""A version of a stage's parameters, by name."""


class _Holder(nn.Module):
    """Runs functions while its blocks hold other weights than their own.

    A block may run code in the backward pass as well: recomputation, or a hook. So both passes of a
    mini-batch run within its version.
    """

    def __init__(self, blocks: nn.Sequential) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, function: Callable[[], Tensor | None]) -> Tensor | None:
        return function()

    def within(self, weights: Weights, function: Callable[[], Tensor | None]) -> Tensor | None:
        """Run a function with ``weights`` in place of the blocks' parameters."""
        held = {f"blocks.{name}": weight for name, weight in weights.items()}
        return functional_call(self, held, (function,))


class Stage:
    """The blocks of one stage.

    Buffers (batch-norm statistics) have no versions: they follow the order of the forward passes,
    as in the original.

    Args:
        blocks: the stage's part of the network.
        first: whether its inputs are data, which need no gradient.
        loss_function: of the last stage, (outputs, labels) -> mean over the mini-batch; else None.
        runs_backward: whether blocks may run code of their own in a backward pass, which then needs
            the version, too. Giving it takes some tenths of a millisecond.
    """

    def __init__(
        self,
        blocks: nn.Sequential,
        first: bool,
        loss_function: Callable[[Tensor, Tensor], Tensor] | None,
        *,
        runs_backward: bool = True,
    ) -> None:
        self._holder = _Holder(blocks)
        self._first = first
        self._loss_function = loss_function
        self._runs_backward = runs_backward
        # Inputs, outputs and weights of mini-batches between their two passes.
        self._under_way: dict[int, tuple[Tensor, Tensor, Weights]] = {}

    def forward(
        self, number: int, inputs: Tensor, weights: Weights, labels: Tensor | None
    ) -> Tensor:
        """(N, ...) -> output, or the loss on the last stage: contiguous and detached."""
        if not self._first:
            inputs.requires_grad_()
        outputs = self._holder.within(weights, partial(self._holder.blocks, inputs))
        assert outputs is not None
        if self._loss_function is not None:
            assert labels is not None
            outputs = self._loss_function(outputs, labels)
        self._under_way[number] = (inputs, outputs, weights)
        return outputs.detach().contiguous()

    def backward(
        self, number: int, gradient: Tensor | None
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        """Gradients of the inputs (None on the first stage) and of the weights, in their order.

        A weight that is not trained, or not used, has none.

        Args:
            number: of the mini-batch, whose activations are freed.
            gradient: of the outputs; None on the last stage.
        """
        inputs, outputs, weights = self._under_way.pop(number)
        if outputs.requires_grad:  # else nothing of this stage is trained
            backward = partial(torch.autograd.backward, outputs, gradient)
            if self._runs_backward:
                self._holder.within(weights, backward)
            else:
                backward()
        gradients = [weight.grad for weight in weights.values()]
        for weight in weights.values():  # other mini-batches may use the version, too
            weight.grad = None
        if self._first:
            return None, gradients
        of_inputs = inputs.grad
        if of_inputs is None:  # the stage before waits for a gradient, whatever it is
            of_inputs = torch.zeros_like(inputs)
        return of_inputs.contiguous(), gradients


class WeightVersions:
    """The versions of one stage's weights.

    The optimiser updates the module's parameters in place. If a mini-batch still needs the old
    values, the parameters first move to new memory. So versions share no memory, and only needed
    ones take any.

    Args:
        module: the stage, whose parameters are the newest version.
        optimizer: of these parameters.

    Attributes:
        newest: number of the newest version: the updates so far.
        most: most versions held at once so far.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._parameters = dict(module.named_parameters())
        self._optimizer = optimizer
        self._needed = 0
        self._users: Counter[int] = Counter()
        self._versions = {0: self._view()}
        self.newest = 0
        self.most = 1

    def acquire(self, number: int) -> Weights:
        """Weights of a version by name, as leaves of autograd; held until released."""
        self._users[number] += 1
        return self._versions[number]

    def release(self, number: int) -> None:
        """End a mini-batch's use of its version."""
        self._users[number] -= 1
        self._free()

    def expect(self, number: int) -> None:
        """Announce the version that is needed next; unused older ones are freed."""
        self._needed = number
        self._free()

    def update(self, gradients: Sequence[Tensor | None]) -> None:
        """One step of the optimizer; gradients in the order of the module's parameters."""
        if self._users[self.newest] or self._needed <= self.newest:
            for parameter in self._parameters.values():
                if parameter.requires_grad:  # the others never change
                    parameter.data = parameter.data.clone()
        else:
            del self._versions[self.newest]
        for parameter, gradient in zip(self._parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.newest += 1
        self._versions[self.newest] = self._view()
        self.most = max(self.most, len(self._versions))

    def complete(self, gradients: Sequence[Tensor | None] | None) -> list[Tensor]:
        """Dense gradients of the trained weights, zeros for those that are missing.

        A replica that has no mini-batch has None.
        """
        parameters = list(self._parameters.values())
        known = gradients or [None] * len(parameters)
        return [
            torch.zeros_like(parameter) if gradient is None else gradient.to_dense()
            for parameter, gradient in zip(parameters, known, strict=True)
            if parameter.requires_grad
        ]

    def in_their_places(self, gradients: Iterable[Tensor]) -> list[Tensor | None]:
        """Gradients of the trained weights, with None for the others."""
        values = iter(gradients)
        return [next(values) if p.requires_grad else None for p in self._parameters.values()]

    def settle(self) -> None:
        """Keep the newest version only, as no mini-batch is in flight."""
        self._users.clear()
        self.expect(self.newest)

    def tensors(self) -> Iterator[Tensor]:
        """The weights of all held versions."""
        for weights in self._versions.values():
            yield from weights.values()

    def _view(self) -> Weights:
        # .data shares memory but not autograd's count of in-place changes.
        return {
            name: p.data.requires_grad_(p.requires_grad) for name, p in self._parameters.items()
        }

    def _free(self) -> None:
        below = min(self._needed, self.newest)
        for number in [n for n in self._versions if n < below and not self._users[n]]:
            del self._versions[number]
            del self._users[number]
