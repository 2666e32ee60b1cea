"""Forward passes that torchgpipe runs twice: what they may change, and whether they are the same.

torchgpipe computes the activations of a micro-batch without a graph first, and again before its
backward pass. A layer that updates its buffers in each pass, as batch norm, would count the
micro-batch twice::

    forward      statistics of micro-batch 0, 1, 2, 3
    recomputed   0, 1, 2                                 on copies of the statistics
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchgpipe import is_recomputing
from torchgpipe.checkpoint import enable_recomputing

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.foreign import seeded
from ddlbench.networks.inputs import made_up_inputs
from ddlbench.networks.inspection import copy_of
from ddlbench.strategies.executor import Unsupported

_SAMPLES = 2


def count_once(network: nn.Module) -> None:
    """Have every layer with buffers keep them while torchgpipe recomputes."""
    for module in network.modules():
        if any(buffer is not None for buffer in module._buffers.values()):
            _KeptBuffers(module)


class _KeptBuffers:
    """Lends a module copies of its buffers for a recomputed pass."""

    def __init__(self, module: nn.Module) -> None:
        self._kept: dict[str, Tensor | None] = {}
        module.register_forward_pre_hook(self._lend)
        module.register_forward_hook(self._take_back)

    def _lend(self, module: nn.Module, _inputs: Any) -> None:
        if is_recomputing():
            self._kept = dict(module._buffers)
            for name, buffer in self._kept.items():
                module._buffers[name] = None if buffer is None else buffer.clone()

    def _take_back(self, module: nn.Module, _inputs: Any, _outputs: Any) -> None:
        module._buffers.update(self._kept)
        self._kept = {}


def check_recomputation(network: nn.Sequential, spec: DatasetSpec, floating: torch.dtype) -> None:
    """Check that a recomputed pass gives what the first one gave.

    Raises:
        Unsupported: it does not, as of a layer that counts its calls.
    """
    why = None
    with seeded(0):
        double = copy_of(network).train()
        count_once(double)
        inputs = made_up_inputs(spec, _SAMPLES, "cpu")
        if inputs.is_floating_point():
            inputs = inputs.to(floating)
        numbers = torch.get_rng_state()
        try:
            with torch.no_grad():
                first = double(inputs)
            torch.set_rng_state(numbers)
            with torch.enable_grad(), enable_recomputing():
                second = double(inputs)
        except RuntimeError as error:
            why = f"fails: {str(error).strip().splitlines()[0]}"
        else:
            # The same operations give the same numbers, but for the last bits.
            few = 16 * torch.finfo(first.dtype).eps
            if not torch.allclose(first, second, rtol=few, atol=few, equal_nan=True):
                why = "gives another result than the first one"
    if why is not None:
        raise Unsupported(
            f"a recomputed pass of the network {why}; write checkpoint: never",
            code="recomputation_differs",
        )
