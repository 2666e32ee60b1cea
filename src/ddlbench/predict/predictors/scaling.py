"""What a measured cell says of a larger one when nothing is modelled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median

from ddlbench.experiment.cell import Cell
from ddlbench.planning.strategy import workers_of
from ddlbench.predict.prediction import History, Measured

__all__ = ["carried_s", "same_but_size"]


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
