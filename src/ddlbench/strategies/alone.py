"""One rank without its peers: it computes its part and sends nothing; its messages are listed.

A profile runs a rank so, to time what one device computes where layers are split::

    with peers   | compute |-- all_reduce --| compute |- all_gather -| compute |
    alone        | compute | compute | compute |      listed: all_reduce of 64 KiB, all_gather, ..

A process group of this module stands in for gloo or NCCL. Sums lack the other ranks' addends, and
what would arrive is zero or a copy of the own part. So the values of a step are wrong, while the
shapes, the arithmetic and the copies around messages are those of a real one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch import Tensor

SWAP = "swap"  # messages to other ranks and from them, all posted before one is waited for

_NAME = "alone"


@dataclass(frozen=True)
class Message:
    """One message.

    Args:
        operation: "all_reduce", "all_gather", "broadcast" or "swap".
        ranks: of the whole cell, ascending: the group; of a swap this rank and its partners.
        bytes: as links.json counts them: the buffer that is reduced, the part that a rank gives, of
            a swap the longest message to or from a partner.
    """

    operation: str
    ranks: tuple[int, ...]
    bytes: int


@dataclass
class MessageLog:
    """The messages of a rank, in their order."""

    _messages: list[Message] = field(default_factory=list)
    _swap: dict[int, int] = field(default_factory=dict)  # rank -> bytes; to itself 0

    def clear(self) -> None:
        self._messages, self._swap = [], {}

    def counts(self) -> Counter[Message]:
        """How often each message was sent, in the order of their first occurrence."""
        return Counter(self._messages)

    def collective(self, operation: str, ranks: Sequence[int], size: int) -> None:
        """List a collective of ``ranks``."""
        self._messages.append(Message(operation, tuple(sorted(ranks)), size))

    def posted(self, rank: int, peer: int, size: int) -> None:
        """Begin or continue a swap: a message between ``rank`` and ``peer``, either way."""
        self._swap.setdefault(rank, 0)
        self._swap[peer] = max(size, self._swap.get(peer, 0))

    def waited(self) -> None:
        """List the swap that was posted, if there is one."""
        if self._swap:
            largest = max(self._swap.values())
            self._messages.append(Message(SWAP, tuple(sorted(self._swap)), largest))
            self._swap = {}


class _Done(dist._Work):
    """What torch waits for, and what is there at once."""

    def __init__(self, log: MessageLog) -> None:
        super().__init__()
        self._log = log

    def wait(self, _timeout: Any = None) -> bool:
        self._log.waited()
        return True


class _Peerless(dist.ProcessGroup):
    """A process group whose other ranks are not there; the names of methods are torch's."""

    def __init__(self, rank: int, ranks: Sequence[int], log: MessageLog) -> None:
        super().__init__(rank, len(ranks))  # type: ignore[call-arg]
        self._place, self._ranks, self._log = rank, tuple(ranks), log

    @property
    def _own(self) -> int:
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
        self._log.posted(self._own, self._ranks[peer], tensors[0].nbytes)
        return _Done(self._log)

    def recv(self, tensors: list[Tensor], peer: int, _tag: int = 0) -> Any:
        self._log.posted(self._own, self._ranks[peer], tensors[0].nbytes)
        tensors[0].zero_()  # memory of unknown content may hold numbers that are slow to compute
        return _Done(self._log)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return _NAME

    def _list(self, operation: str, size: int) -> None:
        self._log.collective(operation, self._ranks, size)


_log = MessageLog()


def backend_without_peers(log: MessageLog) -> str:
    """The name of the backend; process groups that are made next list their messages in ``log``."""
    global _log  # noqa: PLW0603 - torch makes the groups
    _log = log
    if _NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(_NAME, _group, extended_api=True, devices=["cpu", "cuda"])
    return _NAME


def _group(options: Any, _backend_options: Any) -> dist.ProcessGroup:
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return _Peerless(options.group_rank, ranks, _log)
