"""Makes profile.json, in a job with all devices of one node, and pools several.

The parts of a profile are measured by one process a device::

    rank 0      | steps | replicas | alone | bytes | blocks | leaves |
    the others  | wait  | replicas |

On CPU a process that exceeds its memory limit is killed, and no error can be caught. So whether
steps of a batch size fit is estimated first, from the memory that smaller batches needed.

Profiles of one network that were measured in jobs of their own are pooled::

    run-1/profile.json  --.
    run-2/profile.json  --+-->  profile.json     medians; the widest of the intervals
    run-3/profile.json  --'

A machine has states: whole runs are faster or slower than others. So runs differ by more than the
passes within one, and their intervals alone are too narrow.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from torch.distributed import Store

from ddlbench.common.quantities import counted
from ddlbench.datasets.loader import ImageDataset
from ddlbench.datasets.loading import open_held
from ddlbench.experiment.dataset_spec import DATASETS, DataRequest
from ddlbench.experiment.profile import InvalidProfile, Profile, write_profile
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Status
from ddlbench.networks import build
from ddlbench.planning.planner import request_of
from ddlbench.planning.profiles import ProfileNeeds
from ddlbench.profiling.layers import measure_layers
from ddlbench.profiling.steps import (
    StepRunner,
    Steps,
    measure_alone,
    measure_steps,
    run_rounds,
    slowdowns,
)
from ddlbench.profiling.timers import SHARES, SHARES_ON_TOP
from ddlbench.runtime.environment import provenance_of_run, rank_provenance
from ddlbench.runtime.launch import own_devices
from ddlbench.runtime.meters import peak_rss_bytes, probe_s
from ddlbench.runtime.rank_job import RankContext, RankJobFailed, rank_job_main, run_rank_job
from ddlbench.runtime.rank_report import classify
from ddlbench.runtime.rendezvous import join_store, leave
from ddlbench.runtime.staging import stage_cell, unstage_cell
from ddlbench.strategies.training import apply_torch_settings

_METHOD = (
    "steps: the sequential executor on staged data, median over windows of consecutive steps; "
    "blocks: a training step cut between blocks; layers: each leaf operation alone on its recorded "
    "input; CPU layers by processor time, stretched to wall time by the ratio over all passes; "
    "alone: a rank's executor without its peers, median over windows of consecutive steps"
)


def make_profile(needs: ProfileNeeds, site: Site, path: Path) -> Profile:
    """Stages data, measures, checks and writes profile.json; its folder gets log.txt.

    Raises:
        RankJobFailed: a process crashed, hung, or ran out of memory outside a measurement.
        StagingError: the data could not be made.
    """
    stage_cell(needs.cell, site, path.parent)
    try:
        reports = run_rank_job(
            site,
            (1, site.devices_per_node),
            "ddlbench.profiling.profile",
            {
                "needs": needs.to_dict(),
                "data": asdict(request_of(needs.cell, site)),
                "patience_s": site.cell_timeout_s,
                "memory_bytes": _memory_of_device(site),
            },
            path.parent,
            threads=needs.cell.threads_per_device,
        )
    finally:
        if not site.keep_data:
            unstage_cell(needs.cell, site, path.parent)
    for report in reports:
        if report["status"] != Status.OK:
            log = path.parent / "log.txt"
            raise RankJobFailed(f"rank {report['rank']}: {report['reason']}; see {log}")
    profile = _profile(needs, site, reports)
    write_profile(path, profile)
    return profile


_MEASURED = ("steps", "layers", "blocks", "tensors", "alone", "fixed_memory_bytes")


def _profile(needs: ProfileNeeds, site: Site, reports: list[dict[str, Any]]) -> Profile:
    first, cell, key = reports[0], needs.cell, needs.key
    of_replicas = [report.get("replicas") for report in reports]
    values = {
        "site": site.name,
        "profile_id": key.id,
        "dataset": key.dataset,
        "network": key.network,
        "precision": key.precision,
        "threads_per_device": key.threads_per_device,
        "optimizer": key.optimizer,
        "device_kind": site.device,
        "batch_sizes": list(needs.layer_batches),
        **{name: first[name] for name in _MEASURED},
        "node_slowdown": slowdowns([seconds for seconds in of_replicas if seconds]),
        "device_memory_bytes": first["device_memory_bytes"] or _memory_of_device(site),
        **_shrink(site),
        "notes": [*first["notes"], *_comparison(first)],
        "provenance": {
            **provenance_of_run(cell.seed, first["provenance"]),
            "method": _METHOD,
            "settings_of": cell.id,
            "replica_batch_size": needs.replica_batch,
            "budget_s": needs.budget_s,
            "spent_s": first["spent_s"],
            "stretch": first["stretch"],
        },
    }
    return Profile.from_dict(values)


def _shrink(site: Site) -> dict[str, float]:
    accelerator = site.accelerator
    return {} if accelerator is None or accelerator.shrink == 1 else {"shrink": accelerator.shrink}


def _memory_of_device(site: Site) -> int | None:
    if site.device == "cuda" or site.memory_per_device_mb is None:
        return None
    return site.memory_per_device_mb * 1_000_000


def _comparison(report: dict[str, Any]) -> list[str]:
    """Compares the sum of the blocks with whole steps, where both were measured."""
    notes = []
    for step in report["steps"]:
        blocks_s = report["block_totals_s"].get(str(step["batch_size"]))
        whole_s = step["forward_s"] + step["backward_s"]
        if blocks_s and whole_s:
            notes.append(
                f"at batch size {step['batch_size']} the blocks take {blocks_s:.6g} s together, "
                f"{blocks_s / whole_s:.3f} of forward, loss and backward in whole steps"
            )
    return notes


def fits_in_memory(
    batch_size: int,
    limit_bytes: int | None,
    resident_bytes: int,
    kept_bytes: int,
    steps: Sequence[dict[str, Any]],
) -> bool:
    """Whether steps of a batch size should fit, given the entries of smaller ones, ascending.

    ``resident_bytes`` is the largest resident set of this process so far; ``kept_bytes`` are those
    of weights, gradients and the optimiser's states. An unknown limit never refuses.
    """
    if limit_bytes is None:
        return True
    if not steps:
        return resident_bytes + kept_bytes <= limit_bytes
    last = steps[-1]
    activations = max(last["peak_bytes"] - kept_bytes, 0)
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
    dataset = open_held(request, here.scratch, "train")
    limit_bytes = here.settings["memory_bytes"] if device.type == "cpu" else None
    measuring = _OneDevice(needs, dataset, device, limit_bytes)
    if rank == 0:
        measuring.steps()
    if store is not None:
        measuring.replicas(store, rank, replicas)
    if rank == 0:
        measuring.layers()
    leave(store, rank, replicas)
    return measuring.report


def profile_of_device(
    needs: ProfileNeeds, site: Site, dataset: ImageDataset, device: torch.device
) -> Profile:
    """A profile that this process measures alone: no replicas, and its own data.

    Args:
        needs: what to measure.
        site: whose device it is.
        dataset: where samples come from.
        device: of this process.
    """
    apply_torch_settings(needs.cell)
    torch.manual_seed(needs.cell.seed)
    measuring = _OneDevice(needs, dataset, device, None)
    measuring.steps()
    measuring.layers()
    return _profile(needs, site, [measuring.report])


class _OneDevice:
    """What one process measures of a profile, in parts, and its report so far.

    Args:
        needs: what to measure.
        dataset: where samples come from.
        device: of the process.
        limit_bytes: memory of a CPU process; None without a limit.
    """

    def __init__(
        self,
        needs: ProfileNeeds,
        dataset: ImageDataset,
        device: torch.device,
        limit_bytes: int | None,
    ) -> None:
        self._needs, self._dataset, self._device = needs, dataset, device
        self._limit_bytes = limit_bytes
        self._ready: list[tuple[str, float]] = []
        self._probes: list[float] = []
        self._largest_batch = math.inf
        self.spent_s: dict[str, float] = {}
        self.report: dict[str, Any] = {"notes": [], "spent_s": self.spent_s}

    def steps(self) -> None:
        """Measure whole steps."""
        self._probes.append(probe_s(self._device))
        with _seconds_noted("steps", self.spent_s):
            steps, self._largest_batch = self._steps_that_fit()
        self.report["steps"] = [step.entry for step in steps]
        self.report["fixed_memory_bytes"] = max((step.fixed_bytes for step in steps), default=0)
        self._ready = steps[-1].ready if steps else []

    def layers(self) -> None:
        """Measure devices without their peers, blocks, leaf operations and bytes."""
        needs, device, report = self._needs, self._device, self.report
        notes = report["notes"]
        with _seconds_noted("alone", self.spent_s):
            share_s = SHARES_ON_TOP["alone"] * needs.budget_s
            report["alone"] = measure_alone(needs.alone, self._dataset, device, share_s, notes)
        report |= measure_layers(needs, device, self._ready, self._largest_batch, notes)
        self.spent_s |= report.pop("layers_spent_s")
        report["device_memory_bytes"] = (
            torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
        )
        report["provenance"] = {**rank_provenance(), "probe_s": [*self._probes, probe_s(device)]}

    def replicas(self, store: Store, rank: int, replicas: int) -> None:
        """Measure steps beside others on the node, unless rank 0 cannot fit a replica in memory."""
        needs, dataset = self._needs, self._dataset
        with _seconds_noted("replicas", self.spent_s):
            if rank == 0:
                batch_size = int(min(needs.replica_batch, self._largest_batch, len(dataset)))
                store.set("replica batch", str(batch_size))
            batch_size = int(store.get("replica batch"))  # waits for rank 0
            if batch_size == 0:
                return
            cell = needs.cell.with_(batch_size=batch_size)
            runner = StepRunner(cell, dataset, self._device)
            try:
                share_s = SHARES["replicas"] * needs.budget_s
                self.report["replicas"] = run_rounds(runner, store, rank, replicas, share_s)
            finally:
                runner.close()

    def _steps_that_fit(self) -> tuple[list[Steps], float]:
        """Measures whole steps, smallest batch first, and returns the largest batch size that fits.

        That size is 0 if none fits, infinity if all do. Batch sizes ascend because memory that the
        allocator keeps from a smaller batch would be taken by a larger one, too.
        """
        needs, dataset, limit_bytes = self._needs, self._dataset, self._limit_bytes
        notes = self.report["notes"]
        measured: list[Steps] = []
        # In proportion, so that every batch size gets about as many steps.
        share_s = SHARES["steps"] * needs.budget_s / sum(needs.step_batches)
        kept = 0 if limit_bytes is None else _kept_bytes(needs)
        for batch_size in needs.step_batches:
            if batch_size > len(dataset):
                notes.append(
                    f"no steps at batch size {batch_size}: "
                    f"{counted(len(dataset), 'training image')}"
                )
                continue
            entries = [step.entry for step in measured]
            try:
                if not fits_in_memory(batch_size, limit_bytes, peak_rss_bytes(), kept, entries):
                    raise MemoryError
                cell = needs.cell.with_(batch_size=batch_size)
                measured.append(measure_steps(cell, dataset, self._device, share_s * batch_size))
            except (RuntimeError, MemoryError) as error:
                if classify(error)[0] != Status.OUT_OF_MEMORY:
                    raise
                notes.append(f"no whole steps at batch size {batch_size} or more: out of memory")
                return measured, measured[-1].entry["batch_size"] if measured else 0
        return measured, math.inf


def _kept_bytes(needs: ProfileNeeds) -> int:
    """Weights, gradients and the optimiser's states, which live at once."""
    network = build(needs.cell.network, DATASETS[needs.cell.dataset], needs.cell.seed)
    weights = sum(parameter.nbytes for parameter in network.parameters())
    return (2 + needs.cell.optimizer_states) * weights


@contextmanager
def _seconds_noted(part: str, spent_s: dict[str, float]) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    spent_s[part] = time.perf_counter() - begin


_Entry = TypeVar("_Entry")
_Interval = tuple[float, ...] | None


def pooled(profiles: Sequence[Profile]) -> Profile:
    """One profile from several of the same network on the same site.

    Times are medians over the runs; parts of a step are medians of its shares, so they still fill
    it. Entries that some run lacks are left out.

    Args:
        profiles: at least one.

    Raises:
        InvalidProfile: they are of different networks, or cut the network differently.
    """
    first = profiles[0]
    for other in profiles[1:]:
        if (other.profile_id, _shape(other)) != (first.profile_id, _shape(first)):
            raise InvalidProfile(
                f"profile {first.profile_id}: its runs are of different networks "
                f"({other.profile_id}); measure all of them again"
            )
    return replace(
        first,
        runs=sum(profile.runs for profile in profiles),
        steps=_joined([p.steps for p in profiles], "batch_size"),
        layers=_joined([p.layers for p in profiles], "name"),
        blocks=_joined([p.blocks for p in profiles], "name"),
        tensors=tuple(
            sorted(_joined([p.tensors for p in profiles], "name"), key=lambda t: t.ready_fraction)
        ),
        node_slowdown=_joined([p.node_slowdown for p in profiles], "replicas"),
        alone=_joined([p.alone for p in profiles], "work"),
        notes=tuple(dict.fromkeys(note for profile in profiles for note in profile.notes)),
        provenance={**first.provenance, "runs": [dict(p.provenance) for p in profiles]},
    )


def _shape(profile: Profile) -> tuple[object, ...]:
    names = ([entry.name for entry in entries] for entries in (profile.layers, profile.blocks))
    return (profile.shrink, *map(tuple, names))


def _joined(runs: Sequence[Sequence[_Entry]], key: str) -> tuple[_Entry, ...]:
    """Entries of equal key in all runs, joined; in the order of the first run."""
    first, *others = [{getattr(entry, key): entry for entry in run} for run in runs]
    shared = [name for name in first if all(name in other for other in others)]
    return tuple(_join([first[name], *(other[name] for other in others)]) for name in shared)


_MEDIANS = ("step_s", "time_s", "slowdown", "ready_fraction")
_INTERVALS = ("interval", "interval_s")
_TIMINGS = ("forward", "backward", "input_half", "weight_half")
_PARTS = ("load_s", "forward_s", "backward_s", "optimizer_s")


def _join(same: Sequence[Any]) -> Any:
    """One entry of several runs, by the names of its fields."""
    joined: dict[str, Any] = {}
    for name in (field.name for field in fields(same[0])):
        values = [getattr(entry, name) for entry in same]
        if name in _MEDIANS:
            joined[name] = median(values)
        elif name in _INTERVALS:
            joined[name] = _widest(values)
        elif name in _TIMINGS:
            joined[name] = _joined(values, "batch_size")
        elif name == "count":
            joined[name] = sum(values)
        elif name == "peak_bytes":
            joined[name] = max((value for value in values if value is not None), default=None)
        elif name in _PARTS:
            shares = (part_s / entry.step_s for part_s, entry in zip(values, same, strict=True))
            joined[name] = joined["step_s"] * median(shares)
    return replace(same[0], **joined)


def _widest(intervals: Iterable[_Interval]) -> _Interval:
    """From the lowest bound to the highest; None if no run has one."""
    known = [interval for interval in intervals if interval is not None]
    if not known:
        return None
    return min(low for low, _ in known), max(high for _, high in known)


if __name__ == "__main__":
    rank_job_main(work)
