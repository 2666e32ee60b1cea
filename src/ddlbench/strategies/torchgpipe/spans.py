"""When each partition of torchgpipe computed which micro-batch, seen in one untimed step.

::

    forward     from hook to hook around the partition
    recompute   the same, while torchgpipe recomputes a checkpointed micro-batch
    backward    from the first to the last autograd node of the partition's operations

On CPU marks are the host's clock. On CUDA they are events on the partition's device; each device's
own first event, recorded when all devices are idle, is its zero.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torchgpipe.checkpoint import is_recomputing

__all__ = ["PartitionSpan", "SpanRecorder", "recording"]


class PartitionSpan(NamedTuple):
    """One piece of work; seconds from the start of the step."""

    partition: int
    kind: str
    micro_batch: int
    start_s: float
    end_s: float


class SpanRecorder:
    """Collects the marks of one step; see :func:`recording`."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = devices
        self._marks: dict[tuple[int, str, int], list[Any]] = {}
        self._forwarded = [0] * len(devices)
        self._checkpointed: list[list[int]] = [[] for _ in devices]
        self._current = [("forward", 0)] * len(devices)
        for device in devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        self._zeros = [self._now(partition) for partition in range(len(devices))]

    def spans(self) -> list[PartitionSpan]:
        """All pieces in the order of their start; waits for the devices."""
        for device in self._devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        found = []
        for (partition, kind, micro_batch), marks in self._marks.items():
            seconds = [self._seconds(partition, mark) for mark in marks]
            found.append(PartitionSpan(partition, kind, micro_batch, min(seconds), max(seconds)))
        return sorted(found, key=lambda span: (span.start_s, span.partition))

    def enter(self, partition: int, _module: nn.Module, _inputs: Any) -> None:
        """A partition starts on a micro-batch."""
        if is_recomputing():
            # Backward goes from the last micro-batch to the first.
            self._current[partition] = ("recompute", self._checkpointed[partition].pop())
        else:
            micro_batch = self._forwarded[partition]
            self._forwarded[partition] += 1
            self._current[partition] = ("forward", micro_batch)
            if not torch.is_grad_enabled():
                self._checkpointed[partition].append(micro_batch)
        self._mark(partition, *self._current[partition])

    def leave(self, partition: int, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        """It is done with that micro-batch."""
        self._mark(partition, *self._current[partition])

    def operation(self, partition: int, _module: nn.Module, _inputs: Any, output: Any) -> None:
        """An operation ran: its autograd node will tell when it goes backward."""
        node = getattr(output, "grad_fn", None)
        if node is None:
            return
        mark = partial(self._mark, partition, "backward", self._current[partition][1])
        node.register_prehook(lambda _gradients: mark())
        node.register_hook(lambda _inputs, _outputs: mark())

    def _mark(self, partition: int, kind: str, micro_batch: int) -> None:
        self._marks.setdefault((partition, kind, micro_batch), []).append(self._now(partition))

    def _now(self, partition: int) -> Any:
        device = self._devices[partition]
        if device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event

    def _seconds(self, partition: int, mark: Any) -> float:
        zero = self._zeros[partition]
        if isinstance(mark, float):
            return float(mark - zero)
        return float(zero.elapsed_time(mark)) / 1e3


@contextmanager
def recording(
    partitions: Sequence[nn.Module], devices: Sequence[torch.device]
) -> Iterator[SpanRecorder]:
    """Record the work of ``partitions``, each on its device, in the one step run within."""
    recorder = SpanRecorder(devices)
    hooks = []
    for index, partition in enumerate(partitions):
        hooks.append(partition.register_forward_pre_hook(partial(recorder.enter, index)))
        hooks.append(partition.register_forward_hook(partial(recorder.leave, index)))
        for module in partition.modules():
            if not list(module.children()):
                hooks.append(module.register_forward_hook(partial(recorder.operation, index)))
    try:
        yield recorder
    finally:
        for hook in hooks:
            hook.remove()
