"""One rank by itself: without its peers, to time it, or in a dry run before it meets them.

Without peers a rank computes its part and sends nothing; its messages are listed. A profile runs a
rank so, to time what one device computes where layers are split::

    with peers   | compute |-- all_reduce --| compute |- all_gather -| compute |
    alone        | compute | compute | compute |      listed: all_reduce of 64 KiB, all_gather, ..

A process group of this module stands in for gloo or NCCL. Sums lack the other ranks' addends, and
what would arrive is zero or a copy of the rank's part. So the values of a step are wrong, while the
shapes, the arithmetic and the copies around messages are those of a real one.

A dry run trains a copy first, so that nothing happens for the first time later. Over NCCL a posted
receive is a kernel that spins on the GPU until its message arrives. An operation that waits for the
whole device then waits for the other rank, too. It hangs if that rank waits for this one::

    rank 0   | receive g0 posted: spins ................................. for ever
             | F0: cuDNN tries its plans, and waits for the device ...... for ever
    rank 1   |                                   waits for F0's output .. for ever

CUDA waits for the device when something happens for the first time: cuDNN searches for the fastest
plan (``cudnn_benchmark``), a kernel's code is loaded (lazily, by default), or the driver gives new
memory. :func:`dry_run` makes all of this happen before a receive is posted.
"""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddlbench.experiment.profile import SWAP, LoneMessage
from ddlbench.networks.inspection import copy_of

_NAME = "alone"


class MessageLog:
    """The messages of a rank: how often each operation, ranks and bytes."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._counts: Counter[tuple[str, tuple[int, ...], int]] = Counter()
        self._swap: dict[int, int] = {}  # bytes by rank; 0 of the rank itself

    def messages(self) -> tuple[LoneMessage, ...]:
        """In the order of their first occurrence."""
        return tuple(
            LoneMessage(cast("Any", operation), ranks, size, count)
            for (operation, ranks, size), count in self._counts.items()
        )

    def collective(self, operation: str, ranks: Sequence[int], size: int) -> None:
        """List a collective of ``ranks``."""
        self._counts[operation, tuple(sorted(ranks)), size] += 1

    def posted(self, rank: int, peer: int, size: int) -> None:
        """Begin or continue a swap: a message between ``rank`` and ``peer``, either way."""
        self._swap.setdefault(rank, 0)
        self._swap[peer] = max(size, self._swap.get(peer, 0))

    def waited(self) -> None:
        """List the swap that was posted, if there is one."""
        if self._swap:
            self.collective(SWAP, tuple(self._swap), max(self._swap.values()))
            self._swap = {}


class _Done(dist._Work):
    """What torch waits for, and what is there at once."""

    def __init__(self, log: MessageLog) -> None:
        super().__init__()
        self._log = log

    def wait(self, _timeout: Any = None) -> bool:
        self._log.waited()
        return True


class _WithoutPeers(dist.ProcessGroup):
    """A process group whose other ranks are not there; the names of methods are torch's."""

    def __init__(self, rank: int, ranks: Sequence[int], log: MessageLog) -> None:
        super().__init__(rank, len(ranks))  # type: ignore[call-arg]
        self._place, self._ranks, self._log = rank, tuple(ranks), log

    @property
    def _global_rank(self) -> int:
        return self._ranks[self._place]

    def allreduce(self, tensors: list[Tensor], _options: Any = None) -> Any:  # type: ignore[override]
        self._list("all_reduce", tensors[0].nbytes)
        return _Done(self._log)

    def allgather(  # type: ignore[override]
        self, gathered: list[list[Tensor]], parts: list[Tensor], _options: Any = None
    ) -> Any:
        self._list("all_gather", parts[0].nbytes)
        for tensor in gathered[0]:
            tensor.copy_(parts[0])
        return _Done(self._log)

    def broadcast(self, tensors: list[Tensor], _options: Any = None) -> Any:  # type: ignore[override]
        self._list("broadcast", tensors[0].nbytes)
        return _Done(self._log)

    def send(self, tensors: list[Tensor], peer: int, _tag: int = 0) -> Any:
        self._log.posted(self._global_rank, self._ranks[peer], tensors[0].nbytes)
        return _Done(self._log)

    def recv(self, tensors: list[Tensor], peer: int, _tag: int = 0) -> Any:
        self._log.posted(self._global_rank, self._ranks[peer], tensors[0].nbytes)
        tensors[0].zero_()  # memory of unknown content may hold numbers that are slow to compute
        return _Done(self._log)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return _NAME

    def _list(self, operation: str, size: int) -> None:
        self._log.collective(operation, self._ranks, size)


def backend_without_peers(log: MessageLog) -> str:
    """The name of the backend; process groups that are made next list their messages in ``log``."""
    # Registered again each time: torch makes the groups, and can be given nothing else.
    make = partial(_group, log)
    dist.Backend.register_backend(_NAME, make, extended_api=True, devices=["cpu", "cuda"])
    return _NAME


def _group(log: MessageLog, options: Any, _backend_options: Any) -> dist.ProcessGroup:
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return _WithoutPeers(options.group_rank, ranks, log)


def dry_run(
    module: nn.Module, devices: Sequence[torch.device], train: Callable[[nn.Module], object]
) -> None:
    """Train a copy of a module; the module and all random generators keep their exact state.

    Args:
        module: on one device, without gradients. It is in the host's memory meanwhile, so that a
            dry run needs no more device memory than training. No views of its weights may exist.
        devices: of the process; the module is on the first.
        train: trains the copy. Its backward passes must run in the threads of later ones: each
            thread has its own cuDNN plans, and autograd has a thread for each device.
    """
    gpus = [device for device in dict.fromkeys(devices) if device.type == "cuda"]
    double = copy_of(module)
    module.cpu()
    python = random.getstate()
    try:
        with torch.random.fork_rng(gpus, device_type="cuda"):
            train(double)
        for device in gpus:
            torch.cuda.synchronize(device)
    finally:
        random.setstate(python)
        del double
        gc.collect()  # what trained may refer to itself, and so to the copy
        module.to(devices[0])
    for device in gpus:
        torch.cuda.reset_peak_memory_stats(device)
