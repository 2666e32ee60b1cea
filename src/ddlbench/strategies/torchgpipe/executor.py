"""Executor of torchgpipe: one process, one thread for each device, micro-batches in a pipeline.

One thing differs from torchgpipe: its threads are kept from step to step.

Emulated devices work off their queues as GPUs do. The optimiser runs on the host, so it waits for
them; the loss is of zeros, which are there at once.

Spans of partitions and micro-batches are recorded in one untimed step::

    forward     from hook to hook around the partition
    recompute   likewise, while torchgpipe recomputes a checkpointed micro-batch
    backward    from the first to the last autograd node of the partition's operations

Marks are those of a :class:`~ddlbench.strategies.timing.SpanRecorder` for each partition's device.
On an emulated device a mark is when all queued work has ended and a hook's tensors are there.

Threads are kept from one forward pass to the next::

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

With recomputation torchgpipe computes the activations of a micro-batch without a graph first, and
again before its backward pass. A layer that updates its buffers in each pass, as batch norm, would
count the micro-batch twice::

    forward      statistics of micro-batch 0, 1, 2, 3
    recomputed   0, 1, 2                                 on copies of the statistics
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torchgpipe.pipeline
from torch import Tensor, nn
from torchgpipe import GPipe
from torchgpipe.balance import balance_by_size, balance_by_time
from torchgpipe.checkpoint import is_recomputing
from torchgpipe.stream import use_device

from ddlbench.common.quantities import counted
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks.emulated import QueuedDevices, queued_devices
from ddlbench.networks.inputs import made_up_inputs
from ddlbench.strategies.executor import Executor, Unsupported
from ddlbench.strategies.recomputation import ChangedForward, change_forward, with_copied_buffers
from ddlbench.strategies.timing import Mark, Span, SpanRecorder
from ddlbench.strategies.torchgpipe.descriptor import TorchGPipeDetails


class GPipeExecutor(Executor):
    """Runs torchgpipe's ``GPipe`` on the node's devices."""

    chunks: int
    checkpoint: str
    balance: list[int]
    emulated: QueuedDevices | None

    def __init__(self) -> None:
        self.workers = KeptWorkers()

    def place(self, network: nn.Sequential) -> nn.Module:
        details = TorchGPipeDetails.of(self.plan)
        self.chunks, self.checkpoint = details.chunks, details.checkpoint
        devices = list(self.context.devices)
        cell = self.plan.cell
        sample = made_up_inputs(DATASETS[cell.dataset], cell.batch_size // self.chunks)
        rule = str(details.balance)
        if rule == "profile":  # the plan applied it, as only the plan sees the site's profile
            rule = "+".join(map(str, details.blocks_per_device))
        self.balance = (
            # A resumed run keeps its balance, as new times might give another one.
            self.context.fixed.get("blocks_per_device")
            or choose_balance(rule, network, sample, devices, self.chunks)
        )
        if self.checkpoint != "never":
            self.check_recomputation(network, "checkpoint: never", with_graph=False)
            count_once(network)
        module = GPipe(
            network,
            balance=self.balance,
            devices=devices,
            chunks=self.chunks,
            checkpoint=self.checkpoint,
        )
        # Only now, as torchgpipe times blocks for a balance by running them one at a time.
        self.emulated = queued_devices(list(module.partitions))
        return module

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        with self.workers.in_use():  # the output is on the last partition's device
            return super().step(inputs, labels.to(self.context.devices[-1]))

    def update(self) -> None:
        if self.emulated is not None:
            self.emulated.wait()
        super().update()

    def state_dict(self) -> dict[str, Any]:
        assert isinstance(self.module, GPipe)
        # torchgpipe prefixes names with the index of a partition.
        network = {name.split(".", 2)[2]: value for name, value in self.module.state_dict().items()}
        return {"network": network, "optimizer": self.optimizer.state_dict()}

    def threaded_modules(self) -> list[nn.Module]:
        assert isinstance(self.module, GPipe)
        return list(self.module.partitions)

    def record_step(self, _mini_batch: int) -> list[Span]:
        return []  # spans belong to partitions, not processes: see partition_spans

    def partition_spans(self, mini_batch: int) -> list[PartitionSpan]:
        """Train one more step, untimed; the spans of each partition and micro-batch."""
        assert isinstance(self.module, GPipe)
        partitions = list(self.module.partitions)
        with recording(partitions, self.context.devices, self.emulated) as recorder:
            self.run(mini_batch, 1)
        return recorder.spans()

    def details(self) -> dict[str, Any]:
        return {
            **super().details(),
            "chunks": self.chunks,
            "checkpoint": self.checkpoint,
            "blocks_per_device": self.balance,
            "workers": "kept",
        }

    def close(self) -> None:
        self.workers.close()


def choose_balance(
    rule: str, network: nn.Sequential, sample: Tensor, devices: list[torch.device], chunks: int
) -> list[int]:
    """Blocks of each device.

    Args:
        rule: "time", "size" or "blocks", else the numbers themselves, as "5+9".
        network: the whole network, on CPU.
        sample: one micro-batch of inputs, (N, C, H, W), (N, C, D, H, W) of volumes, or (N, T).
        devices: where the partitions go.
        chunks: micro-batches of a mini-batch.

    Raises:
        Unsupported: there are fewer blocks than devices, the numbers do not add up, or "size" is
            used without a GPU or with a network that refuses a single sample.
    """
    blocks, parts = len(network), len(devices)
    if blocks < parts:
        raise Unsupported(
            f"the network has {counted(blocks, 'block')}, too few for {parts} devices",
            code="too_few_blocks",
        )
    if rule == "time":
        return list(balance_by_time(parts, network, sample, device=devices[0]))
    if rule == "size":
        if devices[0].type != "cuda":
            raise Unsupported(
                "balance 'size' reads CUDA's memory counters; use time or blocks",
                code="device_unsupported",
            )
        return _by_size(network, sample, devices, chunks)
    if rule == "blocks":
        return [blocks // parts + (part < blocks % parts) for part in range(parts)]
    balance = [int(part) for part in rule.split("+")]
    if sum(balance) != blocks or len(balance) != parts:
        raise Unsupported(
            f"balance {rule} deals {counted(sum(balance), 'block')} to "
            f"{counted(len(balance), 'device')}, "
            f"the network has {blocks} for {parts}",
            code="wrong_balance",
        )
    return balance


def _by_size(
    network: nn.Sequential, sample: Tensor, devices: list[torch.device], chunks: int
) -> list[int]:
    """Balance torchgpipe's count of CUDA memory, of one sample and scaled to the mini-batch."""
    # A view is enough: torchgpipe reads the number of samples, and the first one.
    mini_batch = sample[:1].expand(chunks * len(sample), *sample.shape[1:])
    try:
        counts = balance_by_size(
            len(devices), network, mini_batch, chunks=chunks, device=devices[0]
        )
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise Unsupported(
            "balance 'size' runs the network on a single sample, and batch norm refuses one value "
            "a channel; use time, profile or blocks",
            code="cannot_be_split",
        ) from None
    return list(counts)


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
    with ExitStack() as hooks:
        for index, partition in enumerate(partitions):
            enter, leave = partial(recorder.enter, index), partial(recorder.leave, index)
            hooks.enter_context(partition.register_forward_pre_hook(enter))
            hooks.enter_context(partition.register_forward_hook(leave))
            operation = partial(recorder.operation, index)
            for module in partition.modules():
                if not list(module.children()):
                    hooks.enter_context(module.register_forward_hook(operation))
        yield recorder


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


def count_once(network: nn.Sequential) -> None:
    """Have every block keep its buffers while torchgpipe recomputes."""
    for block in dict.fromkeys(network):
        change_forward(block, CountsOnce)


class CountsOnce(ChangedForward):
    """Computes what a block computes; a recomputed pass changes copies of its buffers."""

    def forward(self, inputs: Tensor) -> Tensor:
        with with_copied_buffers(self) if is_recomputing() else nullcontext():
            return self.compute(inputs)
