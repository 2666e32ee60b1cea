"""Which figures of predictions an experiment has, and how one is made.

::

    predictions.json + summary.csv + partitions.csv of the cells  ->  PNG, PDF, CSV

A figure of one strategy is named after it: ``deviation_horovod``, ``parts_model_parallel``.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.registry import known
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.strategy import known_strategy, strategy_of
from ddlbench.report.footer import Context

__all__ = ["make_prediction_figures", "prediction_figures_for"]

_PER_STRATEGY = {
    "deviation": "ddlbench.report.deviation:draw",
    "parts": "ddlbench.report.step_parts:draw",
}


@dataclass(frozen=True)
class _Entry:
    """A figure of the whole experiment: where it is drawn, and whether cells suit it."""

    draw: str
    applicable: Callable[[Sequence[Cell]], bool]


def _has_gpipe(cells: Sequence[Cell]) -> bool:
    return any(cell.strategy == "gpipe" for cell in cells)


def _has_oracle(cells: Sequence[Cell]) -> bool:
    """Some cell is of a kind of parallelism that ParaDL has a row for."""
    strategies = (known_strategy(cell.strategy) for cell in cells)
    return any(s is not None and s.parallelism is not None for s in strategies)


def _has_fabrics(cells: Sequence[Cell]) -> bool:
    """Some parallel cells differ in the condition of their links."""
    return len({cell.fabric for cell in cells if cell.devices > 1}) > 1


def _varies_chunks(cells: Sequence[Cell]) -> bool:
    """Some pipeline is measured with several numbers of micro-batches."""
    seen: dict[Cell, set[object]] = {}
    for cell in cells:
        try:
            chunks = strategy_of(cell.strategy).option_values(cell).get("chunks")
        except ConfigError:  # of another package that is not here
            continue
        if chunks is not None:
            seen.setdefault(cell.with_(options=(), repeat=0), set()).add(chunks)
    return any(len(values) > 1 for values in seen.values())


_WHOLE = {
    "accuracy": _Entry("ddlbench.report.accuracy:draw", bool),
    "oracle": _Entry("ddlbench.report.oracle_runs:draw", _has_oracle),
    "conditions": _Entry("ddlbench.report.conditions:draw", _has_fabrics),
    "gpipe_step": _Entry("ddlbench.report.gpipe_step:draw", _has_gpipe),
    "micro_batches": _Entry("ddlbench.report.micro_batches:draw", _varies_chunks),
}


def prediction_figures_for(rows: Sequence[MatrixRow]) -> list[str]:
    """Names of the figures that a matrix has something to show in, known before it runs."""
    cells = [row.cell for row in rows if row.unsupported is None]
    told = _strategies_with_models()
    strategies = [s for s in dict.fromkeys(cell.strategy for cell in cells) if s in told]
    return [
        *(name for name, entry in _WHOLE.items() if entry.applicable(cells)),
        *(f"{kind}_{_slug(strategy)}" for strategy in strategies for kind in _PER_STRATEGY),
    ]


def make_prediction_figures(
    names: Sequence[str],
    predictions_json: Path,
    tables_dir: Path,
    out_dir: Path,
    *,
    site_description: str = "",
    results: Path = RESULTS,
) -> list[Path]:
    """Draw figures: each a PNG, and beside it a PDF and a CSV with the plotted numbers.

    Args:
        names: as :func:`prediction_figures_for` gives them.
        predictions_json: the experiment's predictions.
        tables_dir: folder of its tables.
        out_dir: where figures go.
        site_description: what the site is, for the footer.
        results: the folder that holds ``<site>/cells``.

    Raises:
        ConfigError: there is no such figure, or a file is missing or wrong.
    """
    from ddlbench.report.predicted import read_predicted  # noqa: PLC0415 - slow to import
    from ddlbench.report.style import save_figure, style  # noqa: PLC0415
    from ddlbench.report.tables import write_table  # noqa: PLC0415

    predicted = read_predicted(predictions_json, tables_dir, results)
    strategies = list(dict.fromkeys(map(str, predicted.predictions["strategy"])))
    made = []
    for name in names:
        drawing, arguments = _drawing(name, strategies)
        made.append(out_dir / f"{name}.png")
        with style():
            figure, plotted = drawing(predicted, Context(site_description), *arguments)
            write_table(made[-1].with_suffix(".csv"), plotted)
            save_figure(figure, made[-1])
    return made


def _strategies_with_models() -> set[str]:
    from ddlbench.predict.prediction import modelled_strategies, predictor_of  # noqa: PLC0415

    named: set[str] = set()
    for name in known("ddlbench.predictors"):  # slow to import
        named |= set(modelled_strategies(predictor_of(name)) or ())
    return named


def _drawing(name: str, strategies: Sequence[str]) -> tuple[Any, tuple[str, ...]]:
    kind, _, slug = name.partition("_")
    strategy = next((s for s in strategies if _slug(s) == slug), None)
    arguments: tuple[str, ...] = ()
    if name in _WHOLE:
        target = _WHOLE[name].draw
    elif kind in _PER_STRATEGY and strategy is not None:
        target, arguments = _PER_STRATEGY[kind], (strategy,)
    else:
        raise ConfigError(
            f"unknown figure of predictions {name!r}; known: {', '.join(_WHOLE)}, and "
            f"{' and '.join(f'{k}_<strategy>' for k in _PER_STRATEGY)} of a predicted strategy"
        )
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function), arguments


def _slug(strategy: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", strategy.lower())
