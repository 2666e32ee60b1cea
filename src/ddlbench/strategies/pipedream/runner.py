"""Carries out one process's actions of a schedule, one after the other.

::

    receive_activation   wait for the stage before        send_activation   start, do not wait
    forward              with the planned version         send_gradient     start, do not wait
    receive_gradient     wait for the next stage          all_reduce        start, do not wait
    backward             with the same version            update            wait for the sum; step

With ``stage_all_reduce: async``, update t waits for sum t - 1 only, which had the time of a whole
round; the last update of a run applies its own sum, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from ddlbench.planning.schedules import Action, Schedule
from ddlbench.strategies.executor import Context, MiniBatch
from ddlbench.strategies.gradient_sum import GradientSum
from ddlbench.strategies.pipedream.channels import Messages
from ddlbench.strategies.pipedream.stage import Stage, WeightVersions
from ddlbench.strategies.timing import SpanRecorder, StepClock


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
    messages: Messages
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
