"""Conditions of figures: whether a matrix has something to show, decided before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import BASE
from ddlbench.planning.matrix import MatrixRow

Rows = Sequence[MatrixRow]
LEARNING_STEPS = 50


def anything_runs(rows: Rows) -> bool:
    """Some cell is supported."""
    return any(row.unsupported is None for row in rows)


def supported(rows: Rows) -> list[MatrixRow]:
    """The rows whose cells a strategy and the site support."""
    return [row for row in rows if row.unsupported is None]


def something_beside_a_base(rows: Rows) -> bool:
    """Some parallel cell has a base."""
    return any(r.cell.strategy != BASE and r.base_id is not None for r in rows)


def something_sent(rows: Rows) -> bool:
    """Some strategy runs as several processes."""
    return any(len(row.strategy.placement(row.cell)) > 1 for row in supported(rows))


def several_numbers_of_workers(rows: Rows) -> bool:
    """Parallel cells beside a base differ in their number of devices."""
    counts = {
        row.cell.devices
        for row in supported(rows)
        if row.cell.strategy != BASE and row.base_id is not None
    }
    return len(counts) > 1


def pipelines_beside_a_base(rows: Rows) -> bool:
    """At least two pipelines have a base; for one alone the figure of speed-ups is enough."""
    pipelines = {
        (row.cell.strategy, row.cell.options)
        for row in supported(rows)
        if row.base_id is not None and row.cell.devices > 1 and row.strategy.family == "pipeline"
    }
    return len(pipelines) > 1


def _planned_steps(cell: Cell) -> int:
    steps = int(DATASETS[cell.dataset].num_train * cell.data_scale) // cell.batch_size
    return cell.epochs * (steps if cell.max_steps is None else min(steps, cell.max_steps))


def long_enough_to_learn(rows: Rows) -> bool:
    """At least two strategies train :data:`LEARNING_STEPS` steps or more."""
    cells = [row.cell for row in supported(rows)]
    long = {cell.strategy for cell in cells if _planned_steps(cell) >= LEARNING_STEPS}
    return len(long) > 1


def some_validation(rows: Rows) -> bool:
    """Some cell classifies the validation split."""
    return any(row.cell.validate for row in supported(rows))


def links_vary(quantity: str) -> Callable[[Rows], bool]:
    """Cells over emulated links differ in this quantity of their condition."""

    def applicable(rows: Rows) -> bool:
        conditions = (row.condition for row in supported(rows))
        return len({getattr(c, quantity) for c in conditions if c is not None}) > 1

    return applicable


def some_pipeline(rows: Rows) -> bool:
    """Some strategy records spans of its devices."""
    return any(row.strategy.family in ("pipeline", "model") for row in supported(rows))


def has_gpipe(rows: Rows) -> bool:
    """Some cell is of GPipe."""
    return any(row.cell.strategy == "gpipe" for row in supported(rows))


def has_oracle(rows: Rows) -> bool:
    """Some cell has a parallelism that ParaDL models."""
    return any(row.strategy.parallelism for row in supported(rows))


def has_fabrics(rows: Rows) -> bool:
    """Some parallel cells differ in the condition of their links."""
    return len({row.cell.fabric for row in supported(rows) if row.cell.devices > 1}) > 1


def varies_chunks(rows: Rows) -> bool:
    """Some pipeline is measured with several numbers of micro-batches."""
    seen: dict[Cell, set[object]] = {}
    for row in supported(rows):
        chunks = row.strategy.option_values(row.cell).get("chunks")
        if chunks is not None:
            seen.setdefault(row.cell.with_(options=(), repeat=0), set()).add(chunks)
    return any(len(values) > 1 for values in seen.values())
