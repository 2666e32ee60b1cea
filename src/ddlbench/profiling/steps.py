"""Whole steps, as a sequential cell runs them: their parts, their memory, their neighbours.

::

    cell    | warm-up             | measured .................. |  one for memory
    here    | 1 | memory | more   | measured ... | marked ... |
              on CUDA   peak_bytes  step_s         forward, backward,
              cold      of a CPU    load_s         optimiser
                                    |<- peak_bytes on CUDA ->|

The same executor reads the same staged data through the same feed, in a fresh process, and the
measured steps are one run, as in a cell. ``step_s`` is the median over windows of consecutive steps
of a window's mean: a cell's epoch is a sum of steps, and the median of single steps would leave out
what a control group takes away between them. Marks stand in steps of their own. What a step is made
of::

    CPU     |  load  | forward | backward | optimiser |      one after the other: loading is the
                                                             host's, the rest is shared as marked

    CUDA    host    | load | issue | load | issue | ...      loading overlaps work of the device:
            device    ..| forward | backward | optimiser |.. the parts are the device's own, and
                                                             only what is left waited for data

How much slower a replica is while others compute on the same node, without talking::

    round 0:  P=1 [0]          P=2 [0 1]        P=3 [0 1 2]     ...   the others wait
    round 1:  P=1 [0]          P=2 [0 1]        ...                   so drift hits every P alike

    slowdown(P) = median over rounds of  mean step of the P replicas / that of P=1 in the same round
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ddlbench.datasets.loader import BatchLoader, EpochStream, ImageDataset
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import build
from ddlbench.planning.plan import make_plan
from ddlbench.profiling.blocks import ReadyOrder
from ddlbench.profiling.timers import (
    WINDOW_S,
    Marks,
    marks_on,
    median_with_interval,
    passes,
    steps_per_window,
)
from ddlbench.runtime.meters import cpu_peak_bytes, device_memory, restart_peaks
from ddlbench.runtime.rendezvous import barrier
from ddlbench.strategies.executor import Context, StepwiseExecutor
from ddlbench.strategies.training import with_precision


def on_host(
    step_s: float, load_s: float, marked_s: Mapping[str, float], marked: int
) -> dict[str, float]:
    """Entries of ``steps`` where the step follows its loading.

    Args:
        step_s: of a step without marks.
        load_s: of that, the host's wait for data.
        marked_s: seconds of each part over all marked steps.
        marked: how many these were.

    Returns:
        ``load_s``, and ``<part>_s`` of each part; together ``step_s``.
    """
    total_s = sum(marked_s.values()) or 1.0
    computing_s = max(step_s - load_s, 0.0)
    parts = {f"{name}_s": value / total_s * computing_s for name, value in marked_s.items()}
    return {"load_s": load_s, **parts}


def on_device(
    step_s: float, load_s: float, marked_s: Mapping[str, float], marked: int
) -> dict[str, float]:
    """The same where a device works while its host loads.

    ``load_s`` is what the step exceeds its parts by, not the host's wait: that lies beside the
    device's work, not before it. Where marked steps were slower than the others it is 0.
    """
    parts = {f"{name}_s": value / marked for name, value in marked_s.items()}
    return {"load_s": max(step_s - sum(parts.values()), 0.0), **parts}


_FEWEST_STEPS = 3
_ENOUGH_STEPS = 6  # have a 95 % interval
_MOST_STEPS = 3000


class StepRunner:
    """A prepared sequential executor, and the ids of its next mini-batches.

    Args:
        cell: sequential; its batch size is the one that is run.
        dataset: staged training images.
        device: where.

    Attributes:
        network: the plain network that it trains.
    """

    def __init__(self, cell: Cell, dataset: ImageDataset, device: torch.device) -> None:
        self.network = build(cell.network, DATASETS[cell.dataset], cell.seed)
        running = with_precision(self.network, cell.precision, device.type)
        torch.manual_seed(cell.seed)
        self._feed = BatchLoader(
            dataset,
            global_batch=cell.batch_size,
            seed=cell.seed,
            loader_workers=cell.loader_workers,
            device=device,
        )
        self._feed.start()
        stream = EpochStream(self._feed, cell.warmup_steps, self._feed.steps_per_epoch)
        plan = make_plan(cell)
        self.executor = StepwiseExecutor()
        self.executor.prepare(plan, plan.processes[0], running, stream, Context((device,)))
        self.next_id = 0

    def run(self, count: int) -> tuple[list[float], list[float]]:
        """Train so many mini-batches in one run; seconds of each step, and of its loading."""
        record = self.executor.run(self.next_id, count)
        self.next_id += count
        return record.step_s, record.load_s

    def close(self) -> None:
        """Stop the data-loading processes."""
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
    """Measure steps of one batch size.

    Args:
        cell: sequential.
        dataset: staged training images.
        device: where.
        budget_s: seconds to spend, loosely.
    """
    fixed = 0
    runner = StepRunner(cell, dataset, device)
    try:
        warm_s = runner.run(1)[0]
        peak = _cpu_peak(runner, device)
        if device.type == "cuda":
            # The first step loads kernels and searches for the fastest, for seconds; what fits into
            # the budget is planned from one that does not.
            warm_s = runner.run(1)[0]
        warm_s += runner.run(passes(0.15 * budget_s, warm_s[0], 0, max(cell.warmup_steps - 2, 3)))[
            0
        ]
        restart_peaks((device,))
        count = passes(0.6 * budget_s, statistics.median(warm_s), _FEWEST_STEPS, _MOST_STEPS)
        step_s, load_s = runner.run(count)
        window = steps_per_window(sum(step_s) / count, count)
        median_s, interval_s = median_with_interval(_means(step_s, window))
        loading_s = statistics.median(_means(load_s, window))
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


def _means(values: list[float], window: int) -> list[float]:
    """Means of whole windows."""
    whole = len(values) // window * window
    return [sum(values[i : i + window]) / window for i in range(0, whole, window)]


def _marked(
    runner: StepRunner, count: int, marks: Marks
) -> tuple[dict[str, float], list[tuple[str, float]]]:
    """Seconds of forward (with loss), backward and optimiser, and the order of gradients."""
    with _listening(runner.executor, marks) as found, _orders(runner, marks) as order:
        runner.run(count)
    marks.finish()
    spans = list(zip(*(found[name] for name in _POINTS), strict=True))
    seconds = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0}
    for points in spans:
        for name, begin, end in zip(seconds, points, points[1:], strict=False):
            seconds[name] += marks.busy_s(begin, end)
    last_backward = found["backward"][-1], found["optimizer"][-1]
    ready = order.fractions(marks, *last_backward)
    return seconds, ready


_POINTS = ("forward", "backward", "optimizer", "end")


@contextmanager
def _listening(executor: StepwiseExecutor, marks: Marks) -> Iterator[dict[str, list[int]]]:
    """Marks where the parts of each step begin, by hooks: the step itself stays the cell's."""
    found: dict[str, list[int]] = {name: [] for name in _POINTS}

    def mark(name: str) -> Any:
        return lambda *_: found[name].append(marks.mark())

    handles = [
        executor.module.register_forward_pre_hook(mark("forward")),
        executor.loss_function.register_forward_hook(mark("backward")),
        executor.optimizer.register_step_pre_hook(mark("optimizer")),
        executor.optimizer.register_step_post_hook(mark("end")),
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _orders(runner: StepRunner, marks: Marks) -> Iterator[ReadyOrder]:
    """The order of gradients in the last of the steps."""
    order = ReadyOrder()
    handle = runner.executor.module.register_forward_pre_hook(lambda *_: order.clear())
    with order.listening(runner.network, marks):
        try:
            yield order
        finally:
            handle.remove()


def _cpu_peak(runner: StepRunner, device: torch.device) -> int | None:
    """Live tensors in one step, which is the second: gradients and momentum are there by then."""
    if device.type != "cpu":
        return None
    runner.next_id += 1
    return cpu_peak_bytes(runner.executor, runner.next_id - 1)


def _cuda_memory(device: torch.device) -> tuple[int | None, int]:
    """The allocator's peak so far; what the device holds beside the allocator."""
    memory = device_memory([device], None)[0]
    used = memory["device_used_bytes"]
    fixed = 0 if used is None else max(used - memory["reserved_bytes"], 0)
    return memory["peak_bytes"], fixed


_FEWEST_ROUNDS = 2
_MOST_ROUNDS = 9


def run_rounds(
    runner: StepRunner, store: dist.Store, rank: int, replicas: int, budget_s: float
) -> dict[str, list[float]]:
    """This replica's mean seconds of a step, by the number of replicas, one entry a round."""
    runner.run(1)
    (warm_s,), _ = runner.run(1)
    if rank == 0:
        store.set("rounds", json.dumps(_plan(warm_s, replicas, budget_s)))
    rounds, steps = json.loads(store.get("rounds"))
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        for count in range(1, replicas + 1):
            barrier(store, f"round {number} of {count}", replicas)
            if rank < count:
                step_s, _ = runner.run(steps)
                found.setdefault(str(count), []).append(sum(step_s) / steps)
    barrier(store, "rounds over", replicas)
    return found


def _plan(step_s: float, replicas: int, budget_s: float) -> tuple[int, int]:
    """Rounds, and steps of each number of replicas in a round."""
    steps = max(1, round(WINDOW_S / step_s))
    return passes(budget_s, replicas * steps * step_s, _FEWEST_ROUNDS, _MOST_ROUNDS), steps


def slowdowns(reports: Sequence[dict[str, list[float]]]) -> list[dict[str, Any]]:
    """Entries of profile.json from the seconds of every replica, in the order of ranks.

    The first entry is 1 by definition; it is all there is where nothing was run.
    """
    entries: list[dict[str, Any]] = [{"replicas": 1, "slowdown": 1.0, "interval": None}]
    alone = reports[0]["1"] if reports else []
    for count in range(2, len(reports) + 1):
        of_rounds = zip(*(report[str(count)] for report in reports[:count]), strict=True)
        ratios = [sum(s) / count / base for s, base in zip(of_rounds, alone, strict=True)]
        slowdown, interval = median_with_interval(ratios)
        entries.append({"replicas": count, "slowdown": slowdown, "interval": interval})
    return entries
