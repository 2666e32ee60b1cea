"""The all-reduces of gradients in one data-parallel step, as a strategy sends them.

::

    backward   | layer n ........ layer 1 |
    messages          |-- m0 --| |-- m1 --| |-m2-|     m0 leaves when its last gradient is ready
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlbench.planning.gradient_buckets import buckets_once_full

if TYPE_CHECKING:
    from ddlbench.planning.workload import Tensor

__all__ = ["GradientMessage", "GradientTraffic", "filled_buckets"]


@dataclass(frozen=True)
class GradientMessage:
    """One all-reduce of a step.

    Args:
        bytes: that each rank contributes.
        ready_fraction: share of the backward pass after which its last gradient is ready.
    """

    bytes: int
    ready_fraction: float = 1.0


@dataclass(frozen=True)
class GradientTraffic:
    """All of a step.

    Args:
        messages: in the order in which they are sent.
        transport: whose all-reduce it is, as links.json names it.
        last_bytes: of the message that ends behind the backward pass, at worst.
    """

    messages: tuple[GradientMessage, ...]
    transport: str
    last_bytes: int

    @property
    def sizes(self) -> list[int]:
        """Bytes of each message."""
        return [message.bytes for message in self.messages]


def filled_buckets(
    tensors: Sequence[Tensor], first_bytes: int, cap_bytes: int
) -> list[GradientMessage]:
    """Buckets that leave when they are full, as DistributedDataParallel fills them.

    Args:
        tensors: gradients in the order in which they are ready.
        first_bytes: at which the first bucket is sent.
        cap_bytes: at which all others are.
    """
    buckets = buckets_once_full([tensor.bytes for tensor in tensors], cap_bytes, first_bytes)
    return [
        GradientMessage(
            sum(tensors[index].bytes for index in bucket), tensors[bucket[-1]].ready_fraction
        )
        for bucket in buckets
    ]
