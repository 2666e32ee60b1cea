"""Messages between stages: point to point, in the order of the schedule, never in its way.

::

    sender     isend b0   isend b1   isend b2 ...     returns at once; the oldest is waited for only
                                                      when as many are under way as can be in flight
    receiver   | irecv b1 posted | wait for b0 |      one receive ahead: b1 arrives during b0's pass

A channel is one direction between two ranks. Activations and gradients have process groups of
their own: over NCCL, a send that nobody receives yet holds up its communicator, and an activation
must not hold up a gradient on its way back.

Over NCCL a posted receive is a kernel that spins until its message comes. Who waits for the whole
device meanwhile waits for the other rank, too, and both may do so for ever. So nothing is posted
before :meth:`Channels.open`, and between that and the last receive nothing may synchronise the
device: see :mod:`ddlbench.strategies.dry_run`.

Every tensor of a kind has one form, known beforehand, so messages carry no header.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ddlbench.planning.schedules import Action
from ddlbench.strategies.pipelining.cutting import TensorForm
from ddlbench.strategies.process_group import Channel

ACTIVATION, GRADIENT = "activation", "gradient"

Groups = dict[str, dist.ProcessGroup]  # "activation", "gradient"


class Spans(Protocol):
    """Who is told of waits."""

    def span(self, kind: str, number: int) -> AbstractContextManager[None]:
        """Time what is done inside."""
        ...


class Messages(Protocol):
    """What a process asks of its messages; see :class:`Channels`."""

    def open(self) -> None:
        """The clock runs: receives may be posted."""
        ...

    def receive(self, action: Action) -> Tensor:
        """The message that an action waits for."""
        ...

    def send(self, action: Action, tensor: Tensor) -> None:
        """Start to send."""
        ...

    def finish(self) -> None:
        """Wait until all is sent."""
        ...


class Channels:
    """All messages of one process in one run; :meth:`open` it when the clock runs.

    Args:
        actions: of the process, in order.
        groups: the two process groups.
        forms: of what arrives: activations from the stage before, gradients from the one behind.
        device: where tensors lie.
        most: sends under way on one channel.
        ahead: receives posted on a channel beyond the one that is waited for.
        spans: gets the waits.
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
        spans: Spans,
    ) -> None:
        self._groups, self._forms, self._device = groups, forms, device
        self._most, self._ahead, self._spans = most, ahead, spans
        self._left = Counter(_channel(a) for a in actions if a.kind.startswith("receive"))
        self._posted: dict[tuple[str, int], deque[tuple[Tensor, dist.Work]]] = {
            channel: deque() for channel in self._left
        }
        self._sent: dict[tuple[str, int], deque[tuple[Tensor, dist.Work]]] = {}

    def open(self) -> None:
        """Post the first receives of every channel; nobody may synchronise the device now."""
        for channel in self._posted:
            self._post(channel, self._ahead)

    def receive(self, action: Action) -> Tensor:
        """The message that an action waits for."""
        channel = _channel(action)
        self._post(channel, self._ahead + 1)
        tensor, work = self._posted[channel].popleft()
        with self._spans.span("receive_wait", action.micro_batch):
            work.wait()
        return tensor

    def send(self, action: Action, tensor: Tensor) -> None:
        """Start to send; the tensor must not be changed afterwards."""
        kind, peer = channel = _channel(action)
        sent = self._sent.setdefault(channel, deque())
        if len(sent) >= self._most:
            with self._spans.span("send_wait", action.micro_batch):
                sent.popleft()[1].wait()
        work = dist.isend(tensor, peer, group=self._groups[kind])
        assert work is not None
        sent.append((tensor, work))

    def finish(self) -> None:
        """Wait until all is sent."""
        for sent in self._sent.values():
            for _, work in sent:
                work.wait()
            sent.clear()

    def _post(self, channel: tuple[str, int], wanted: int) -> None:
        """Have so many receives of a channel posted, as far as messages are left."""
        kind, peer = channel
        posted = self._posted[channel]
        while self._left[channel] and len(posted) < wanted:
            self._left[channel] -= 1
            tensor = self._forms[kind].tensor(self._device)
            work = dist.irecv(tensor, peer, group=self._groups[kind])
            assert work is not None
            posted.append((tensor, work))


def channels_between(stage_ranks: Sequence[Sequence[int]]) -> list[Channel]:
    """The channels of all neighbouring stages, in one order for all."""
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
    """For a stage's dry run alone: what is received is zero, what is sent goes nowhere.

    Args:
        forms: of what arrives, "activation" and "gradient".
        device: where tensors lie.
    """

    def __init__(self, forms: dict[str, TensorForm], device: torch.device) -> None:
        self._forms, self._device = forms, device

    def open(self) -> None:
        """Nothing is posted."""

    def receive(self, action: Action) -> Tensor:
        """A tensor of the form of the message that an action waits for."""
        return self._forms[action.kind.removeprefix("receive_")].tensor(self._device).zero_()

    def send(self, action: Action, tensor: Tensor) -> None:
        """To nobody."""

    def finish(self) -> None:
        """Nothing is under way."""
