"""One process of a profile, started by ``ddlbench.runtime.rank_job``.

::

    rank 0      | steps | replicas | alone | bytes | blocks | leaves |
    the others  | wait  | replicas |

On CPU a process that exceeds its memory limit is killed, and no error can be caught. So whether
steps of a batch size fit is estimated first, from the memory that smaller batches needed.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Store

from ddlbench.datasets.loader import ImageDataset
from ddlbench.datasets.loading import open_split
from ddlbench.datasets.staging import hold
from ddlbench.experiment.dataset_spec import DATASETS, DataRequest
from ddlbench.experiment.paths import scratch_dir
from ddlbench.experiment.status import Status
from ddlbench.networks import build
from ddlbench.planning.profiles import ProfileNeeds
from ddlbench.profiling.alone import measure_alone
from ddlbench.profiling.layers import measure_layers
from ddlbench.profiling.steps import StepRunner, Steps, measure_steps, run_rounds
from ddlbench.profiling.timers import SHARES, SHARES_ON_TOP
from ddlbench.runtime.environment import rank_provenance
from ddlbench.runtime.failure import classify
from ddlbench.runtime.meters import peak_rss_bytes, probe_s
from ddlbench.runtime.placement import own_devices
from ddlbench.runtime.rank_job import RankContext, rank_job_main
from ddlbench.runtime.rendezvous import join_store, leave
from ddlbench.strategies.training import apply_torch_settings

# Weights, gradients and momentum live at once.
_COPIES = 3


def fits_in_memory(
    batch_size: int,
    limit_bytes: int | None,
    resident_bytes: int,
    parameter_bytes: int,
    steps: Sequence[dict[str, Any]],
) -> bool:
    """Whether steps of a batch size should fit, given the entries of smaller ones, ascending.

    ``resident_bytes`` is the largest resident set of this process so far. An unknown limit never
    refuses.
    """
    if limit_bytes is None:
        return True
    if not steps:
        return resident_bytes + _COPIES * parameter_bytes <= limit_bytes
    last = steps[-1]
    activations = max(last["peak_bytes"] - _COPIES * parameter_bytes, 0)
    more = activations * (batch_size / last["batch_size"] - 1)
    return bool(resident_bytes + more <= limit_bytes)


def work(here: RankContext) -> dict[str, Any]:
    """Runs this process's part of a profile."""
    needs = ProfileNeeds.from_dict(here.settings["needs"])
    rank, replicas = here.process.rank, here.world_size
    apply_torch_settings(needs.cell)
    torch.manual_seed(needs.cell.seed + rank)
    random.seed(needs.cell.seed + rank)
    (device,) = own_devices(here.device_kind, here.process)
    store = None
    if replicas > 1:
        store = join_store(here.host, here.port, rank, replicas)
        store.set_timeout(timedelta(seconds=here.settings["patience_s"]))
    request = DataRequest(**here.settings["data"])
    dataset = open_split(hold(request, scratch_dir(here.scratch)), request, "train")
    spent_s: dict[str, float] = {}
    report: dict[str, Any] = {"notes": [], "spent_s": spent_s}
    ready: list[tuple[str, float]] = []
    largest_batch = math.inf
    probes: list[float] = []
    if rank == 0:
        probes.append(probe_s(device))
        with _timed("steps", spent_s):
            limit = here.settings["memory_bytes"] if device.type == "cpu" else None
            steps, largest_batch = _steps(needs, dataset, device, limit, report["notes"])
        report["steps"] = [step.entry for step in steps]
        report["fixed_memory_bytes"] = max((step.fixed_bytes for step in steps), default=0)
        ready = steps[-1].ready if steps else []
    if store is not None:
        with _timed("replicas", spent_s):
            report["replicas"] = _replicas(
                needs, dataset, device, store=store, here=here, largest_batch=largest_batch
            )
    if rank == 0:
        with _timed("alone", spent_s):
            share_s = SHARES_ON_TOP["alone"] * needs.budget_s
            report["alone"] = measure_alone(needs.alone, dataset, device, share_s, report["notes"])
        report |= measure_layers(needs, device, ready, largest_batch, report["notes"])
        spent_s |= report.pop("layers_spent_s")
        report["device_memory_bytes"] = (
            torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
        )
        report["provenance"] = {**rank_provenance(), "probe_s": [*probes, probe_s(device)]}
    leave(store, rank, replicas)
    return report


def _steps(
    needs: ProfileNeeds,
    dataset: ImageDataset,
    device: torch.device,
    limit_bytes: int | None,
    notes: list[str],
) -> tuple[list[Steps], float]:
    """Measures whole steps, smallest batch first, and returns the largest batch size that fits.

    That size is 0 if none fits, infinity if all do. Batch sizes ascend because memory that the
    allocator keeps from a smaller batch would be taken by a larger one, too.
    """
    measured: list[Steps] = []
    # In proportion, so that every batch size gets about as many steps.
    share_s = SHARES["steps"] * needs.budget_s / sum(needs.step_batches)
    weights = 0 if limit_bytes is None else _parameter_bytes(needs)
    for batch_size in needs.step_batches:
        if batch_size > len(dataset):
            notes.append(f"no steps at batch size {batch_size}: {len(dataset)} training images")
            continue
        entries = [step.entry for step in measured]
        try:
            if not fits_in_memory(batch_size, limit_bytes, peak_rss_bytes(), weights, entries):
                raise MemoryError
            cell = needs.cell.with_(batch_size=batch_size)
            measured.append(measure_steps(cell, dataset, device, share_s * batch_size))
        except (RuntimeError, MemoryError) as error:
            if classify(error)[0] != Status.OUT_OF_MEMORY:
                raise
            notes.append(f"no whole steps at batch size {batch_size} or more: out of memory")
            return measured, measured[-1].entry["batch_size"] if measured else 0
    return measured, math.inf


def _parameter_bytes(needs: ProfileNeeds) -> int:
    network = build(needs.cell.network, DATASETS[needs.cell.dataset], needs.cell.seed)
    return sum(parameter.nbytes for parameter in network.parameters())


def _replicas(
    needs: ProfileNeeds,
    dataset: ImageDataset,
    device: torch.device,
    *,
    store: Store,
    here: RankContext,
    largest_batch: float,
) -> dict[str, list[float]] | None:
    """This replica's seconds; None if rank 0 cannot fit a replica in memory."""
    rank, replicas = here.process.rank, here.world_size
    if rank == 0:
        batch_size = int(min(needs.replica_batch, largest_batch, len(dataset)))
        store.set("replica batch", str(batch_size))
    batch_size = int(store.get("replica batch"))  # waits for rank 0
    if batch_size == 0:
        return None
    runner = StepRunner(needs.cell.with_(batch_size=batch_size), dataset, device)
    try:
        share_s = SHARES["replicas"] * needs.budget_s
        return run_rounds(runner, store, rank, replicas, share_s)
    finally:
        runner.close()


@contextmanager
def _timed(part: str, spent_s: dict[str, float]) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    spent_s[part] = time.perf_counter() - begin


if __name__ == "__main__":
    rank_job_main(work)
