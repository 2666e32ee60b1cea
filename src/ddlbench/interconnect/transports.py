"""One operation of one rank, with the transports that training uses.

gloo and NCCL are torch.distributed's, as DDP uses them. A message of Horovod is a group of four
tensors: like the gradients of a step it is negotiated, copied into the fusion buffer, reduced, and
copied out again. (A single tensor would skip the buffer.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist

__all__ = ["Buffers", "element_count", "horovod_operation", "torch_operation", "touched"]

_FUSED_TENSORS = 4
_ELEMENT_BYTES = 4


def element_count(operation: str, message_bytes: int, ranks: int) -> int:
    """fp32 elements of a message; what is scattered divides by the ranks (rounded up)."""
    parts = ranks if operation == "reduce_scatter" else 1
    return -(-message_bytes // _ELEMENT_BYTES // parts) * parts


def touched(count: int, device: torch.device) -> torch.Tensor:
    """Zeros of fp32, which stay zeros however often they are summed, in memory of their own.

    ``torch.zeros`` would get pages that the kernel only maps when they are first written.
    """
    return torch.empty(count, device=device).fill_(0.0)


class Buffers:
    """Memory of all messages of a group: operations take their share of it.

    Args:
        largest_bytes: of any message, and of anything gathered.
        device: where.
    """

    def __init__(self, largest_bytes: int, device: torch.device) -> None:
        count = largest_bytes // _ELEMENT_BYTES + dist.get_world_size()  # room to round up
        self.device = device
        self.message = touched(count, device)
        self.result = touched(count, device)


def torch_operation(operation: str, count: int, buffers: Buffers) -> Callable[[], None]:
    """A call that returns once this rank has finished ``operation`` over the default group."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    message = buffers.message[:count]

    def all_reduce() -> None:
        dist.all_reduce(message)

    def broadcast() -> None:
        dist.broadcast(message, src=0)

    def all_gather() -> None:
        dist.all_gather_into_tensor(buffers.result[: count * ranks], message)

    def reduce_scatter() -> None:
        dist.reduce_scatter_tensor(buffers.result[: count // ranks], message)

    def p2p() -> None:
        """There and back; rank 0 begins."""
        for sender in (0, 1):
            if rank == sender:
                dist.send(message, dst=1 - sender)
            else:
                dist.recv(message, src=sender)

    calls = {
        "all_reduce": all_reduce,
        "broadcast": broadcast,
        "all_gather": all_gather,
        "reduce_scatter": reduce_scatter,
        "p2p": p2p,
    }
    return _finished(calls[operation], buffers.device)


def horovod_operation(hvd: Any, count: int, buffers: Buffers) -> Callable[[], None]:
    """An all-reduce of ``count`` elements in four tensors, averaged as gradients are."""
    tensors = list(buffers.message[:count].chunk(_FUSED_TENSORS))
    name = f"sweep.{count}"

    def call() -> None:
        hvd.grouped_allreduce_(tensors, name=name, op=hvd.Average)

    return _finished(call, buffers.device)


def _finished(call: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """``call``, and on a GPU the wait for its end."""
    if device.type != "cuda":
        return call

    def called() -> None:
        call()
        torch.cuda.synchronize(device)

    return called
