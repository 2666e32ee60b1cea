"""Predictors that model nothing: they carry on what was measured.

Each class tells its equation: T is the time of a step, B the batch, W the number of devices that
train.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import workers_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.links import LinkTable
from ddlbench.predict.prediction import (
    NO_HISTORY,
    History,
    Measured,
    NotPredictable,
    Prediction,
    Predictor,
    joined,
)


class Linear(Predictor):
    """Baseline: linear speed-up, whatever the strategy.

    The sequential step with the whole mini-batch, over the number of devices that train::

        T = T_seq / W
    """

    name: ClassVar[str] = "linear"
    source: ClassVar[str] = "baseline"
    strategies: ClassVar[tuple[str, ...] | None] = None
    baseline: ClassVar[bool] = True

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the class."""
        sequential, workers = workload.step(cell.batch_size), workers_of(cell)
        return Prediction(
            self.name,
            compute_s=sequential.step_s / workers,
            limits=("no communication", "no bubble"),
            notes=joined(sequential.remark),
            interval_s=sequential.interval(1 / workers, 0.0),
        )


def same_but_size(cell: Cell, history: History) -> Iterator[Measured]:
    """Measured cells that differ from ``cell`` in size, batch, fabric and length of run only."""
    key = _key(cell)
    return (measured for measured in history if _key(measured.cell) == key)


def carried_s(cell: Cell, source: Cell, measured: Iterable[Measured]) -> float:
    """Median step of ``source`` over its repeats, scaled by samples a worker."""
    steps = [m.step_s for m in measured if m.cell.with_(repeat=0) == source.with_(repeat=0)]
    share = cell.batch_size / workers_of(cell)
    return median(steps) * share / (source.batch_size / workers_of(source))


def _key(cell: Cell) -> tuple[object, ...]:
    return (
        cell.dataset,
        cell.network,
        cell.strategy,
        cell.precision,
        cell.threads_per_device,
        cell.loader_workers,
        cell.data_format,
        cell.options,
    )


class CarryForward(Predictor):
    """Baseline: what the smallest measured size took, a device's share as long as it took there.

    Perfect weak scaling from the smallest measured size::

        T = T_small (B / W) / (B_small / W_small)

    Small is the measured cell of the same network, dataset, strategy, precision and threads with
    the fewest devices, on the same fabric where there is one. A cell of as many devices or more as
    the one asked for is not smaller.
    """

    name: ClassVar[str] = "carry-forward"
    source: ClassVar[str] = "baseline"
    strategies: ClassVar[tuple[str, ...] | None] = None
    baseline: ClassVar[bool] = True

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the class."""
        smaller = [m for m in same_but_size(cell, history) if m.cell.devices < cell.devices]
        if not smaller:
            raise NotPredictable(
                f"no smaller {cell.strategy} cell of {cell.network} on {cell.dataset} is measured"
            )
        smallest = min(
            smaller,
            key=lambda m: (m.cell.devices, m.cell.fabric != cell.fabric, m.cell.batch_size),
        ).cell
        note = None
        if smallest.fabric != cell.fabric:
            note = f"carried from fabric {smallest.fabric}"
        return Prediction(
            self.name,
            compute_s=carried_s(cell, smallest, smaller),
            limits=("further devices cost nothing",),
            notes=joined(note, f"carried from {smallest.geometry}, batch {smallest.batch_size}"),
        )


class HardwareExtrapolation(Predictor):
    """The thesis' alternative: measure on one node, extrapolate to N.

    Every further node is as fast as the measured one::

        T(N nodes) = T(1 node) (B / W) / (B_1 / W_1)

    A node's step is measured with all its devices; N nodes are taken to be N times as fast. What is
    reconstructed: the equation and the scaling by share; the thesis is quoted for the idea only.
    """

    name: ClassVar[str] = "hardware-extrapolation"
    source: ClassVar[str] = "thesis, alternative: from one node"
    strategies: ClassVar[tuple[str, ...] | None] = None

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the class."""
        if cell.nodes < 2:
            raise NotPredictable("hardware extrapolation goes from one node to more than one")
        on_one = [
            m
            for m in same_but_size(cell, history)
            if m.cell.nodes == 1 and m.cell.devices_per_node == cell.devices_per_node
        ]
        if not on_one:
            raise NotPredictable(
                f"{cell.strategy} of {cell.network} on {cell.dataset} is not measured on one node "
                f"with {cell.devices_per_node} device(s)"
            )
        share = cell.batch_size / workers_of(cell)
        source = min(on_one, key=lambda m: abs(m.cell.batch_size / workers_of(m.cell) - share)).cell
        return Prediction(
            self.name,
            compute_s=carried_s(cell, source, on_one),
            limits=("the network between nodes costs nothing",),
            notes=joined(f"from {source.geometry}, batch {source.batch_size}"),
        )


FEW_STEPS = 10


class DataExtrapolation(Predictor):
    """The thesis' alternative: run a few batches on the N nodes, extrapolate over the epoch.

    The run goes on as it began::

        T = median of the first few measured steps of repeat 0

    It is scored against the other repeats, which are separate jobs; with a single repeat it cannot
    be. What is reconstructed: the number of batches; the thesis is quoted for the idea only.
    """

    name: ClassVar[str] = "data-extrapolation"
    source: ClassVar[str] = "thesis, alternative: a few batches on N nodes"
    strategies: ClassVar[tuple[str, ...] | None] = None
    uses_first_repeat: ClassVar[bool] = True

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the class."""
        first = cell.with_(repeat=0)
        for measured in history:
            if measured.cell == first and measured.steps_file is not None:
                steps_s = first_steps_s(measured.steps_file)
                if steps_s:
                    return Prediction(
                        self.name,
                        compute_s=median(steps_s),
                        limits=("needs the whole machine for a short run",),
                        notes=(f"first {len(steps_s)} steps of repeat 0",),
                    )
        raise NotPredictable("the cell's repeat 0 has no measured steps")


def first_steps_s(path: Path) -> list[float]:
    """Seconds of the first few steps after warm-up in a cell's steps.csv."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        measured = (float(row["step_s"]) for row in rows if int(row["warmup"]) == 0)
        return [seconds for _, seconds in zip(range(FEW_STEPS), measured, strict=False)]
