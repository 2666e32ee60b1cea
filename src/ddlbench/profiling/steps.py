"""Measures whole steps: of one process, of replicas on one node, and of one rank without its peers.

Whole steps have parts and need memory::

    cell    | warm-up             | measured .................. |  one for memory
    here    | 1 | memory | more   | measured ... | marked ... |
              on CUDA   peak_bytes  step_s         forward, backward,
              cold      of a CPU    load_s         optimiser
                                    |<- peak_bytes on CUDA ->|

A fresh process runs the sequential executor of a cell on the same staged data. ``step_s`` is the
median of the mean step over windows of consecutive steps. (A median of single steps would hide the
time for which a control group stops a process.) Marks stand in steps of their own. The parts of a
step::

    CPU     |  load  | forward | backward | optimiser |      one after the other: ``load`` is
                                                             measured, the rest shared by marks

    CUDA    host    | load | issue | load | issue | ...      loading overlaps the device's work:
            device    ..| forward | backward | optimiser |.. ``load`` is the rest of the step

Replicas that compute on one node without communicating slow each other down::

    round 0:  P=1 [0]          P=2 [0 1]        P=3 [0 1 2]     ...   the others wait
    round 1:  P=1 [0]          P=2 [0 1]        ...                   so drift affects every P

    slowdown(P) = median over rounds of  mean step of the P replicas / that of P=1 in the same round

Where devices compute each layer together, one device of the cell is timed without its peers::

    step of a cell   | part of layer 1 |-- messages --| part of layer 2 |-- messages --| ..
    measured here    | part of layer 1 | part of layer 2 | ..    median of windows of steps
    listed           messages: operation, ranks, bytes, count a step

A part of a layer takes longer than its share of the whole layer: fewer rows or filters fill a core
worse, and what is received is copied. Both are in the step. The executor is the cell's own; its
process group sends nothing (:mod:`ddlbench.strategies.alone`).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ddlbench.common.quantities import counted
from ddlbench.common.statistics import round_means
from ddlbench.datasets.loader import BatchLoader, EpochStream, ImageDataset
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.profile import LoneRun
from ddlbench.experiment.site import Accelerator
from ddlbench.experiment.status import Status
from ddlbench.networks import build
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.profiling.blocks import ReadyOrder, hooked
from ddlbench.profiling.timers import (
    WINDOW_S,
    Marks,
    marks_on,
    median_with_interval,
    passes,
    steps_per_window,
)
from ddlbench.runtime.meters import cpu_peak_bytes, device_memory, restart_peaks
from ddlbench.runtime.rank_report import classify
from ddlbench.runtime.rendezvous import barrier
from ddlbench.strategies.alone import MessageLog
from ddlbench.strategies.executor import Context, Executor, Unsupported, executor_of
from ddlbench.strategies.training import with_precision


def on_host(
    step_s: float, load_s: float, marked_s: Mapping[str, float], marked: int
) -> dict[str, float]:
    """``load_s``, and ``<part>_s`` of each part, of a step that starts when its data is loaded.

    Their sum is ``step_s``, of a step without marks, in which the host waited ``load_s`` for data.
    ``marked_s`` is the seconds of each part over all ``marked`` steps.
    """
    total_s = sum(marked_s.values()) or 1.0
    computing_s = max(step_s - load_s, 0.0)
    parts = {f"{name}_s": value / total_s * computing_s for name, value in marked_s.items()}
    return {"load_s": load_s, **parts}


def on_device(
    step_s: float, load_s: float, marked_s: Mapping[str, float], marked: int
) -> dict[str, float]:
    """Parts of a step of a device that works while its host loads; arguments as of :func:`on_host`.

    ``load_s`` is the step less its parts, not the host's wait, which overlaps the device's work. It
    is 0 if the marked steps were slower than the others.
    """
    parts = {f"{name}_s": value / marked for name, value in marked_s.items()}
    return {"load_s": max(step_s - sum(parts.values()), 0.0), **parts}


_FEWEST_STEPS = 3
_MOST_STEPS = 3000


class StepRunner:
    """A prepared executor of one process, which trains mini-batches of the cell's batch size.

    Args:
        cell: sequential, unless ``alone`` is given.
        dataset: where samples come from.
        device: of the process.
        alone: the cell has several processes, of which one runs, and lists its messages there.
    """

    def __init__(
        self,
        cell: Cell,
        dataset: ImageDataset,
        device: torch.device,
        alone: MessageLog | None = None,
    ) -> None:
        self.network = build(cell.network, DATASETS[cell.dataset], cell.seed)
        running = with_precision(self.network, cell.precision, device.type)
        torch.manual_seed(cell.seed)
        plan = make_plan(cell)
        # The second of two processes has the larger part, the second of more has two neighbours.
        process = plan.processes[min(1, plan.world_size - 1)]
        self._feed = BatchLoader(
            dataset,
            global_batch=cell.batch_size,
            shard=process.shard,
            num_shards=process.num_shards,
            seed=cell.seed,
            loader_workers=cell.loader_workers,
            device=device,
            normalised=Accelerator.of_this_process() is None,
        )
        self._feed.start()
        stream = EpochStream(self._feed, cell.warmup_steps, self._feed.steps_per_epoch)
        self.executor: Executor = executor_of(cell)
        self.next_id = 0
        try:
            self.executor.prepare(plan, process, running, stream, Context((device,), alone=alone))
        except BaseException:
            self.close()
            raise

    def run(self, count: int) -> tuple[list[float], list[float]]:
        """Trains ``count`` mini-batches; returns the seconds of each step and of its loading."""
        record = self.executor.run(self.next_id, count)
        self.next_id += count
        return record.step_s, record.load_s

    def close(self) -> None:
        self._feed.close()
        self.executor.close()


@dataclass(frozen=True)
class Steps:
    """An entry of ``steps``, and when gradients were ready in the marked steps."""

    entry: dict[str, Any]
    ready: list[tuple[str, float]]
    fixed_bytes: int


def measure_steps(
    cell: Cell, dataset: ImageDataset, device: torch.device, budget_s: float
) -> Steps:
    """Measures steps of a sequential cell in roughly ``budget_s`` seconds."""
    fixed = 0
    runner = StepRunner(cell, dataset, device)
    try:
        warm_s = runner.run(1)[0]
        peak = _cpu_peak(runner, device)
        if device.type == "cuda":
            # The first step loads kernels and searches for the fastest. This takes seconds, so the
            # second step decides how many there will be.
            warm_s = runner.run(1)[0]
        more = passes(0.15 * budget_s, warm_s[0], 0, max(cell.warmup_steps - 2, 3))
        warm_s += runner.run(more)[0]
        restart_peaks((device,))
        count = passes(0.6 * budget_s, statistics.median(warm_s), _FEWEST_STEPS, _MOST_STEPS)
        step_s, load_s = runner.run(count)
        window = steps_per_window(sum(step_s) / count, count)
        median_s, interval_s = median_with_interval(round_means(step_s, window))
        loading_s = float(np.median(round_means(load_s, window)))
        marked = passes(0.1 * budget_s, median_s, 1, count)
        marked_s, ready = _marked(runner, marked, marks_on(device, cell.threads_per_device))
        if peak is None:
            peak, fixed = _cuda_memory(device)
    finally:
        runner.close()
    parts = on_device if device.type == "cuda" else on_host
    entry = {
        "batch_size": cell.batch_size,
        "count": count,
        "step_s": median_s,
        "interval_s": interval_s,
        **parts(median_s, loading_s, marked_s, marked),
        "peak_bytes": peak,
    }
    return Steps(entry, ready, fixed)


def _marked(
    runner: StepRunner, count: int, marks: Marks
) -> tuple[dict[str, float], list[tuple[str, float]]]:
    """Seconds of forward (with loss), backward and optimiser, and the order of gradients."""
    with _part_marks(runner.executor, marks) as points, _ready_order(runner, marks) as order:
        runner.run(count)
    marks.finish()
    seconds = {
        name: sum(map(marks.busy_s, points[name], points[following]))
        for name, following in pairwise(_POINTS)
    }
    return seconds, order.fractions(marks, points["backward"][-1], points["optimizer"][-1])


_POINTS = ("forward", "backward", "optimizer", "end")


@contextmanager
def _part_marks(executor: Executor, marks: Marks) -> Iterator[dict[str, list[int]]]:
    """Marks where the parts of each step begin, by hooks: the step itself does not change."""
    points: dict[str, list[int]] = {name: [] for name in _POINTS}

    def mark(name: str) -> Any:
        return lambda *_: points[name].append(marks.mark())

    handles = [
        executor.module.register_forward_pre_hook(mark("forward")),
        executor.loss_function.register_forward_hook(mark("backward")),
        executor.optimizer.register_step_pre_hook(mark("optimizer")),
        executor.optimizer.register_step_post_hook(mark("end")),
    ]
    with hooked(handles):
        yield points


@contextmanager
def _ready_order(runner: StepRunner, marks: Marks) -> Iterator[ReadyOrder]:
    order = ReadyOrder()
    handle = runner.executor.module.register_forward_pre_hook(lambda *_: order.clear())
    with order.listening(runner.network, marks), hooked([handle]):
        yield order


def _cpu_peak(runner: StepRunner, device: torch.device) -> int | None:
    """Bytes of live tensors in the second step, when gradients and momentum exist."""
    if device.type != "cpu":
        return None
    runner.next_id += 1
    return cpu_peak_bytes(runner.executor, runner.next_id - 1)


def _cuda_memory(device: torch.device) -> tuple[int | None, int]:
    """The allocator's peak so far, and what the device holds outside the allocator."""
    memory = device_memory([device], None)[0]
    used = memory["device_used_bytes"]
    fixed = 0 if used is None else max(used - memory["reserved_bytes"], 0)
    return memory["peak_bytes"], fixed


_FEWEST_ROUNDS = 2
_MOST_ROUNDS = 9


def run_rounds(
    runner: StepRunner, store: dist.Store, rank: int, replicas: int, budget_s: float
) -> dict[str, list[float]]:
    """Mean seconds of a step of this replica: by the number of replicas, an entry per round."""
    runner.run(1)
    (warm_s,), _ = runner.run(1)
    if rank == 0:
        store.set("rounds", json.dumps(_rounds_and_steps(warm_s, replicas, budget_s)))
    rounds, steps = json.loads(store.get("rounds"))
    means_s: dict[str, list[float]] = {}
    for number in range(rounds):
        for count in range(1, replicas + 1):
            barrier(store, f"round {number} of {count}", replicas)
            if rank < count:
                step_s, _ = runner.run(steps)
                means_s.setdefault(str(count), []).append(sum(step_s) / steps)
    barrier(store, "rounds over", replicas)
    return means_s


def _rounds_and_steps(step_s: float, replicas: int, budget_s: float) -> tuple[int, int]:
    steps = max(1, round(WINDOW_S / step_s))
    return passes(budget_s, replicas * steps * step_s, _FEWEST_ROUNDS, _MOST_ROUNDS), steps


def slowdowns(reports: Sequence[dict[str, list[float]]]) -> list[dict[str, Any]]:
    """Entries of profile.json from the seconds of every replica, in the order of ranks.

    The first entry is 1 by definition; it is the only one if no replicas ran.
    """
    entries: list[dict[str, Any]] = [{"replicas": 1, "slowdown": 1.0, "interval": None}]
    alone = reports[0]["1"] if reports else []
    for count in range(2, len(reports) + 1):
        of_rounds = zip(*(report[str(count)] for report in reports[:count]), strict=True)
        ratios = [sum(s) / count / base for s, base in zip(of_rounds, alone, strict=True)]
        slowdown, interval = median_with_interval(ratios)
        entries.append({"replicas": count, "slowdown": slowdown, "interval": interval})
    return entries


_MOST_STEPS_ALONE = 1000
_WARM_STEPS = 2


def measure_alone(
    cells: Sequence[Cell],
    dataset: ImageDataset,
    device: torch.device,
    budget_s: float,
    notes: list[str],
) -> list[dict[str, Any]]:
    """Entries ``alone`` of profile.json, one for each cell that can run.

    Each cell gets an equal share of ``budget_s``; ``notes`` get why a cell was left out.
    """
    entries = []
    for cell in cells:
        if cell.batch_size > len(dataset):
            notes.append(
                f"no device of {cell.strategy} alone: {counted(len(dataset), 'training image')}"
            )
            continue
        try:
            entries.append(_lone_run(cell, dataset, device, budget_s / len(cells)))
        except Unsupported as error:
            notes.append(f"no device of {cell.strategy} alone: {error}")
        except (RuntimeError, MemoryError) as error:
            if classify(error)[0] != Status.OUT_OF_MEMORY:
                raise
            notes.append(f"no device of {cell.strategy} alone: out of memory")
    return entries


def _lone_run(
    cell: Cell, dataset: ImageDataset, device: torch.device, budget_s: float
) -> dict[str, Any]:
    log = MessageLog()
    runner = StepRunner(cell, dataset, device, alone=log)
    try:
        warm_s = runner.run(_WARM_STEPS)[0]
        count = passes(budget_s, statistics.median(warm_s), _FEWEST_STEPS, _MOST_STEPS_ALONE)
        step_s, _ = runner.run(count)
        log.clear()
        runner.run(1)
    finally:
        runner.close()
    window = steps_per_window(sum(step_s) / count, count)
    median_s, interval_s = median_with_interval(round_means(step_s, window))
    work = strategy_of(cell.strategy).device_work(cell)
    assert work is not None
    interval = None if interval_s is None else tuple(interval_s)
    return LoneRun(work, count, median_s, interval, log.messages()).to_dict()
