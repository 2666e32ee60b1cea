"""torchgpipe's worker threads, kept from one forward pass to the next.

::

    torchgpipe 0.0.7    forward 0  | start threads | compute | end them |
                        forward 1  | start threads | compute | end them | ...
    here                forward 0  | start threads | compute |
                        forward 1                  | compute | ...  close: end them

PyTorch stores the results of cuDNN's search for plans (``cudnn_benchmark``) per thread. torchgpipe
computes every forward pass in new threads, which would repeat the search in every step; it would
be most of the step's time. So here the threads of each device are started once. Queues, tasks and
their order stay the same, and torchgpipe's own code does all the rest.

A thread is used again only after a successful pass. After an error, which torchgpipe raises as
usual, tasks may still be under way: all threads end, and the next pass starts new ones.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torchgpipe.pipeline
from torchgpipe.stream import use_device

Queue = queue.SimpleQueue[Any]


class _Worker(NamedTuple):
    """A thread, its queue of tasks (None ends it), and its queue of results."""

    tasks: Queue
    results: Queue
    thread: threading.Thread


class KeptWorkers:
    """Threads for each device: one for passes with gradients, and one for passes without."""

    def __init__(self) -> None:
        self._workers: dict[tuple[torch.device, bool], _Worker] = {}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let torchgpipe's forward passes within the body compute in these threads."""
        original = torchgpipe.pipeline.spawn_workers
        torchgpipe.pipeline.spawn_workers = self._spawn
        try:
            yield
        finally:
            torchgpipe.pipeline.spawn_workers = original

    def close(self) -> None:
        """End all threads; the next pass starts new ones."""
        workers = list(self._workers.values())
        self._workers.clear()
        for worker in workers:
            worker.tasks.put(None)
        for worker in workers:
            worker.thread.join()

    @contextmanager
    def _spawn(self, devices: Sequence[torch.device]) -> Iterator[tuple[list[Queue], list[Queue]]]:
        """Replace torchgpipe's ``spawn_workers``: queues of tasks and results for each partition.

        Partitions on one device share a thread.
        """
        try:
            workers = [self._of(_named(device)) for device in devices]
            yield [worker.tasks for worker in workers], [worker.results for worker in workers]
        except BaseException:
            self.close()
            raise

    def _of(self, device: torch.device) -> _Worker:
        key = (device, torch.is_grad_enabled())
        if key not in self._workers:
            tasks, results = queue.SimpleQueue[Any](), queue.SimpleQueue[Any]()
            thread = threading.Thread(
                target=_work, args=(*key, tasks, results), name=f"partition {device}", daemon=True
            )
            thread.start()
            self._workers[key] = _Worker(tasks, results, thread)
        return self._workers[key]


def _work(device: torch.device, with_gradients: bool, tasks: Queue, results: Queue) -> None:
    """Compute one task after the other."""
    torch.set_grad_enabled(with_gradients)
    with use_device(device):
        while (task := tasks.get()) is not None:
            results.put(_outcome(task))
            del task  # free the micro-batch's memory before waiting for the next task


def _outcome(task: Any) -> tuple[bool, Any]:
    """Result in torchgpipe's form: (True, (task, batch)), or (False, the error)."""
    try:
        return True, (task, task.compute())
    except Exception:
        return False, sys.exc_info()


def _named(device: torch.device) -> torch.device:
    """The device with an explicit index, so that each has one name."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu") if device.type == "cpu" else device
