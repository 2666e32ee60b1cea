"""Batch norm's running statistics where a forward pass runs twice.

torchgpipe computes the activations of a micro-batch again before its backward pass. Batch norm
would then count the micro-batch twice::

    forward      statistics of micro-batch 0, 1, 2, 3
    recomputed   0, 1, 2                                 without effect on the statistics
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchgpipe import is_recomputing


def count_once(network: nn.Module) -> None:
    """Have batch norms keep their running statistics while torchgpipe recomputes."""
    for module in network.modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            module.register_forward_pre_hook(_pause)
            module.register_forward_hook(_resume)


def _pause(module: _BatchNorm, _inputs: Any) -> None:
    # Without tracking, training normalises by the statistics of the micro-batch, as before.
    module.track_running_stats = not is_recomputing()


def _resume(module: _BatchNorm, _inputs: Any, _outputs: Any) -> None:
    module.track_running_stats = True
