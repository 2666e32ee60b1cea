"""Whether whole steps of a batch size have room in a CPU device's memory.

A process that exceeds its memory limit on CPU is killed, and the profile with it: no error could be
caught. So the answer is estimated before, from what smaller batches needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["fits_in_memory"]

# Weights, gradients and momentum live at once.
_COPIES = 3


def fits_in_memory(
    batch_size: int,
    limit_bytes: int | None,
    resident_bytes: int,
    parameter_bytes: int,
    steps: Sequence[dict[str, Any]],
) -> bool:
    """Whether it should fit.

    Args:
        batch_size: of the steps that are asked about.
        limit_bytes: memory of one device; None where it is not known.
        resident_bytes: the largest resident set of this process so far.
        parameter_bytes: of the network.
        steps: entries of smaller batch sizes, ascending.
    """
    if limit_bytes is None:
        return True
    if not steps:
        return resident_bytes + _COPIES * parameter_bytes <= limit_bytes
    last = steps[-1]
    activations = max(last["peak_bytes"] - _COPIES * parameter_bytes, 0)
    more = activations * (batch_size / last["batch_size"] - 1)
    return bool(resident_bytes + more <= limit_bytes)
