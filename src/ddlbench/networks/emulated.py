"""Emulated accelerators and their networks: blocks take a known time instead of computing.

A site with the key ``accelerator`` has devices that this machine lacks. Everything runs as ever -
the strategy's own executor, its schedule, gloo or Horovod, the links - but a block sleeps for the
time that the device's table names, and hands on tensors of the right size::

    forward     x --[ sleep forward_s(N) ]--> y             y: (N, k), uninitialised
    backward    dx <-[ sleep input share ]<-- dy
                dw <-[ sleep weight share ]<-'              one gradient a parameter, unwritten

Sleeping leaves the cores to communication, as an accelerator does, and takes the same time whatever
else runs. A device works off its queue without gaps: after a sleep that was too long, a sleep that
follows at once is shorter by as much. A process that drives several devices starts a block and goes
on. Loading, the optimiser, copies and messages are real.

The idea is that of Phantora (Qin et al., arXiv 2505.01616): emulate the devices, and run the
rest. What such a network learns means nothing.

A process with one device waits for every work, as gloo and Horovod read its tensors at once::

    process   q.........q.........          q: the process starts a work; dots: it sleeps
    device    |-- F0 --||-- F1 --|

A process with several devices queues, as CUDA does, and sleeps only where it must know the result::

    process   qqqqqqqq....................  until all are idle: :meth:`QueuedDevices.wait`
    device 0  |-- F0 --||-- F1 --|          a work begins when it is queued, its device is idle,
    device 1            |-- F0 --||- F1 -|  and what it reads is there

A tensor that a queued work makes carries the number of the work in its first value, as a NaN of
IEEE 754 whose low bits are free. Clones, views and copies keep it, and no real number looks like
it; a tensor without it was made by the host, so it is there.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ddlbench.common.errors import ConfigError
from ddlbench.common.fits import Timing
from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.experiment.site import Accelerator
from ddlbench.planning.device_table import table_for
from ddlbench.planning.workload import FLOAT32_BYTES, Block

# A device has no gap between two kernels that were queued in time. A host that takes longer than
# this to start the next work was busy with something else.
_QUEUED_S = 0.002

_QUIET_NAN = 0x7FC00000  # float32: sign 0, exponent all ones, quiet bit; 22 bits are left
_MOST_WORKS = 0x3FFFFF

_BUFFER = "state"


class _Waited(threading.local):
    """When the device of this thread finished its last work, and how late the host noticed."""

    noticed_s = 0.0
    late_s = 0.0


_waited = _Waited()


def occupy(seconds: float) -> None:
    """Return when the device has worked for ``seconds``; the cores are free meanwhile."""
    if seconds <= 0.0:
        return
    now = time.perf_counter()
    end = now + seconds
    if now - _waited.noticed_s < _QUEUED_S:
        end -= _waited.late_s  # the device began while the host still slept
    if end > now:
        time.sleep(end - now)
    _waited.noticed_s = time.perf_counter()
    _waited.late_s = _waited.noticed_s - end


class WaitedDevice:
    """A device whose process waits for each work."""

    queues = False

    def work(
        self, seconds: float, reads: Tensor | None = None, makes: Tensor | None = None
    ) -> None:
        occupy(seconds)


class QueuedDevice:
    """One of several devices of a process; works take place one after the other.

    Args:
        devices: all of the process.
    """

    queues = True

    def __init__(self, devices: QueuedDevices) -> None:
        self._devices = devices
        self.idle_s = 0.0

    def work(
        self, seconds: float, reads: Tensor | None = None, makes: Tensor | None = None
    ) -> None:
        """Queue a work.

        Args:
            seconds: that it takes.
            reads: a tensor that must be there when it begins.
            makes: a tensor that is there when it ends. Its first value becomes the work's number.
        """
        self.idle_s = self.begin_s(*(() if reads is None else (reads,))) + seconds
        if makes is not None:
            self._devices.made(makes, self.idle_s)

    def begin_s(self, *reads: Tensor) -> float:
        """When a work that is queued now would begin, by the clock of the process."""
        return max(self._devices.now(), self.idle_s, *map(self._devices.ready_s, reads))


Device = WaitedDevice | QueuedDevice


class QueuedDevices:
    """The emulated devices of a process that drives several of them.

    Args:
        count: of devices.
        now: clock of the process, seconds.
        sleep: returns so many seconds later by that clock.
    """

    def __init__(
        self,
        count: int,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.now, self._sleep = now, sleep
        self.each = tuple(QueuedDevice(self) for _ in range(count))
        self._ends_s: dict[int, float] = {}  # by the number of the work
        self._last = 0

    def wait(self) -> None:
        """Return when all devices are idle."""
        left_s = max(device.idle_s for device in self.each) - self.now()
        if left_s > 0.0:
            self._sleep(left_s)
        self._ends_s.clear()  # all that was made is there

    def made(self, tensor: Tensor, end_s: float) -> None:
        """Write into a tensor by which work it is made."""
        if not tensor.numel():
            return
        self._last = self._last % _MOST_WORKS + 1
        self._ends_s[self._last] = end_s
        _first_bits(tensor).fill_(_QUIET_NAN + self._last)

    def ready_s(self, tensor: Tensor) -> float:
        """When a tensor is there; 0 if the host made it."""
        if not tensor.numel():  # it holds no number, but whatever makes it is queued by now
            return max(device.idle_s for device in self.each)
        if tensor.dtype != torch.float32:
            return 0.0
        return self._ends_s.get(int(_first_bits(tensor).item()) - _QUIET_NAN, 0.0)


def _first_bits(tensor: Tensor) -> Tensor:
    return tensor.detach()[(0,) * tensor.dim()].view(torch.int32)


_WAITED = WaitedDevice()


def emulated_network(accelerator: Accelerator, network: str, spec: DatasetSpec) -> nn.Sequential:
    """The network of a device's table: (N, ...) -> (N, ..., num_classes) of zeros.

    Raises:
        ConfigError: the device has no table of this network, or a wrong one.
    """
    table = table_for(accelerator, spec.name, network)
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    for whole, tensors in zip(table.blocks, table.parameters, strict=True):
        _check_names(whole.name, tensors, accelerator.table_file(spec.name, network))
        block = _shrunk(whole, accelerator.shrink)
        last = whole is table.blocks[-1]
        outputs: tuple[int, ...] = (round(block.output_bytes / FLOAT32_BYTES),)
        if last:
            outputs = (*spec.target_shape, spec.num_classes)
        modules[block.name] = EmulatedBlock(
            block, _values(tensors, accelerator.shrink), outputs, accelerator.slow_down, finite=last
        )
    return nn.Sequential(modules)


def _check_names(block: str, tensors: Iterable[str], path: Path) -> None:
    """Raises ConfigError if a module of torch has something else of that name."""
    taken = [name for name in tensors if name == _BUFFER or hasattr(nn.Module(), name)]
    taken += [block] if hasattr(nn.Sequential(), block) else []
    if taken:
        raise ConfigError(f"{path}: block {block}: torch has a {taken[0]} of its own; rename it")


def queued_devices(partitions: Sequence[nn.Module]) -> QueuedDevices | None:
    """Put each partition of this process on an emulated device of its own.

    Returns:
        The devices; None if the partitions compute, or if there is a single one. A process waits
        for each work of a block that is on no device.
    """
    blocks = [
        [block for block in partition.modules() if isinstance(block, EmulatedBlock)]
        for partition in partitions
    ]
    if len(partitions) < 2 or not any(blocks):
        return None
    devices = QueuedDevices(len(partitions))
    for device, placed in zip(devices.each, blocks, strict=True):
        for block in placed:
            block.device = device
    return devices


def _shrunk(block: Block, shrink: float) -> Block:
    """The block with 1/``shrink`` of the bytes; no tensor vanishes."""
    return replace(
        block,
        buffer_bytes=round(block.buffer_bytes / shrink),
        output_bytes=max(FLOAT32_BYTES, block.output_bytes / shrink),
        saved_bytes=block.saved_bytes / shrink,
    )


def _values(tensors: Mapping[str, int], shrink: float) -> dict[str, int]:
    """Values of each parameter tensor, by name, with 1/``shrink`` of the bytes."""
    return {name: max(1, round(size / shrink / FLOAT32_BYTES)) for name, size in tensors.items()}


class EmulatedBlock(nn.Module):
    """One block of the profiled network: (N, ...) -> (N, *outputs).

    Attributes:
        device: that it is on.

    Args:
        block: its times and bytes.
        parameters: values of each parameter tensor, by name.
        outputs: shape of one sample's output.
        slow_down: factor on all times.
        finite: outputs are zeros; else they are what lies in memory, which takes no time to write.
    """

    device: Device = _WAITED

    def __init__(
        self,
        block: Block,
        parameters: dict[str, int],
        outputs: tuple[int, ...],
        slow_down: float,
        *,
        finite: bool,
    ) -> None:
        super().__init__()
        self._block, self._outputs, self._slow_down = block, outputs, slow_down
        self._finite = finite
        for name, values in parameters.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(values)))
        if block.buffer_bytes >= FLOAT32_BYTES:
            self.register_buffer(_BUFFER, torch.zeros(block.buffer_bytes // FLOAT32_BYTES))

    def forward(self, inputs: Tensor) -> Tensor:
        batch_size = len(inputs)
        backward_s = self._seconds(self._block.backward, batch_size)
        weights = list(self.parameters())
        weight_s = 0.0
        # From a queue, a gradient goes to another device when its whole pass is done, as on a GPU.
        if not self.device.queues:
            weight_s = backward_s * self._weight_share(inputs.requires_grad, bool(weights))
        ready = _Weights.apply(self.device, weight_s, *weights) if weights else None
        work = _Work(
            self.device,
            (batch_size, *self._outputs),
            round(batch_size * self._block.saved_bytes / FLOAT32_BYTES),
            self._seconds(self._block.forward, batch_size),
            backward_s - weight_s,
            self._finite,
        )
        outputs: Tensor = _Pass.apply(inputs, ready, work)
        return outputs

    def _seconds(self, timing: Timing, batch_size: int) -> float:
        return self._slow_down * max(0.0, timing.at(batch_size))

    def _weight_share(self, input_gradient: bool, has_weights: bool) -> float:
        """Share of the backward pass that computes the gradient of the weights."""
        if not (input_gradient and has_weights):
            return float(has_weights)
        of_input, of_weights = self._block.input_share, self._block.weight_share
        return of_weights / (of_input + of_weights)


class _Work(NamedTuple):
    """One pass: its device, size of its output, saved values, seconds without ``_Weights``."""

    device: Device
    outputs: tuple[int, ...]
    saved: int
    forward_s: float
    backward_s: float
    finite: bool


class _Weights(torch.autograd.Function):
    """Stands for a block's weights in the graph; backward takes the time of their gradients.

    It is a node of its own, so that a schedule may compute these gradients later than the input's.
    """

    @staticmethod
    def forward(ctx: Any, device: Device, backward_s: float, *weights: Tensor) -> Tensor:
        ctx.device, ctx.backward_s = device, backward_s
        ctx.shapes = [weight.shape for weight in weights]
        ctx.weights = weights if device.queues else ()
        return torch.zeros(1)

    @staticmethod
    def backward(ctx: Any, _gradient: Tensor) -> tuple[Any, ...]:
        ctx.device.work(ctx.backward_s)
        # A device adds the gradients of a step's micro-batches. The host of several devices would
        # take longer to do so, and nobody reads the sum: it keeps the first.
        summed = [weight.grad is not None for weight in ctx.weights] or [False] * len(ctx.shapes)
        gradients = (
            None if kept else torch.empty(shape)
            for kept, shape in zip(summed, ctx.shapes, strict=True)
        )
        return (None, None, *gradients)


class _Pass(torch.autograd.Function):
    """Forward and backward pass of a block; the backward pass of its weights is in _Weights."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, ready: Tensor | None, work: _Work) -> Tensor:
        ctx.shape, ctx.has_weights = inputs.shape, ready is not None
        ctx.device, ctx.backward_s = work.device, work.backward_s
        floats = inputs if inputs.is_floating_point() else inputs.new_empty(0, dtype=torch.float32)
        # What a real block keeps; it is never written. Saved as autograd saves, a profile sees it.
        ctx.save_for_backward(floats.new_empty(work.saved))
        new = floats.new_zeros if work.finite else floats.new_empty
        outputs = new(work.outputs)
        # The host reads finite outputs, so they hold no number of a work.
        work.device.work(work.forward_s, inputs, None if work.finite else outputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        _ = ctx.saved_tensors  # where activations are recomputed, that is done now
        of_inputs = gradient.new_empty(ctx.shape) if ctx.needs_input_grad[0] else None
        ready = gradient.new_zeros(1) if ctx.has_weights else None
        # A schedule that splits a backward pass comes here again for the weights: the gradient of
        # the input is there already, and what it took is not taken twice.
        ctx.device.work(ctx.backward_s, gradient, of_inputs)
        ctx.backward_s = 0.0
        return of_inputs, ready, None
