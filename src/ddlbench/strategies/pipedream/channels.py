"""Messages between stages: point to point, in the order of the schedule, without blocking it.

::

    sender     isend b0   isend b1   isend b2 ...     returns at once; awaits the oldest only when
                                                      as many are under way as can be in flight
    receiver   | irecv b1 posted | wait for b0 |      one receive ahead: b1 arrives during b0's pass

A channel is one direction between two ranks. Activations and gradients have separate process
groups: over NCCL, a send without a posted receive blocks its communicator, and an activation must
not block a gradient on its way back.

Over NCCL a posted receive is a kernel that spins until its message arrives, so an operation that
waits for the whole device may deadlock two ranks (:mod:`ddlbench.strategies.dry_run`). Therefore
:meth:`Channels.open` posts the first receive, and nothing may synchronise the device between it and
the last receive.

All tensors of a kind have one form, which both sides know, so messages carry no header.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ddlbench.planning.schedules import Action
from ddlbench.strategies.pipelining.cutting import TensorForm
from ddlbench.strategies.process_group import Channel
from ddlbench.strategies.timing import SpanRecorder

ACTIVATION, GRADIENT = "activation", "gradient"

Groups = dict[str, dist.ProcessGroup]  # "activation", "gradient"


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
        kind, peer = channel = _channel(action)
        sent = self._sent.setdefault(channel, deque())
        if len(sent) >= self._most:
            with self._spans.span("send_wait", action.micro_batch):
                sent.popleft()[1].wait()
        work = dist.isend(tensor, peer, group=self._groups[kind])
        assert work is not None
        sent.append((tensor, work))

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
            work = dist.irecv(tensor, peer, group=self._groups[kind])
            assert work is not None
            posted.append((tensor, work))


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


Messages = Channels | MadeUpMessages
