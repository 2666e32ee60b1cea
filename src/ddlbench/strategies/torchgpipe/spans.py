"""Spans of torchgpipe's partitions and micro-batches, recorded in one untimed step.

::

    forward     from hook to hook around the partition
    recompute   likewise, while torchgpipe recomputes a checkpointed micro-batch
    backward    from the first to the last autograd node of the partition's operations

Marks are those of a :class:`~ddlbench.strategies.timing.SpanRecorder` for each partition's device.
On an emulated device a mark is when all queued work has ended and a hook's tensors are there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchgpipe.checkpoint import is_recomputing

from ddlbench.networks.emulated_device import QueuedDevices
from ddlbench.strategies.timing import Mark, SpanRecorder


class PartitionSpan(NamedTuple):
    """One pass of a micro-batch; seconds from the start of the step."""

    partition: int
    kind: str
    micro_batch: int
    start_s: float
    end_s: float


class PartitionRecorder:
    """Collects the marks of one step; see :func:`recording`."""

    def __init__(
        self, devices: Sequence[torch.device], emulated: QueuedDevices | None = None
    ) -> None:
        self._marks: dict[tuple[int, str, int], list[Mark]] = {}
        self._forwarded = [0] * len(devices)
        self._checkpointed: list[list[int]] = [[] for _ in devices]
        self._current = [("forward", 0)] * len(devices)
        self._recorders = [SpanRecorder(device) for device in devices]
        self._emulated = emulated
        self._start_s = time.perf_counter()

    def spans(self) -> list[PartitionSpan]:
        """Wait for the devices; return all spans in the order of their start."""
        for recorder in self._recorders:
            recorder.wait()
        spans = []
        for (partition, kind, micro_batch), marks in self._marks.items():
            at = self._recorders[partition].seconds
            seconds = [at(mark) - self._start_s for mark in marks]
            spans.append(PartitionSpan(partition, kind, micro_batch, min(seconds), max(seconds)))
        return sorted(spans, key=lambda span: (span.start_s, span.partition))

    def enter(self, partition: int, _module: nn.Module, inputs: Any) -> None:
        """Mark that a partition starts a micro-batch."""
        if is_recomputing():
            # Backward goes from the last micro-batch to the first.
            self._current[partition] = ("recompute", self._checkpointed[partition].pop())
        else:
            micro_batch = self._forwarded[partition]
            self._forwarded[partition] += 1
            self._current[partition] = ("forward", micro_batch)
            if not torch.is_grad_enabled():
                self._checkpointed[partition].append(micro_batch)
        self._mark(partition, *self._current[partition], after=inputs)

    def leave(self, partition: int, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        """Mark that a partition has finished a micro-batch."""
        self._mark(partition, *self._current[partition])

    def operation(self, partition: int, _module: nn.Module, _inputs: Any, output: Any) -> None:
        """Make the autograd node of an operation mark its backward pass."""
        node = getattr(output, "grad_fn", None)
        if node is None:
            return
        mark = partial(self._mark, partition, "backward", self._current[partition][1])
        node.register_prehook(lambda gradients: mark(after=gradients))
        node.register_hook(lambda _inputs, _outputs: mark())

    def _mark(self, partition: int, kind: str, micro_batch: int, after: Sequence[Any] = ()) -> None:
        """Mark what was issued so far and, on an emulated device, when tensors are there."""
        if self._emulated is None:
            mark = self._recorders[partition].now()
        else:
            tensors = [value for value in after if isinstance(value, Tensor)]
            mark = self._emulated.each[partition].begin_s(*tensors)
        self._marks.setdefault((partition, kind, micro_batch), []).append(mark)


@contextmanager
def recording(
    partitions: Sequence[nn.Module],
    devices: Sequence[torch.device],
    emulated: QueuedDevices | None = None,
) -> Iterator[PartitionRecorder]:
    """Record the passes of ``partitions``, each on its device, in the step of the body."""
    recorder = PartitionRecorder(devices, emulated)
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
