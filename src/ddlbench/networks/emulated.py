"""Networks of an emulated accelerator: blocks take a profiled time instead of computing.

A site with the key ``accelerator`` has devices that this machine lacks. Everything runs as ever -
the strategy's own executor, its schedule, gloo or Horovod, the links - but a block sleeps for the
time that its profile names, and hands on tensors of the right size::

    forward     x --[ sleep forward_s(N) ]--> y             y: (N, k), uninitialised
    backward    dx <-[ sleep input share ]<-- dy
                dw <-[ sleep weight share ]<-'              one gradient a parameter, unwritten

Sleeping leaves the cores to communication, as an accelerator does, and takes the same time whatever
else runs. A device works off its queue without gaps: what one sleep was too long, the next one is
shorter, if it follows at once. Loading, the optimiser, copies and messages are real.

The idea is that of Phantora (Qin et al., arXiv 2505.01616): emulate the devices, and run the
rest. What such a network learns means nothing.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.fits import Timing
from ddlbench.experiment.profile import Profile, ProfileKey
from ddlbench.experiment.site import Accelerator
from ddlbench.planning.workload import Block, Workload, profile_at

_FLOAT32_BYTES = 4
# A device has no gap between two kernels that were queued in time. A host that takes longer than
# this to start the next block was busy with something else.
_QUEUED_S = 0.002


def emulated_network(
    accelerator: Accelerator, network: str, spec: DatasetSpec, threads: int = 1
) -> nn.Sequential:
    """The profiled network on an emulated device: (N, ...) -> (N, ..., num_classes) of zeros.

    Raises:
        ConfigError: the accelerator has no profile of this network, or one without blocks.
    """
    path = accelerator.profile_file(ProfileKey(spec.name, network, threads_per_device=threads))
    profile = profile_at(path)
    workload = Workload(profile.to_dict(), str(path))
    if not profile.blocks:
        raise ConfigError(f"{path}: blocks were not timed, so they cannot be emulated")
    sizes = _parameter_sizes(profile, accelerator.shrink)
    blocks = list(enumerate(_shrunk(block, accelerator.shrink) for block in workload.blocks))
    modules: OrderedDict[str, nn.Module] = OrderedDict()
    for index, block in blocks:
        last = index == len(blocks) - 1
        outputs: tuple[int, ...] = (round(block.output_bytes / _FLOAT32_BYTES),)
        if last:
            outputs = (*spec.target_shape, spec.num_classes)
        modules[block.name] = EmulatedBlock(
            block, sizes.get(index, {}), outputs, accelerator.slow_down, finite=last
        )
    return nn.Sequential(modules)


def _shrunk(block: Block, shrink: float) -> Block:
    """The block with 1/``shrink`` of the bytes; no tensor vanishes."""
    return replace(
        block,
        buffer_bytes=round(block.buffer_bytes / shrink),
        output_bytes=max(_FLOAT32_BYTES, block.output_bytes / shrink),
        saved_bytes=block.saved_bytes / shrink,
    )


def _parameter_sizes(profile: Profile, shrink: float) -> dict[int, dict[str, int]]:
    """Values of each parameter tensor, by its name within its block, for each block."""
    sizes: dict[int, dict[str, int]] = {}
    for tensor in profile.tensors:
        name = tensor.name.partition(".")[2].replace(".", "_") or "weight"
        values = round(tensor.bytes / shrink / _FLOAT32_BYTES)
        sizes.setdefault(tensor.block, {})[name] = max(1, values)
    return sizes


class EmulatedBlock(nn.Module):
    """One block of the profiled network: (N, ...) -> (N, *outputs).

    Args:
        block: its times and bytes.
        parameters: values of each parameter tensor, by name.
        outputs: shape of one sample's output.
        slow_down: factor on all times.
        finite: outputs are zeros; else they are what lies in memory, which takes no time to write.
    """

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
        if block.buffer_bytes >= _FLOAT32_BYTES:
            self.register_buffer("state", torch.zeros(block.buffer_bytes // _FLOAT32_BYTES))

    def forward(self, inputs: Tensor) -> Tensor:
        batch_size = len(inputs)
        backward_s = self._seconds(self._block.backward, batch_size)
        weights = list(self.parameters())
        weight_s = backward_s * self._weight_share(inputs.requires_grad, bool(weights))
        ready = _Weights.apply(weight_s, *weights) if weights else None
        work = _Work(
            (batch_size, *self._outputs),
            round(batch_size * self._block.saved_bytes / _FLOAT32_BYTES),
            self._seconds(self._block.forward, batch_size),
            backward_s - weight_s,
        )
        outputs: Tensor = _Pass.apply(inputs, ready, work)
        return outputs.zero_() if self._finite else outputs

    def _seconds(self, timing: Timing, batch_size: int) -> float:
        return self._slow_down * max(0.0, timing.at(batch_size))

    def _weight_share(self, input_gradient: bool, has_weights: bool) -> float:
        """Share of the backward pass that computes the gradient of the weights."""
        if not (input_gradient and has_weights):
            return float(has_weights)
        of_input, of_weights = self._block.input_share, self._block.weight_share
        return of_weights / (of_input + of_weights)


class _Work(NamedTuple):
    """One pass: size of its output, saved values, seconds without the weights' gradients."""

    outputs: tuple[int, ...]
    saved: int
    forward_s: float
    backward_s: float


class _Weights(torch.autograd.Function):
    """Stands for a block's weights in the graph; backward takes the time of their gradients.

    It is a node of its own, so that a schedule may compute these gradients later than the input's.
    """

    @staticmethod
    def forward(ctx: Any, backward_s: float, *weights: Tensor) -> Tensor:
        ctx.backward_s, ctx.shapes = backward_s, [weight.shape for weight in weights]
        return torch.zeros(1)

    @staticmethod
    def backward(ctx: Any, _gradient: Tensor) -> tuple[Any, ...]:
        occupy(ctx.backward_s)
        return (None, *(torch.empty(shape) for shape in ctx.shapes))


class _Pass(torch.autograd.Function):
    """Forward and backward pass of a block; the backward pass of its weights is in _Weights."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, ready: Tensor | None, work: _Work) -> Tensor:
        occupy(work.forward_s)
        ctx.shape, ctx.has_weights, ctx.backward_s = (
            inputs.shape,
            ready is not None,
            work.backward_s,
        )
        floats = inputs if inputs.is_floating_point() else inputs.new_empty(0, dtype=torch.float32)
        # What a real block keeps; it is never written. Saved as autograd saves, a profile sees it.
        ctx.save_for_backward(floats.new_empty(work.saved))
        return floats.new_empty(work.outputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        # A schedule that splits a backward pass comes here again for the weights: the gradient of
        # the input is there already, and what it took is not taken twice.
        occupy(ctx.backward_s)
        ctx.backward_s = 0.0
        of_inputs = gradient.new_empty(ctx.shape) if ctx.needs_input_grad[0] else None
        ready = gradient.new_zeros(1) if ctx.has_weights else None
        return of_inputs, ready, None


class _Queue(threading.local):
    """When the device of this thread finished its last work, and how late the host noticed."""

    noticed_s = 0.0
    late_s = 0.0


_queue = _Queue()


def occupy(seconds: float) -> None:
    """Return when the device has worked for ``seconds``; the cores are free meanwhile."""
    if seconds <= 0.0:
        return
    now = time.perf_counter()
    end = now + seconds
    if now - _queue.noticed_s < _QUEUED_S:
        end -= _queue.late_s  # the device began while the host still slept
    if end > now:
        time.sleep(end - now)
    _queue.noticed_s = time.perf_counter()
    _queue.late_s = _queue.noticed_s - end
