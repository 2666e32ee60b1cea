"""Part 5: the device itself: profiles of many networks, and times of single kernels.

::

    batch     16   24   32   48   64        of each network, dataset and precision
    profile   x         x         x         -> profile.json, from which `ddlbench site accelerator`
    step           x         x              -> held-out steps, beside what the profile predicts

A dataset in one precision has a process of its own, which imports torch while the one before
measures. Batches come from memory that was filled beforehand, so no step waits for data.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ddlbench.common.document import read_json, write_json
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS, DatasetSpec
from ddlbench.experiment.paths import RESULTS, profile_file
from ddlbench.experiment.profile import Profile, write_profile
from ddlbench.experiment.site import Site
from ddlbench.planning.profiles import ProfileNeeds
from ddlbench.profiling.profile import profile_of_device
from ddlbench.profiling.steps import measure_steps
from ddlbench.strategies.training import apply_torch_settings
from gpu_parts import kernels
from gpu_parts.study import Study, Verdict

__all__ = ["run"]

_GOAL = 0.025  # mean absolute error of steps at batch sizes not profiled
_CNNS = ("resnet50", "vgg16", "alexnet", "mobilenetv2", "resnet18", "vgg11", "resnet152")
_PRECISIONS: tuple[Literal["fp32", "tf32", "bf16"], ...] = ("bf16", "tf32", "fp32")
_HELD_OUT_S = 0.3


@dataclass(frozen=True)
class _Group:
    """Networks that one process profiles.

    Args:
        dataset, precision: of all of them.
        networks: their names.
        batches: profiled batch sizes, ascending.
        held_out: batch sizes whose steps are measured for comparison.
        budget_s: of each profile.
    """

    dataset: str
    precision: Literal["fp32", "tf32", "bf16"]
    networks: tuple[str, ...]
    batches: tuple[int, ...]
    held_out: tuple[int, ...]
    budget_s: float

    @property
    def name(self) -> str:
        """As the check is called."""
        return f"{self.dataset} {self.precision}"

    def needs(self, network: str) -> ProfileNeeds:
        """What is measured of one network."""
        cell = Cell(
            self.dataset, network, "sequential", self.batches[-1],
            precision=self.precision, warmup_steps=4,
        )  # fmt: skip
        return ProfileNeeds(
            cell=cell,
            step_batches=self.batches,
            layer_batches=self.batches,
            replica_batch=self.batches[0],
            budget_s=self.budget_s,
        )


def run(study: Study) -> None:
    """All checks of this part."""
    study.check("times of kernels", partial(kernels.measure, study), needs_s=40)
    groups = _groups(study)
    with _ready_ahead(groups) as processes:
        for group, process in processes:
            study.check(
                f"profiles {group.name}",
                partial(_profiles, study, group, process),
                needs_s=30,
            )


def _groups(study: Study) -> list[_Group]:
    if study.device == "cpu":
        return [_Group("cifar10", "fp32", ("mlp", "stack"), (4, 8, 16), (12,), 1.0)]
    imagenet = ((8, 16, 32, 64, 128), (24, 48, 96))
    tokens = ("gpt-small", "gpt-medium")
    small = ((32, 64, 128, 256, 512), (96, 192, 384))
    # A group that ends early keeps what it has. cuDNN's search takes most of the time of a network
    # of convolutions, so transformers come first.
    groups = [_Group("tokens-gpt2", "bf16", tokens, (1, 2, 4, 8, 16), (3, 6, 12), 4.0)]
    groups += [
        _Group("imagenet", name, ("vit-small", "vit-base", *_CNNS), *imagenet, 4.0)
        for name in _PRECISIONS
    ]
    for name in _PRECISIONS:
        groups += [
            _Group("cifar10", name, _CNNS, *small, 2.0),
            _Group("highres", name, _CNNS, (2, 4, 8, 16, 32), (6, 12, 24), 2.5),
            _Group("mnist", name, _CNNS, *small, 2.0),
        ]
    return groups[:1] if study.small else groups


@contextmanager
def _ready_ahead(
    groups: Sequence[_Group],
) -> Iterator[Iterator[tuple[_Group, ProcessPoolExecutor]]]:
    """Each group with a process; the next one starts while a group is measured."""
    context = multiprocessing.get_context("spawn")
    started: list[ProcessPoolExecutor] = []

    def start() -> None:
        pool = ProcessPoolExecutor(1, mp_context=context)
        pool.submit(_imported)
        started.append(pool)

    def pairs() -> Iterator[tuple[_Group, ProcessPoolExecutor]]:
        for number, group in enumerate(groups):
            while len(started) < min(number + 2, len(groups)):
                start()
            yield group, started[number]
            started[number].shutdown(wait=True, cancel_futures=True)

    try:
        yield pairs()
    finally:
        for pool in started:
            pool.shutdown(wait=False, cancel_futures=True)


def _imported() -> None:
    """The process has this module, and with it torch."""


def _profiles(study: Study, group: _Group, process: ProcessPoolExecutor) -> Verdict:
    """Profiles of a group, and steps at batch sizes that they do not have."""
    root, site = study.folder / "results", study.site()
    future = process.submit(_measured, group, site, root, study.device, study.left_s)
    try:
        rows: list[dict[str, Any]] = future.result(timeout=max(study.left_s, 1) + 60)
    except BrokenProcessPool:
        raise RuntimeError("its process ended without an answer") from None
    errors = [abs(row["error"]) for row in rows if row.get("error") is not None]
    memory = [row["memory_ratio"] for row in rows if row.get("memory_ratio") is not None]
    lacking = [f"{row['network']}: {row['reason']}" for row in rows if row.get("reason")]
    mean = statistics.fmean(errors) if errors else math.nan
    limit = None if study.device == "cpu" or study.small else _GOAL
    reasons = list(lacking)
    if not errors:
        reasons.append("no step at a batch size not profiled was measured")
    elif limit is not None and mean > limit:
        reasons.append(f"the mean error is {mean:.2%}, the limit is {limit:.1%}")
    figures = {
        "networks": len({row["network"] for row in rows if not row.get("reason")}),
        "held_out_steps": len(errors),
        "mean_absolute_error": mean,
        "worst_error": max(errors, default=math.nan),
        "worst_memory_ratio": max(memory, key=lambda ratio: abs(ratio - 1), default=None),
    }
    return Verdict(not reasons, figures, "; ".join(reasons), rows=tuple(rows))


def _measured(
    group: _Group, site: Site, root: Path, device_kind: str, limit_s: float
) -> list[dict[str, Any]]:
    """Profile each network; a row for each held-out batch size, or with why there is none."""
    end = time.monotonic() + limit_s
    device = torch.device(device_kind)
    spec = DATASETS[group.dataset]
    dataset = _InMemory(spec, max(*group.batches, *group.held_out), device.type == "cuda")
    rows: list[dict[str, Any]] = []
    for network in group.networks:
        needs = group.needs(network)
        path = root / profile_file(site.name, needs.key.id).relative_to(RESULTS)
        if (kept := path.parent / "held-out.json").is_file():  # of a run before
            rows += read_json(kept)["steps"]
            continue
        if time.monotonic() > end - 10:
            rows.append({"network": network, "reason": "no time was left"})
            continue
        try:
            profile = profile_of_device(needs, site, dataset, device)
            write_profile(path, profile)
            steps = _held_out(group, needs.cell, profile, dataset, device)
            write_json(kept, {"steps": steps})
            rows += steps
        except Exception as error:  # a row of the table, and the next network is tried
            rows.append({"network": network, "reason": f"{type(error).__name__}: {error}"[:300]})
        if device.type == "cuda":
            torch.cuda.empty_cache()
        print(f"  {group.name} {network}: {end - time.monotonic():.0f} s are left", flush=True)
    return rows


def _held_out(
    group: _Group, cell: Cell, profile: Profile, dataset: _InMemory, device: torch.device
) -> list[dict[str, Any]]:
    """Steps at batch sizes not profiled, beside the profile's own line between its neighbours."""
    apply_torch_settings(cell)
    sizes = [step.batch_size for step in profile.steps]
    step_s = [step.step_s for step in profile.steps]
    peaks = [step.peak_bytes or 0 for step in profile.steps]
    rows = []
    for batch in group.held_out:
        if not sizes or batch > sizes[-1]:
            continue  # larger ones did not fit
        measured = measure_steps(cell.with_(batch_size=batch), dataset, device, _HELD_OUT_S)
        entry = measured.entry
        between_s = float(np.interp(batch, sizes, step_s))
        row: dict[str, Any] = {
            "network": cell.network,
            "batch": batch,
            **{key: entry[key] for key in ("step_s", "interval_s", "count", "peak_bytes")},
            "fixed_bytes": measured.fixed_bytes,
            "between_s": between_s,
            "error": between_s / entry["step_s"] - 1,
        }
        if all(peaks) and entry["peak_bytes"]:
            row["memory_ratio"] = float(np.interp(batch, sizes, peaks)) / entry["peak_bytes"]
        rows.append(row)
    return rows


class _InMemory:
    """Samples of random values that are ready in memory; as many as the largest batch."""

    def __init__(self, spec: DatasetSpec, samples: int, pinned: bool) -> None:
        self.shape: tuple[int, ...] = spec.shape
        self.num_classes = spec.num_classes
        made = torch.Generator().manual_seed(0)
        if spec.kind == "tokens":
            self.dtype = torch.int64
            self._inputs = torch.randint(spec.num_classes, (samples, *spec.shape), generator=made)
            self._labels = torch.randint(spec.num_classes, (samples, *spec.shape), generator=made)
        else:
            self.dtype = torch.uint8
            sizes = (samples, *spec.shape)
            self._inputs = torch.randint(256, sizes, generator=made, dtype=torch.uint8)
            self._labels = torch.randint(spec.num_classes, (samples,), generator=made)
        if pinned:
            self._inputs, self._labels = self._inputs.pin_memory(), self._labels.pin_memory()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, sample_id: int, /) -> tuple[torch.Tensor, torch.Tensor]:
        return self._inputs[sample_id], self._labels[sample_id]

    def gather(
        self, sample_ids: np.ndarray, *, pin_memory: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The first samples, whichever are wanted: they lie in pinned memory, one after another."""
        count = len(sample_ids)
        return self._inputs[:count], self._labels[:count]

    def labels(self, sample_ids: np.ndarray, /) -> torch.Tensor:
        """As :meth:`gather`."""
        return self._labels[: len(sample_ids)]
