"""FSDP2 on the ranks of one GPU: ``python -m gpu_parts.fsdp_ranks``.

::

    alone     [ whole batch                ] -> loss      every rank computes it for itself
    sharded   [ rank 0's part | rank 1's   ] -> mean of both losses: the same
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import fully_shard

from ddlbench.interconnect.collectives import Group, joined, settle
from ddlbench.planning.plan import a_worker_each
from ddlbench.runtime.rank_job import RankContext, rank_job_main
from ddlbench.runtime.rendezvous import join_store, leave

__all__ = ["work"]

_WIDTH, _CLASSES, _BATCH = 64, 10, 32


def work(here: RankContext) -> dict[str, Any]:
    """Losses of a sharded network and of a whole one; ``steps`` is the only setting."""
    device, interface = settle(here)
    rank, ranks, steps = here.process.rank, here.world_size, here.settings["steps"]
    store = join_store(here.host, here.port, rank, ranks)
    members = a_worker_each(1, ranks, ranks)
    group = Group(members, members[rank], dist.PrefixStore("fsdp", store), device, interface)
    with joined(group):
        alone = _train(_network(device), device, steps, slice(None), float)
        network = _network(device)
        for layer in network:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(network)
        sharded_parameters: list[Any] = list(network.parameters())
        own_bytes = sum(each.to_local().nbytes for each in sharded_parameters)
        part = _BATCH // ranks
        rows = slice(rank * part, (rank + 1) * part)
        sharded = _train(network, device, steps, rows, _mean_of_ranks)
    leave(store, rank, ranks)
    whole_bytes = sum(p.nbytes for p in _network(device).parameters())
    return {
        "alone": alone,
        "sharded": sharded,
        "own_bytes": own_bytes,
        "whole_bytes": whole_bytes,
        "transport": group.transport,
    }


def _network(device: torch.device) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _CLASSES)]
    return nn.Sequential(*layers).to(device)


def _train(
    network: nn.Module,
    device: torch.device,
    steps: int,
    rows: slice,
    combined: Callable[[Tensor], float],
) -> list[float]:
    """The loss of every step over these rows of each mini-batch."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        made = torch.Generator().manual_seed(step)
        images = torch.randn(_BATCH, _WIDTH, generator=made)[rows].to(device)
        labels = torch.randint(_CLASSES, (_BATCH,), generator=made)[rows].to(device)
        loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(combined(loss.detach()))
    return losses


def _mean_of_ranks(loss: Tensor) -> float:
    dist.all_reduce(loss)
    return float(loss) / dist.get_world_size()


if __name__ == "__main__":
    rank_job_main(work)
