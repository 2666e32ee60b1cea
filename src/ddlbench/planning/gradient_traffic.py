"""The all-reduces of gradients in one data-parallel step, as a strategy sends them.

::

    backward   | layer n ........ layer 1 |
    messages          |-- m0 --| |-- m1 --| |-m2-|     m0 leaves when its last gradient is ready

Gradients are grouped into buckets; one all-reduce sums a bucket.

::

    gradients      | a | b |   c   | d | e | f |      in the order in which they are sent
    buckets        | a   b |   c   | d   e   f |      closed before a gradient would exceed the cap
    DDP's          | a |  b    c   | d   e   f |      closed once full; the first is smaller

Sources: Li et al., "PyTorch Distributed" (VLDB 2020), section 3.2, for DDP's buckets and 25 MiB;
Sergeev and Del Balso, "Horovod" (2018), section 4, for the fusion buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddlbench.planning.workload import Tensor

DDP_FIRST_BUCKET_BYTES = 2**20  # torch's first bucket, unless a size is given for all


def buckets(
    sizes_bytes: Sequence[int], cap_bytes: int, kinds: Sequence[object] | None = None
) -> list[range]:
    """Indices of the gradients of each bucket; a bucket never mixes ``kinds``, such as data types.

    A bucket has ``cap_bytes`` at most; a gradient that is larger has one of its own.
    """
    begins: list[int] = []
    filled = 0
    for index, size in enumerate(sizes_bytes):
        mixes = kinds is not None and index > 0 and kinds[index] != kinds[index - 1]
        if not begins or filled + size > cap_bytes or mixes:
            begins.append(index)
            filled = 0
        filled += size
    return _ranges(begins, len(sizes_bytes))


def buckets_once_full(
    sizes_bytes: Sequence[int], cap_bytes: int, first_cap_bytes: int
) -> list[range]:
    """Indices of the gradients of each of DDP's buckets, closed once it holds its bytes or more.

    ``sizes_bytes`` are in the order in which gradients are ready; the first bucket has a cap of
    its own.
    """
    begins: list[int] = []
    full = True
    filled = 0
    for index, size in enumerate(sizes_bytes):
        if full:
            begins.append(index)
            filled = 0
        filled += size
        full = filled >= (first_cap_bytes if len(begins) == 1 else cap_bytes)
    return _ranges(begins, len(sizes_bytes))


def whole_buckets(tensors: Sequence[Tensor], cap_bytes: int) -> list[list[int]]:
    """Bytes of the tensors of each bucket when all weights are summed at once, in their order.

    A bucket has ``cap_bytes`` at most. ``tensors`` are in the order in which their gradients are
    ready: the last weights come first.
    """
    sizes = [tensor.bytes for tensor in reversed(tensors)]
    return [[sizes[i] for i in bucket] for bucket in buckets(sizes, cap_bytes)]


def _ranges(begins: Sequence[int], count: int) -> list[range]:
    return [range(begin, end) for begin, end in zip(begins, [*begins[1:], count], strict=False)]


@dataclass(frozen=True)
class GradientMessage:
    """One all-reduce of a step.

    Args:
        bytes: contributed by each rank.
        ready_fraction: share of the backward pass after which its last gradient is ready.
    """

    bytes: int
    ready_fraction: float = 1.0


def filled_buckets(
    tensors: Sequence[Tensor], first_bytes: int, cap_bytes: int
) -> list[GradientMessage]:
    """Buckets that leave when they hold ``first_bytes`` or, after the first, ``cap_bytes``.

    ``tensors`` are in the order in which their gradients are ready.
    """
    buckets = buckets_once_full([tensor.bytes for tensor in tensors], cap_bytes, first_bytes)
    return [
        GradientMessage(
            sum(tensors[index].bytes for index in bucket), tensors[bucket[-1]].ready_fraction
        )
        for bucket in buckets
    ]
