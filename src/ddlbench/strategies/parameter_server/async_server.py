"""A server that serves each worker at its own pace.

::

    w0 -> |--g--|                 <-w-|         |--g--|
    w1 ->    |-----g-----|                <-w-|
    server      |update 0|       |update 1|     |update 2|

Update 2 rests on a gradient of weights that lack update 1: it is stale by one.

A thread for each worker waits for its messages, updates, and answers. Updates exclude one another;
the answer is a copy, as the next update may begin before it has left. The staleness of a gradient
is the number of updates that its message saw since the worker was given the weights.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from ddlbench.strategies.parameter_server.server import Round, Server
from ddlbench.strategies.timing import SpanRecorder

__all__ = ["AsyncServer"]

_POLL_S = 50e-6


class AsyncServer(Server):
    """Updates with each gradient as it comes."""

    def practise(self) -> None:
        """Update with one worker's gradient, and copy the answer."""
        for place in self._places:
            self._answer(place, self._received[0][place])

    def _serve(self, run: Round) -> None:
        self._lock = threading.Lock()  # of weights, counts, clock, and calls of the process group
        self._versions = [0] * len(self._weights)
        self._done: Counter[int] = Counter()
        in_threads([partial(self._serve_one, worker, run) for worker in self._workers])

    def _serve_one(self, worker: int, run: Round) -> None:
        """All mini-batches of one worker."""
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
        """Update with one worker's gradient; a copy of the weights takes the gradient's memory."""
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
    """Run all at once; raise what the first one raises, without waiting for the others.

    They may wait for messages that never come. The process ends with the error, and does not wait
    for threads like these.
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
    """Return when a message is here.

    A wait over NCCL has the stream wait, not the host, and all threads' updates share a stream:
    they would wait for the slowest worker.
    """
    while received.is_cuda and not work.is_completed():
        time.sleep(_POLL_S)
    work.wait()
