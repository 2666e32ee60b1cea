"""A server's side: some messages of the row, their momentum, and their updates in step.

::

    w0 -> |--g--|                           a message is updated once all workers have pushed it,
    w1 -> |-----g-----|                     whatever becomes of the other messages
    server            | average | update |
    all <-                               |--w-->
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddlbench.strategies.parameter_server.layout import Layout, Message
from ddlbench.strategies.parameter_server.worker import PULL, PUSH, Groups
from ddlbench.strategies.timing import SpanRecorder, StepClock

__all__ = ["Round", "Served", "Server", "ServiceLog", "SyncServer", "pieces"]


@dataclass
class Served:
    """What one server did in one run.

    Args:
        mini_batches: that it served.
        busy_s: of averaging and updating; the host's time, so of no use on CUDA.
        elapsed_s: of the whole run.
        staleness: how often a message was so many updates old; empty in sync mode.
    """

    mini_batches: int
    busy_s: float = 0.0
    elapsed_s: float = 0.0
    staleness: Counter[int] = field(default_factory=Counter)

    def followed_by(self, later: Served) -> Served:
        """Both runs together."""
        return Served(
            self.mini_batches + later.mini_batches,
            self.busy_s + later.busy_s,
            self.elapsed_s + later.elapsed_s,
            self.staleness + later.staleness,
        )


@dataclass
class ServiceLog:
    """What a server did in measured runs: those that follow the warm-up, and each other.

    ::

        warm-up 0 .. 4 | 5 .. 7 | 8 .. 9 |     9 once more, for memory
                       |<-- measured --->|     or, after a restart: 0 .. 4 again, then 8 .. 9

    Args:
        next: mini-batch that the next measured run begins with; at first, that behind the warm-up.
        served: in measured runs so far.
    """

    next: int
    served: Served = field(default_factory=lambda: Served(0))

    def add(self, first: int, served: Served) -> None:
        """A run that began with mini-batch ``first`` is over."""
        if first < self.next or not served.mini_batches:
            return
        self.served = self.served.followed_by(served) if first == self.next else served
        self.next = first + served.mini_batches


@dataclass
class Round:
    """A run under way.

    Args:
        count: mini-batches to serve.
        spans, clock: its times.
        progress: gets the number of mini-batches done.
    """

    count: int
    spans: SpanRecorder
    clock: StepClock
    progress: Callable[[int], None]


class Server:
    """Messages and their updates; subclasses say when.

    Args:
        weights: of each message.
        optimizer: of all of them.
        messages: what they are.
        workers: rank of each.
        groups: for both directions.
    """

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        messages: Sequence[Message],
        workers: Sequence[int],
        groups: Groups,
    ) -> None:
        self._weights, self._messages = list(weights), list(messages)
        self._optimizer, self._ranks, self._groups = optimizer, list(workers), groups
        self._places, self._workers = range(len(self._weights)), range(len(self._ranks))
        self._received = [
            [torch.zeros_like(weight, requires_grad=False) for weight in self._weights]
            for _ in self._workers
        ]
        self._served = Served(0)

    def serve(self, run: Round) -> Served:
        """Serve so many mini-batches of every worker, no more and no fewer."""
        self._served = Served(run.count)
        began_s = time.perf_counter()
        run.clock.start()
        self._serve(run)
        self._served.elapsed_s = time.perf_counter() - began_s
        return self._served

    def hand_out(self) -> None:
        """Give all workers the weights."""
        works = [
            self._send(place, worker, self._weights[place].detach())
            for place in self._places
            for worker in self._workers
        ]
        for work in works:
            work.wait()

    def buffers(self) -> Iterator[Tensor]:
        """What gradients are received into."""
        for received in self._received:
            yield from received

    def practise(self) -> None:
        """Update every message once with what lies in its buffers, without any talk."""
        raise NotImplementedError

    def _serve(self, run: Round) -> None:
        raise NotImplementedError

    def _expect(self, place: int, worker: int) -> dist.Work:
        """Post the receive of a worker's next gradients."""
        work = dist.irecv(
            self._received[worker][place],
            self._ranks[worker],
            group=self._groups[PUSH],
            tag=self._messages[place].number,
        )
        assert work is not None
        return work

    def _send(self, place: int, worker: int, weights: Tensor) -> dist.Work:
        """Start to answer; the tensor must not change until that is done."""
        work = dist.isend(
            weights,
            self._ranks[worker],
            group=self._groups[PULL],
            tag=self._messages[place].number,
        )
        assert work is not None
        return work

    def _update(self, place: int, gradient: Tensor) -> None:
        """One step of the optimiser on one message: it passes over what has no gradient."""
        self._weights[place].grad = gradient
        self._optimizer.step()
        self._weights[place].grad = None


class SyncServer(Server):
    """Waits for all workers, averages, updates, answers all."""

    def practise(self) -> None:
        """Average and update."""
        for place in self._places:
            self._update(place, self._average(place))

    def _serve(self, run: Round) -> None:
        arriving = [self._expect_all(place) for place in self._places] if run.count else []
        leaving: list[list[dist.Work]] = [[] for _ in self._places]
        for number in range(run.count):
            for place in self._places:
                with run.spans.span("receive_wait", number):
                    for work in [*arriving[place], *leaving[place]]:
                        work.wait()
                began_s = time.perf_counter()
                with run.spans.span("update", number):
                    self._update(place, self._average(place))
                self._served.busy_s += time.perf_counter() - began_s
                if number + 1 < run.count:
                    arriving[place] = self._expect_all(place)
                # No copy: the next update waits for all workers, and so for these messages.
                weights = self._weights[place].detach()
                leaving[place] = [self._send(place, worker, weights) for worker in self._workers]
            run.clock.mark()
            run.progress(number + 1)
        for works in leaving:
            for work in works:
                work.wait()

    def _expect_all(self, place: int) -> list[dist.Work]:
        return [self._expect(place, worker) for worker in self._workers]

    def _average(self, place: int) -> Tensor:
        """Of the workers' gradients, always in the same order; the first one's memory is used."""
        total, *others = (received[place] for received in self._received)
        for gradient in others:
            total.add_(gradient)
        return total.div_(len(self._workers))


def pieces(network: nn.Module, layout: Layout, server: int, device: torch.device) -> list[Tensor]:
    """The weights of one server's messages, on its device; the network is left as it was."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    row = torch.zeros(layout.elements, dtype=layout.dtype)
    for view, parameter in zip(layout.views(row, parameters), parameters, strict=True):
        view.copy_(parameter.detach())
    return [row[m.begin : m.end].clone().to(device) for m in layout.of_server(server)]
