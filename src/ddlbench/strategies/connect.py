"""The first messages between ranks, exchanged one by one before anything is measured or expected.

Over NCCL two ranks make their connection with their first message, and both wait for the device
while they do. In a pass that would be for ever: a receive that is posted ahead spins on the device
until its own message comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist

__all__ = ["Channel", "connect"]

Channel = tuple[str, int, int]  # kind of its messages, the rank that sends, the rank that receives


def connect(
    channels: Iterable[Channel],
    rank: int,
    groups: Mapping[str, dist.ProcessGroup],
    device: torch.device,
) -> None:
    """Send a greeting over every channel of this rank.

    Args:
        channels: of all ranks, in the same order on all, so that no ranks wait in a circle.
        rank: this process's.
        groups: the process group of each kind.
        device: where messages lie.
    """
    for kind, source, target in channels:
        greeting = torch.zeros(1, device=device)
        if rank == source:
            dist.send(greeting, target, group=groups[kind])
        elif rank == target:
            dist.recv(greeting, source, group=groups[kind])
