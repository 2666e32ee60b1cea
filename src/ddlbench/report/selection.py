"""Which figures there are, and which an experiment has: known before it runs.

Needs neither results nor a library that draws. A figure is a module with
``draw(tables, context) -> (figure, table)`` and a line in :data:`FIGURES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.errors import ConfigError
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.strategy import strategy_of

__all__ = ["FIGURES", "LEARNING_STEPS", "Entry", "figures_for"]

Rows = Sequence[MatrixRow]
LEARNING_STEPS = 50


@dataclass(frozen=True)
class Entry:
    """One kind of figure.

    Args:
        draw: ``module:function``.
        applicable: whether a matrix has something to show in it.
    """

    draw: str
    applicable: Callable[[Rows], bool]


def _anything_runs(rows: Rows) -> bool:
    return any(row.unsupported is None for row in rows)


def _something_beside_a_base(rows: Rows) -> bool:
    return any(r.cell.strategy != "sequential" and r.base_id is not None for r in rows)


def _several_numbers_of_workers(rows: Rows) -> bool:
    counts = {
        row.cell.devices
        for row in rows
        if row.cell.strategy != "sequential" and row.unsupported is None and row.base_id is not None
    }
    return len(counts) > 1


def _pipelines_beside_a_base(rows: Rows) -> bool:
    """At least two pipelines: one alone is told by the figure of speed-ups."""
    found = [
        row
        for row in rows
        if row.unsupported is None
        and row.base_id is not None
        and row.cell.devices > 1
        and strategy_of(row.cell.strategy).family == "pipeline"
    ]
    return len({(r.cell.strategy, r.cell.options) for r in found}) > 1


def _planned_steps(cell: Cell) -> int:
    steps = int(DATASETS[cell.dataset].num_train * cell.data_scale) // cell.batch_size
    return cell.epochs * (steps if cell.max_steps is None else min(steps, cell.max_steps))


def _long_enough_to_learn(rows: Rows) -> bool:
    """At least two strategies that train fifty steps or more."""
    found = {
        row.cell.strategy
        for row in rows
        if row.unsupported is None and _planned_steps(row.cell) >= LEARNING_STEPS
    }
    return len(found) > 1


def _links_vary(quantity: str) -> Callable[[Rows], bool]:
    """Whether cells over emulated links differ in a quantity of their condition."""

    def applicable(rows: Rows) -> bool:
        conditions = (row.condition for row in rows if row.unsupported is None)
        return len({getattr(c, quantity) for c in conditions if c is not None}) > 1

    return applicable


def _some_pipeline(rows: Rows) -> bool:
    """Strategies of these families record what each device did when."""
    return any(
        row.unsupported is None and _family(row.cell.strategy) in ("pipeline", "model")
        for row in rows
    )


def _family(strategy: str) -> str:
    try:
        return strategy_of(strategy).family
    except ConfigError:  # a third-party strategy that this machine does not have
        return ""


FIGURES: dict[str, Entry] = {
    "speedup": Entry("ddlbench.report.speedup:draw", _something_beside_a_base),
    "memory": Entry("ddlbench.report.memory:draw", _anything_runs),
    "steps": Entry("ddlbench.report.steps:draw", _anything_runs),
    "pipelines": Entry("ddlbench.report.pipelines:draw", _pipelines_beside_a_base),
    "loss": Entry("ddlbench.report.loss:draw", _long_enough_to_learn),
    "latency": Entry("ddlbench.report.networking:draw_latency", _links_vary("latency_s")),
    "bandwidth": Entry(
        "ddlbench.report.networking:draw_bandwidth", _links_vary("bandwidth_bits_per_s")
    ),
    "packet_loss": Entry("ddlbench.report.networking:draw_loss", _links_vary("loss")),
    "scaling": Entry("ddlbench.report.scaling:draw", _several_numbers_of_workers),
    "timelines": Entry("ddlbench.report.timeline.figure:draw", _some_pipeline),
}


def figures_for(rows: Rows) -> list[str]:
    """Names of the figures that a matrix has something to show in."""
    return [name for name, entry in FIGURES.items() if entry.applicable(rows)]
