"""Every server and every worker meet once in both directions, before anything is expected.

Over NCCL two ranks make their connection with their first message, and both wait for the device
while they do. In the first backward pass that would be for ever: a receive of new weights is posted
before the push that it answers, and spins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ddlbench.strategies.parameter_server.worker import PULL, PUSH, Groups

__all__ = ["greet"]


def greet(
    servers: Sequence[int],
    workers: Sequence[int],
    rank: int,
    groups: Groups,
    device: torch.device,
) -> None:
    """Take part in one's own greetings; they have one order for all, so no two ranks wait in turn.

    Args:
        servers: rank of each.
        workers: rank of each.
        rank: this process's.
        groups: for both directions.
        device: where its tensors lie.
    """
    for direction in (PUSH, PULL):
        for server in servers:
            for worker in workers:
                source, target = (worker, server) if direction == PUSH else (server, worker)
                greeting = torch.zeros(1, device=device)
                if rank == source:
                    dist.send(greeting, target, group=groups[direction])
                elif rank == target:
                    dist.recv(greeting, source, group=groups[direction])
