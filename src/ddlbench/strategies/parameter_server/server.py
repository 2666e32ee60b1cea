"""The parts of a parameter server: the row of weights, its workers, and its servers.

A server has some messages of the row, their momentum, and their updates. In sync mode a message is
updated once all workers have pushed it, independently of other messages::

    w0 -> |--g--|
    w1 -> |-----g-----|
    server            | average | update |
    all <-                               |--w-->

In async mode each worker is served at its own pace. Here the gradient of update 2 comes from
weights without update 1: it is stale by one::

    w0 -> |--g--|                 <-w-|         |--g--|
    w1 ->    |-----g-----|                <-w-|
    server      |update 0|       |update 1|     |update 2|

A worker pushes gradients while backward runs, and pulls new weights::

    backward   | layer n ... | ... layer 1 |
    push          |-0-|-1-|  |-2-|  |-3-|         a message leaves when its last gradient is ready,
    pull               |-0-|-1-|  |-2-|  |-3-|    and its weights return when the server has updated
                                           |--|   exposed

Messages leave in the order of their numbers, as the servers expect: one that is ready early waits
for those before it.

The weights are one vector, the *row*, which is cut into messages::

    row        | fc.bias | fc.weight       | conv2.bias | conv2.weight  | conv1.bias | conv1 ... |
    messages   |      0      |      1      |      2      |      3      |      4      |     5     |
    server            0             1             0             1             0            1

The last layers come first, as their gradients do. Messages have almost equal sizes, so all servers
hold and serve equally much, whatever the sizes of tensors: a large tensor is in several messages,
small ones share one. Servers own ranges of one vector of keys in Li et al. 2014, too (sections 3.2
and 4.3).

Tensors and messages begin at multiples of 64 bytes (of float32), for vector instructions. The gaps
are always zero.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.parameter_server.descriptor import message_count
from ddlbench.strategies.process_group import Channel, receive, send
from ddlbench.strategies.timing import SpanRecorder, StepClock

ALIGNMENT = 16  # elements


@dataclass(frozen=True)
class Message:
    """A piece of the row.

    Args:
        number: its index among all messages, and its tag.
        server: index of its server.
        begin, end: elements of the row.
    """

    number: int
    server: int
    begin: int
    end: int


class Layout:
    """Places of tensors and messages in the row, the same in every process.

    Raises:
        Unsupported: there are no parameters, or of several types.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], servers: int, message_bytes: int
    ) -> None:
        types = {parameter.dtype for parameter in parameters}
        if len(types) != 1:
            names = " and ".join(sorted(map(str, types))) or "no trained weights"
            raise Unsupported(
                f"the servers hold one row of weights of one type, but the network has {names}",
                code="mixed_weight_types",
            )
        (self.dtype,) = types
        self._sizes = [parameter.numel() for parameter in parameters]
        self._begins = [0] * len(parameters)
        self.elements = 0
        for index in reversed(range(len(parameters))):
            self._begins[index] = self.elements
            self.elements += _aligned(self._sizes[index])
        count = message_count(self.elements * self.dtype.itemsize, servers, message_bytes)
        # A set: a network of few weights has fewer messages than servers.
        edges = sorted({_aligned(self.elements * edge // count) for edge in range(count + 1)})
        self.messages = [
            Message(number, number % servers, begin, end)
            for number, (begin, end) in enumerate(pairwise(edges))
        ]

    def views(self, row: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """Each parameter's part of a row, in its shape."""
        return [
            row[begin : begin + size].view(parameter.shape)
            for begin, size, parameter in zip(self._begins, self._sizes, parameters, strict=True)
        ]

    def messages_of(self, parameter: int) -> list[int]:
        """Numbers of the messages that contain a parameter's gradient."""
        begin = self._begins[parameter]
        end = begin + self._sizes[parameter]
        return [m.number for m in self.messages if m.begin < end and begin < m.end]

    def of_server(self, server: int) -> list[Message]:
        return [message for message in self.messages if message.server == server]


class Row:
    """Moves a network's weights and gradients into two rows, so that no message is copied.

    Parameters become views of ``weights``. Their ``grad`` are views of ``gradients``, to which
    autograd adds.
    """

    def __init__(self, network: nn.Module, layout: Layout) -> None:
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        device = self.parameters[0].device
        self.weights = torch.zeros(layout.elements, dtype=layout.dtype, device=device)
        self.gradients = torch.zeros_like(self.weights)
        weights = layout.views(self.weights, self.parameters)
        gradients = layout.views(self.gradients, self.parameters)
        for parameter, weight, gradient in zip(self.parameters, weights, gradients, strict=True):
            weight.copy_(parameter.detach())
            parameter.data = weight
            parameter.grad = gradient


def _aligned(elements: int) -> int:
    return -(-elements // ALIGNMENT) * ALIGNMENT


PUSH, PULL = "push", "pull"

# A group for each direction, so that they do not block each other: over NCCL the messages of a
# group between two ranks go one after the other.
Groups = dict[str, dist.ProcessGroup]


class Worker:
    """The weights of one worker, and its messages with the servers.

    New weights are received into the parameters themselves, while backward may still run. This is
    safe: a message is pushed when the gradients of its weights are ready, so autograd needs these
    weights no more, and it returns only after that.
    """

    def __init__(
        self, network: nn.Module, layout: Layout, servers: list[int], groups: Groups
    ) -> None:
        self._messages = layout.messages
        self._servers, self._groups = servers, groups
        self._row = Row(network, layout)
        self._gradients_of = [0] * len(self._messages)
        for index, parameter in enumerate(self._row.parameters):
            numbers = layout.messages_of(index)
            for number in numbers:
                self._gradients_of[number] += 1
            parameter.register_post_accumulate_grad_hook(partial(self._ready, numbers))
        self._missing: list[int] = []
        self._pushes: list[dist.Work] = []
        self._pulls: list[dist.Work] = []

    def begin(self) -> None:
        """Set gradients to zero before a backward pass."""
        self._row.gradients.zero_()
        self._missing = list(self._gradients_of)

    def push_rest(self) -> None:
        """Push the other messages after the backward pass; missing gradients are zeros."""
        self._missing = [0] * len(self._messages)
        self._push_ready()

    def finish(self) -> None:
        """Wait until all new weights are here."""
        for work in [*self._pulls, *self._pushes]:
            work.wait()
        self._pulls.clear()
        self._pushes.clear()

    def take(self) -> None:
        """Receive the weights that the servers hand out."""
        for number in range(len(self._messages)):
            self._pull(number)
        self.finish()

    def _ready(self, numbers: list[int], _parameter: Tensor) -> None:
        for number in numbers:
            self._missing[number] -= 1
        self._push_ready()

    def _push_ready(self) -> None:
        while len(self._pushes) < len(self._messages) and not self._missing[len(self._pushes)]:
            number = len(self._pushes)
            message = self._messages[number]
            self._pull(number)  # before the push, so that the answer finds its receive posted
            gradients = self._row.gradients[message.begin : message.end]
            server = self._servers[message.server]
            self._pushes.append(send(gradients, server, self._groups[PUSH], number))

    def _pull(self, number: int) -> None:
        message = self._messages[number]
        weights = self._row.weights[message.begin : message.end]
        server = self._servers[message.server]
        self._pulls.append(receive(weights, server, self._groups[PULL], number))


def channels_between(servers: Sequence[int], workers: Sequence[int]) -> list[Channel]:
    """Both channels of every server and worker, in the same order on all ranks."""
    return [
        (direction, worker, server) if direction == PUSH else (direction, server, worker)
        for direction in (PUSH, PULL)
        for server in servers
        for worker in workers
    ]


@dataclass
class Served:
    """The work of one server in one run.

    Args:
        mini_batches: number served.
        busy_s: time of averaging and updating; the host's time, which means nothing on CUDA.
        elapsed_s: of the whole run.
        staleness: number of gradients by staleness, in updates; empty in sync mode.
    """

    mini_batches: int
    busy_s: float = 0.0
    elapsed_s: float = 0.0
    staleness: Counter[int] = field(default_factory=Counter)

    def followed_by(self, later: Served) -> Served:
        return Served(
            self.mini_batches + later.mini_batches,
            self.busy_s + later.busy_s,
            self.elapsed_s + later.elapsed_s,
            self.staleness + later.staleness,
        )


@dataclass
class ServiceLog:
    """The work of a server in measured runs: the successive ones after the warm-up.

    ::

        warm-up 0 .. 4 | 5 .. 7 | 8 .. 9 |     9 once more, for memory
                       |<-- measured --->|     or, after a restart: 0 .. 4 again, then 8 .. 9

    Args:
        next: first mini-batch of the next measured run; at first the one after the warm-up.
        served: in measured runs so far.
    """

    next: int
    served: Served = field(default_factory=lambda: Served(0))

    def add(self, first: int, served: Served) -> None:
        """Add a run that began with mini-batch ``first``, if it was measured."""
        if first < self.next or not served.mini_batches:
            return
        self.served = self.served.followed_by(served) if first == self.next else served
        self.next = first + served.mini_batches


@dataclass
class Round:
    """One run: the mini-batches to serve, its clocks, and callbacks."""

    count: int
    spans: SpanRecorder
    clock: StepClock
    progress: Callable[[int], None]  # gets the number of mini-batches that are done
    set_rate: Callable[[int], None]  # gets the number of the mini-batch whose update follows


class Server:
    """Messages and their updates; subclasses decide when to update."""

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
        """Serve ``run.count`` mini-batches of every worker."""
        self._served = Served(run.count)
        began_s = time.perf_counter()
        run.clock.start()
        self._serve(run)
        self._served.elapsed_s = time.perf_counter() - began_s
        return self._served

    def hand_out(self) -> None:
        """Send all workers the weights."""
        works = [
            self._send(place, worker, self._weights[place].detach())
            for place in self._places
            for worker in self._workers
        ]
        for work in works:
            work.wait()

    def buffers(self) -> Iterator[Tensor]:
        """Receive buffers of gradients."""
        for received in self._received:
            yield from received

    def practise(self) -> None:
        """Update every message once with the contents of its buffers, without messages."""
        raise NotImplementedError

    def _serve(self, run: Round) -> None:
        raise NotImplementedError

    def _expect(self, place: int, worker: int) -> dist.Work:
        """Post the receive of a worker's next gradients."""
        tag, gradients = self._messages[place].number, self._received[worker][place]
        return receive(gradients, self._ranks[worker], self._groups[PUSH], tag)

    def _send(self, place: int, worker: int, weights: Tensor) -> dist.Work:
        tag = self._messages[place].number
        return send(weights, self._ranks[worker], self._groups[PULL], tag)

    def _update(self, place: int, gradient: Tensor) -> None:
        """Step the optimiser on one message."""
        self._weights[place].grad = gradient  # the optimiser skips weights without a gradient
        self._optimizer.step()
        self._weights[place].grad = None


class SyncServer(Server):
    """Waits for all workers, averages, updates, answers all."""

    def practise(self) -> None:
        for place in self._places:
            self._update(place, self._average(place))

    def _serve(self, run: Round) -> None:
        arriving = [self._expect_all(place) for place in self._places] if run.count else []
        leaving: list[list[dist.Work]] = [[] for _ in self._places]
        for number in range(run.count):
            run.set_rate(number)
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
                # Without a copy: the next update waits for these messages.
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
        """The average of the workers' gradients, in a fixed order, in the first one's memory."""
        total, *others = (received[place] for received in self._received)
        for gradient in others:
            total.add_(gradient)
        return total.div_(len(self._workers))


def pieces(network: nn.Module, layout: Layout, server: int, device: torch.device) -> list[Tensor]:
    """Copies of the weights of one server's messages, on its device."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    row = torch.zeros(layout.elements, dtype=layout.dtype)
    for view, parameter in zip(layout.views(row, parameters), parameters, strict=True):
        view.copy_(parameter.detach())
    return [row[m.begin : m.end].clone().to(device) for m in layout.of_server(server)]


_POLL_S = 50e-6


class AsyncServer(Server):
    """Updates with each gradient as it arrives.

    A thread for each worker waits for its messages, updates, and answers; a lock serialises
    updates. The answer is a copy, as the next update may begin before it is sent. The staleness of
    a gradient is the number of updates of its message since the worker got the weights.
    """

    def practise(self) -> None:
        for place in self._places:
            self._answer(place, self._received[0][place])

    def _serve(self, run: Round) -> None:
        self._lock = threading.Lock()  # of weights, counts, clock, and calls of the process group
        self._versions = [0] * len(self._weights)
        self._done: Counter[int] = Counter()
        in_threads([partial(self._serve_one, worker, run) for worker in self._workers])

    def _serve_one(self, worker: int, run: Round) -> None:
        """Serve all mini-batches of one worker."""
        known = [0] * len(self._weights)  # versions that the worker has
        if self._weights and self._weights[0].is_cuda:
            torch.cuda.set_device(self._weights[0].device)
        for number in range(run.count):
            with self._lock:
                arriving = [self._expect(place, worker) for place in self._places]
            leaving = []
            for place, work in enumerate(arriving):
                _await_on_host(work, self._received[worker][place])
                with self._lock:
                    self._served.staleness[self._versions[place] - known[place]] += 1
                    run.set_rate(number)
                    answer = self._apply(place, worker, number, run.spans)
                    known[place] = self._versions[place]
                    leaving.append(self._send(place, worker, answer))
            for work in leaving:
                work.wait()
            with self._lock:
                self._done[number] += 1
                if self._done[number] == len(self._workers):  # in order, as each worker's are
                    run.clock.mark()
                    run.progress(number + 1)

    def _apply(self, place: int, worker: int, number: int, spans: SpanRecorder) -> Tensor:
        """Update with one worker's gradient, and copy the new weights into its memory."""
        began_s = time.perf_counter()
        received = self._received[worker][place]
        with spans.span("update", number):
            self._answer(place, received)
        self._versions[place] += 1
        self._served.busy_s += time.perf_counter() - began_s
        return received

    def _answer(self, place: int, received: Tensor) -> None:
        self._update(place, received)
        received.copy_(self._weights[place].detach())


def in_threads(tasks: Sequence[Callable[[], None]]) -> None:
    """Run all tasks at once; raise the first error without waiting for the others.

    They may wait for messages that never come; daemon threads do not keep the process alive.
    """
    outcomes: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def attempt(task: Callable[[], None]) -> None:
        try:
            task()
            outcomes.put(None)
        except BaseException as error:
            outcomes.put(error)

    for task in tasks:
        threading.Thread(target=attempt, args=(task,), daemon=True).start()
    for _ in tasks:
        error = outcomes.get()
        if error is not None:
            raise error


def _await_on_host(work: dist.Work, received: Tensor) -> None:
    """Block the host until a message is here.

    Over NCCL ``wait`` blocks the stream instead. All threads' updates share one stream, so they
    would wait for the slowest worker.
    """
    while received.is_cuda and not work.is_completed():
        time.sleep(_POLL_S)
    work.wait()
