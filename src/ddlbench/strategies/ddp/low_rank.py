"""What PowerSGD sends of each bucket: two low factors of each matrix, and the rest whole.

::

    gradient (n, m)   M + what was not sent before  ~  P Q^T        P (n, r), Q (m, r)
    a bucket sends    | rest |  then |    P    |  then |   Q   |    three all-reduces
    kept              M - P Q^T for the next step

A tensor is a matrix of its first dimension and all others. It is sent whole if its factors would
have half its size or more, as vectors would.

Sources: T. Vogels et al., "PowerSGD", NeurIPS 2019, algorithms 1 and 2;
``torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py``, torch 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ddlbench.common.errors import ConfigError

if TYPE_CHECKING:
    from ddlbench.planning.workload import Tensor

MIN_COMPRESSION_RATE = 2  # torch's default
EXACT_STEPS = 2  # torch needs two: it makes its buckets anew after the first step


@dataclass(frozen=True)
class BucketBytes:
    """Bytes of the three all-reduces of a bucket."""

    whole: int
    left: int
    right: int

    @property
    def sizes(self) -> list[int]:
        """Of those that send anything, in order."""
        return [size for size in (self.whole, self.left, self.right) if size]


def bucket_bytes(tensors: Sequence[Tensor], rank: int) -> BucketBytes:
    """What a bucket of these tensors sends, with factors of ``rank`` columns at most.

    Raises:
        ConfigError: shapes are unknown.
    """
    whole = left = right = 0
    for tensor in tensors:
        if tensor.shape is None:
            raise ConfigError(
                "the profile has no shapes of tensors, which decide what powersgd sends; "
                "make it again"
            )
        rows = tensor.shape[0] if tensor.shape else 1
        columns = prod(tensor.shape[1:])
        width = min(rows, columns, rank)
        if (rows + columns) * width * MIN_COMPRESSION_RATE < rows * columns:
            item_bytes = tensor.bytes // (rows * columns)
            left += rows * width * item_bytes
            right += columns * width * item_bytes
        else:
            whole += tensor.bytes
    return BucketBytes(whole, left, right)
