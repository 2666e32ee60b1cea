"""Messages through DDP and FSDP, between ranks whose number is no power of two."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed as dist

from ddlbench.equivalence.rank_pool import run_ranks
from ddlbench.interconnect.training_sweep import sweep_reducer, sweep_sharded

RANKS, LARGEST_BYTES, BUDGET_S = 3, 2**13, 3.0
SIZES = [2**10, 2**11, 2**12, 2**13]


def sweep_here(_item: Any, rank: int, store: dist.Store) -> list[dict[str, Any]]:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    limits = torch.device("cpu"), LARGEST_BYTES, BUDGET_S
    sweeps = sweep_reducer(*limits) + sweep_sharded(*limits)
    dist.destroy_process_group()
    return sweeps


def test_every_size_is_in_every_sweep():
    ((sweeps, *_),) = run_ranks(sweep_here, ["three ranks"], RANKS)
    sizes = {
        (sweep["transport"], sweep["operation"]): [
            point["message_bytes"] for point in sweep["points"]
        ]
        for sweep in sweeps
    }
    whole = [-(-size // (4 * RANKS)) * 4 * RANKS for size in SIZES]  # elements that divide
    assert sizes == {
        ("ddp", "all_reduce"): SIZES,
        ("fsdp", "all_gather"): [size // RANKS for size in whole],
        ("fsdp", "reduce_scatter"): whole,
    }
    times = [time_s for sweep in sweeps for point in sweep["points"] for time_s in point["times_s"]]
    assert min(times) > 0
