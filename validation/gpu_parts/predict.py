"""Part 2: profiles of seven networks, and what ddlbench predicts of batch sizes not profiled.

::

    batch     8   16   32   48        64   128   160
    profile   x   x    x              x    x
    cell                    between              beyond  ->  predicted / measured - 1
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import RESULTS, profile_file, result_file
from ddlbench.experiment.profile import Profile, read_profile
from ddlbench.experiment.result import Result, read_result
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Status
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.profiles import ProfileNeeds
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.evaluate import predictions
from ddlbench.profiling.profile import make_profile
from gpu_parts.halves import halves
from gpu_parts.study import Study, Verdict, measured

__all__ = ["run"]

_GOAL = 0.025  # mean absolute error of the step; the project's goal for this predictor
_MEMORY_GOAL = 0.1
_LEAST_SLOWDOWN = 0.95  # of replicas beside others; below it the clock would be wrong
_SHARING = 4  # processes on one GPU
_WORKERS = {"alexnet": 8, "mobilenetv2": 6, "resnet18": 6}  # else the GPU waits for its data


@dataclass(frozen=True)
class _Size:
    """How much is measured of a network.

    Args:
        cell: whose settings all of them have.
        budget_s: of its profile.
        profiled, between, beyond: batch sizes.
    """

    cell: Cell
    budget_s: float
    profiled: tuple[int, ...]
    between: tuple[int, ...]
    beyond: tuple[int, ...]

    @property
    def needs(self) -> ProfileNeeds:
        """What is measured for its profile."""
        return ProfileNeeds(
            cell=self.cell,
            step_batches=self.profiled,
            layer_batches=self.profiled,
            replica_batch=self.profiled[0],
            budget_s=self.budget_s,
        )

    @property
    def cells(self) -> list[Cell]:
        """Those that are predicted."""
        batches = (*self.between, *self.beyond)
        return [self.cell.with_(batch_size=batch) for batch in batches]

    def kind(self, batch: int) -> str:
        """Where a batch size lies: between profiled ones, or beyond them."""
        return "between" if batch in self.between else "beyond"


def run(study: Study) -> None:
    """All checks of this part."""
    sizes = _sizes(study)
    first = sizes[0]
    cell_s = 15 if study.device == "cuda" else 10
    for size in sizes:
        name = size.cell.network
        study.check(f"profile {name}", partial(_profile, study, size), size.budget_s + cell_s)
        study.check(f"held-out {name}", partial(_held_out, study, size), len(size.cells) * cell_s)
    study.check("line a + c*b", partial(_line, study, sizes), needs_s=5)
    name = first.cell.network
    study.check("k(P) of silent replicas", partial(_silent, study), needs_s=2 * cell_s)
    path = _profile_path(study, first, study.site())
    study.check(
        f"split backward halves {name}", partial(halves, study, first.cell, path), needs_s=cell_s
    )


def _sizes(study: Study) -> list[_Size]:
    """Networks, and how often their cells see all images: each is measured for a few seconds."""
    batches: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    if study.device == "cuda":
        cell = Cell(
            "imagenet", "resnet50", "sequential", 64,
            warmup_steps=5, max_steps=40, data_scale=0.0025, data_format="raw",
        )  # fmt: skip
        epochs = {
            "resnet50": 2, "alexnet": 6, "vgg16": 1, "mobilenetv2": 3, "resnet18": 4, "vgg11": 1,
            "resnet152": 1,
        }  # fmt: skip
        batches, budget_s = ((8, 16, 32, 64, 128), (48,), (160,)), 12.0
    elif study.small:
        cell = Cell("cifar10", "mlp", "sequential", 4, data_scale=0.001)
        epochs = {"mlp": 10, "mobilenetv2": 1}
        batches, budget_s = ((2, 4, 8), (6,), (10,)), 3.0
    else:
        cell = Cell("cifar10", "resnet18", "sequential", 8, data_scale=0.0032)
        epochs = {"resnet18": 1, "vgg11": 1, "mobilenetv2": 1, "mlp": 20}
        batches, budget_s = ((4, 8, 16), (6, 12), (20,)), 15.0
    if study.small:
        epochs = dict(list(epochs.items())[:2])
        budget_s = min(budget_s, 8.0)
    on_gpu = int(study.device == "cuda")
    return [
        _Size(
            cell.with_(
                network=network, epochs=count, loader_workers=_WORKERS.get(network, 0) * on_gpu
            ),
            budget_s,
            *batches,
        )
        for network, count in epochs.items()
    ]


def _limit(study: Study) -> float | None:
    """Of an error; None on CPUs and in small runs, where a few steps beside others say little."""
    return _GOAL if study.device == "cuda" and not study.small else None


def _too_far(what: str, value: float, limit: float | None) -> str:
    """Why a share is too large; empty where it is not."""
    if not math.isfinite(value):
        return f"{what} is not known"
    if limit is None or value <= limit:
        return ""
    return f"{what} is {value:.2%}, the limit is {limit:.1%}"


def _root(study: Study) -> Path:
    """The folder that predictors look for measurements in."""
    return study.folder / "results"


def _profile_path(study: Study, size: _Size, site: Site) -> Path:
    return _root(study) / profile_file(site.name, size.needs.key.id).relative_to(RESULTS)


def _profile(study: Study, size: _Size) -> Verdict:
    """Make the profile; every part of it must be there."""
    site = study.site()
    path = _profile_path(study, size, site)
    profile = make_profile(size.needs, site, path)
    workload = Workload(profile.to_dict(), str(path))
    figures: dict[str, Any] = {}
    for step in profile.steps:
        batch = step.batch_size
        figures[f"step_{batch}_s"] = step.step_s
        figures[f"waits_for_data_{batch}_share"] = step.load_s / step.step_s
        figures[f"blocks_over_step_{batch}"] = _blocks_s(profile, batch) / (
            step.forward_s + step.backward_s
        )
    figures |= {
        "marks": all(_has_marks(step) for step in profile.steps),
        "peak_bytes": profile.steps[-1].peak_bytes if profile.steps else None,
        "fixed_memory_bytes": profile.fixed_memory_bytes,
        "device_memory_bytes": profile.device_memory_bytes,
        "backward_halves": "timed" if workload.halves_timed else "by rule, not timed",
    }
    lacks = _lacks(profile, size)
    return Verdict(
        not lacks, figures, "; ".join(lacks), rows=tuple({"note": note} for note in profile.notes)
    )


def _lacks(profile: Profile, size: _Size) -> list[str]:
    """What of a profile is not there."""
    lacks = []
    absent = set(size.profiled) - {step.batch_size for step in profile.steps}
    if absent:
        lacks.append(f"no whole steps at batch sizes {sorted(absent)}")
    if not all(_has_marks(step) for step in profile.steps):
        lacks.append("forward, backward or optimiser was not marked")
    for batch in size.profiled:
        if not _blocks_s(profile, batch):
            lacks.append(f"no blocks at batch size {batch}")
    if any(step.peak_bytes is None for step in profile.steps):
        lacks.append("no peak of memory")
    return lacks


def _has_marks(step: Any) -> bool:
    return min(step.forward_s, step.backward_s, step.optimizer_s) > 0


def _blocks_s(profile: Profile, batch: int) -> float:
    """Forward and backward of all blocks, of those that were timed."""
    entries = [entry for block in profile.blocks for entry in (*block.forward, *block.backward)]
    return sum(entry.time_s for entry in entries if entry.batch_size == batch)


def _measured(study: Study, cell: Cell, site: Site) -> Result:
    """A cell's result, where predictors find it; measured once."""
    path = _root(study) / result_file(site.name, cell.id).relative_to(RESULTS)
    if path.is_file():
        return read_result(path)
    return measured(cell, site, path.parent, study.work)


def _predicted(study: Study, cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """What the preferred predictor says of cells, beside their results; one mapping a cell."""
    site = study.site()
    rows = [MatrixRow(cell, None, None) for cell in cells]
    frame = predictions(rows, site, _root(study))
    chosen = strategy_of("sequential").preferred_predictor[site.device]
    frame = frame[frame["predictor"] == chosen]
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(key): value for key, value in row.items()} for row in plain.to_dict("records")]


def _held_out(study: Study, size: _Size) -> Verdict:
    """Measured cells at batch sizes that the profile has not, against their prediction."""
    site = study.site()
    profile = read_profile(_profile_path(study, size, site))
    results = {cell.batch_size: _measured(study, cell, site) for cell in size.cells}
    rows = [
        _row(size, row, results[row["batch_size"]], profile.fixed_memory_bytes)
        for row in _predicted(study, size.cells)
        if results[row["batch_size"]].status == Status.OK
    ]
    held_out = [abs(row["error"]) for row in rows]
    mean_error = statistics.fmean(held_out) if held_out else math.nan
    limit, memory = _limit(study), _farthest(rows, "memory_ratio")
    reasons = [f"batch {b}: {r.status} ({r.reason})" for b, r in results.items() if not r.timing]
    reasons += [_too_far("the mean error", mean_error, limit)]
    if memory is None or abs(memory - 1) > _MEMORY_GOAL:
        reasons.append(f"predicted over measured memory is not within {_MEMORY_GOAL:.0%} of 1")
    inside = [row["inside"] for row in rows if row["inside"] is not None]
    figures = {
        "limit": limit,
        "mean_absolute_error": mean_error,
        **{f"error_{row['batch']}": row["error"] for row in rows},
        "inside_interval": f"{sum(inside)} of {len(inside)} that have one",
        "worst_load_share": max((row["load_share"] for row in rows), default=None),
        "worst_memory_ratio": memory,
        "worst_memory_ratio_with_fixed": _farthest(rows, "memory_ratio_with_fixed"),
    }
    reasons = [reason for reason in reasons if reason]
    return Verdict(not reasons, figures, "; ".join(reasons), rows=tuple(rows))


def _farthest(rows: Iterable[Mapping[str, Any]], ratio: str) -> float | None:
    """The ratio that is farthest from 1."""
    known = [row[ratio] for row in rows if row[ratio] is not None]
    return max(known, key=lambda value: abs(value - 1), default=None)


def _row(size: _Size, row: Mapping[str, Any], result: Result, fixed: int) -> dict[str, Any]:
    """One cell: step and memory, predicted and measured.

    The allocator's peak does not have what the device holds beside it, so that is taken off the
    prediction; ``memory_ratio_with_fixed`` leaves it in, as `ddlbench predict accuracy` does.
    """
    low_s, high_s = row["predicted_low_s"], row["predicted_high_s"]
    measured_s, peak = row["measured_step_s"], row["measured_memory_bytes"]
    memory = row["predicted_memory_bytes"]
    comparable = memory is not None and peak
    return {
        "network": row["network"],
        "batch": row["batch_size"],
        "kind": size.kind(row["batch_size"]),
        "predicted_s": row["predicted_step_s"],
        "low_s": low_s,
        "high_s": high_s,
        "measured_s": measured_s,
        "measured_low_s": row["measured_low_s"],
        "measured_high_s": row["measured_high_s"],
        "steps": result.timing.step_s.count if result.timing else 0,
        "error": row["signed_error"],
        "inside": None if low_s is None else bool(low_s <= measured_s <= high_s),
        "load_share": _load_share(result),
        "predicted_memory_bytes": memory,
        "fixed_memory_bytes": fixed,
        "measured_memory_bytes": peak,
        "device_used_bytes": result.ranks[0].memory[0].device_used_bytes,
        "memory_ratio": (memory - fixed) / peak if comparable else None,
        "memory_ratio_with_fixed": memory / peak if comparable else None,
        "notes": row["notes"],
    }


def _load_share(result: Result) -> float:
    """Part of the measured time that the host waited for data.

    On a GPU that is no part of the step as long as the host is ahead of it: a step that is limited
    by loading shows as a large share.
    """
    epochs = result.timing.epochs if result.timing else ()
    elapsed_s = sum(epoch.elapsed_s for epoch in epochs)
    return sum(epoch.load_s for epoch in epochs) / elapsed_s if elapsed_s else math.nan


def _line(study: Study, sizes: Iterable[_Size]) -> Verdict:
    """A line through the profiled steps, at the batch sizes not profiled, beside the predictor."""
    site = study.site()
    rows = []
    for size in sizes:
        path = _profile_path(study, size, site)
        if not path.is_file():
            continue
        steps = read_profile(path).steps
        slope_s, fixed_s = np.polyfit([s.batch_size for s in steps], [s.step_s for s in steps], 1)
        for row in _predicted(study, size.cells):
            batch, measured_s = row["batch_size"], row["measured_step_s"]
            if measured_s is None:
                continue
            rows.append(
                {
                    "network": size.cell.network,
                    "batch": batch,
                    "fixed_s": float(fixed_s),
                    "per_sample_s": float(slope_s),
                    "line_error": float(fixed_s + slope_s * batch) / measured_s - 1,
                    "predictor_error": row["signed_error"],
                }
            )
    if not rows:
        return Verdict(False, {}, "no cell at a batch size not profiled was measured")
    line = statistics.fmean(abs(row["line_error"]) for row in rows)
    predictor = statistics.fmean(abs(row["predictor_error"]) for row in rows)
    reason = _too_far("the line's mean error", line, _limit(study))
    return Verdict(
        not reason,
        {
            "limit": _limit(study),
            "line_mean_absolute_error": line,
            "predictor_mean_absolute_error": predictor,
            "line_worst_error": max((row["line_error"] for row in rows), key=abs),
            "predictor_worst_error": max((row["predictor_error"] for row in rows), key=abs),
            "cells": len(rows),
        },
        reason,
        rows=tuple(rows),
    )


def _silent(study: Study) -> Verdict:
    """How much slower a replica is beside others that do not talk to it."""
    cuda = study.device == "cuda"
    site = study.site(_SHARING if cuda else 2, name=f"shared-{study.device}")
    network = "resnet18" if cuda or not study.small else "mlp"
    batch = 32 if cuda else 8
    cell = Cell("cifar10", network, "sequential", batch, data_scale=0.02)
    needs = ProfileNeeds(
        cell=cell,
        step_batches=(batch,),
        layer_batches=(batch // 2, batch),
        replica_batch=batch,
        budget_s=5.0 if study.small else 12.0,
    )
    path = _root(study) / profile_file(site.name, needs.key.id).relative_to(RESULTS)
    profile = make_profile(needs, site, path)
    slowdowns = {entry.replicas: entry.slowdown for entry in profile.node_slowdown}
    values = [k for count, k in sorted(slowdowns.items()) if count > 1]
    complete = sorted(slowdowns) == list(range(1, site.devices_per_node + 1))
    grows = all(later >= earlier for earlier, later in pairwise(values))
    passed = complete and (study.small or (grows and min(values) >= _LEAST_SLOWDOWN))
    return Verdict(
        passed,
        {
            "network": network,
            "batch": batch,
            "step_s": profile.steps[0].step_s,
            **{f"k({count})": slowdown for count, slowdown in sorted(slowdowns.items())},
        },
        "" if passed else f"k should grow with P and be {_LEAST_SLOWDOWN} at least",
        rows=tuple(
            {"replicas": e.replicas, "slowdown": e.slowdown, "interval": e.interval}
            for e in profile.node_slowdown
        ),
    )
