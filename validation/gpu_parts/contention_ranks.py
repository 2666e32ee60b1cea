"""Replicas that share a GPU and do not talk: ``python -m gpu_parts.contention_ranks``."""

from __future__ import annotations

from typing import Any

from ddlbench.datasets.loading import open_held
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DataRequest
from ddlbench.interconnect.collectives import settle
from ddlbench.profiling.steps import StepRunner, run_rounds
from ddlbench.runtime.rank_job import RankContext, rank_job_main
from ddlbench.runtime.rendezvous import join_store, leave
from ddlbench.strategies.training import apply_torch_settings

__all__ = ["work"]


def work(here: RankContext) -> dict[str, Any]:
    """Mean seconds of a step, by how many replicas ran, one entry per round.

    Settings: ``cell`` (sequential), ``data`` (its request), ``budget_s``.
    """
    device, _ = settle(here)
    rank, replicas = here.process.rank, here.world_size
    cell = Cell.from_dict(here.settings["cell"])
    apply_torch_settings(cell)
    store = join_store(here.host, here.port, rank, replicas)
    request = DataRequest(**here.settings["data"])
    dataset = open_held(request, here.scratch, "train")
    runner = StepRunner(cell, dataset, device)
    try:
        rounds = run_rounds(runner, store, rank, replicas, here.settings["budget_s"])
    finally:
        runner.close()
    leave(store, rank, replicas)
    return {"seconds": rounds}


if __name__ == "__main__":
    rank_job_main(work)
