"""The registry of figures, and which of them an experiment has.

It needs neither results nor matplotlib. Other packages add figures by entry points of the group
``ddlbench.figures``, each a :class:`FigureEntry`. Captions of ours are in ``captions.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import get_args

from ddlbench.common.entry_points import Registry, load_target
from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import read_yaml
from ddlbench.experiment.registry import known
from ddlbench.report.applicability import (
    Rows,
    anything_runs,
    has_fabrics,
    has_gpipe,
    has_oracle,
    links_vary,
    long_enough_to_learn,
    pipelines_beside_a_base,
    several_numbers_of_workers,
    some_pipeline,
    some_validation,
    something_beside_a_base,
    something_sent,
    supported,
    varies_chunks,
)
from ddlbench.report.figure_entry import FigureEntry, FigureKind, ReportFigure


def _of_package(name: str, target: str) -> FigureEntry:
    """The entry of another package."""
    entry = load_target(name, target)
    if not isinstance(entry, FigureEntry) or entry.kind not in get_args(FigureKind):
        raise ConfigError(f"figure {name!r}: {target} is no FigureEntry of a known kind")
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise ConfigError(f"figure {name!r} ({target}): write a name of a-z, 0-9 and _")
    return entry


_CAPTIONS = read_yaml(Path(__file__).with_name("captions.yaml"))
_LINKS = "figures.networking:draw"


def _figure(
    name: str, kind: FigureKind, draw: str, applicable: Callable[[Rows], bool] = anything_runs
) -> tuple[str, FigureEntry]:
    entry = FigureEntry(kind, f"ddlbench.report.{draw}", applicable, _CAPTIONS.get(name, ""))
    return name, entry


FIGURES: Registry[FigureEntry] = Registry(
    "ddlbench.figures",
    dict(
        (
            _figure("speedup", "experiment", "figures.speedup:draw", something_beside_a_base),
            _figure("memory", "experiment", "figures.device_bars:draw_memory"),
            _figure("traffic", "experiment", "figures.device_bars:draw_traffic", something_sent),
            _figure("utilisation", "experiment", "figures.device_bars:draw_utilisation"),
            _figure("steps", "experiment", "figures.steps:draw"),
            _figure("pipelines", "experiment", "figures.pipelines:draw", pipelines_beside_a_base),
            _figure("loss", "experiment", "figures.loss:draw", long_enough_to_learn),
            _figure(
                "time_to_accuracy", "experiment", "figures.time_to_accuracy:draw", some_validation
            ),
            _figure("latency", "experiment", f"{_LINKS}_latency", links_vary("latency_s")),
            _figure(
                "bandwidth", "experiment", f"{_LINKS}_bandwidth", links_vary("bandwidth_bits_per_s")
            ),
            _figure("packet_loss", "experiment", f"{_LINKS}_loss", links_vary("loss")),
            _figure("scaling", "experiment", "figures.scaling:draw", several_numbers_of_workers),
            _figure("timelines", "experiment", "timeline.figure:draw", some_pipeline),
            _figure("accuracy", "prediction", "figures.accuracy:draw"),
            _figure("oracle", "prediction", "figures.paradl:draw_runs", has_oracle),
            _figure("conditions", "prediction", "figures.conditions:draw", has_fabrics),
            _figure("gpipe_step", "prediction", "figures.gpipe_step:draw", has_gpipe),
            _figure("micro_batches", "prediction", "figures.micro_batches:draw", varies_chunks),
            _figure("deviation", "strategy", "figures.deviation:draw"),
            _figure("parts", "strategy", "figures.step_parts:draw"),
            _figure("links", "links", "figures.links:draw_links"),
            _figure("sweeps", "links", "figures.links:draw_sweeps"),
            _figure("oracle_published", "published", "figures.paradl:draw_published"),
            _figure("transformer_runs", "transformer", "figures.transformer:draw_runs"),
            _figure("transformer_errors", "transformer", "figures.transformer:draw_errors"),
            _figure("transformer_scaling", "transformer", "figures.transformer:draw_scaling"),
            _figure("timeline", "cell", "timeline.figure:draw_cell"),
            _figure("schedule", "schedule", "timeline.figure:draw_schedule"),
            _figure("split", "sharding", "figures.sharding:draw"),
            _figure("choice", "choice", "figures.choice:draw"),
            _figure("sizes", "sizes", "figures.sizes:draw"),
            _figure("tuning", "tuning", "figures.tuning:draw"),
            _figure("ways_to_choose", "choices", "figures.ways_to_choose:draw"),
        )
    ),
    _of_package,
)


def names_of(*kinds: FigureKind) -> list[str]:
    """Names of all figures of these kinds."""
    return [name for name, entry in FIGURES.items() if entry.kind in kinds]


def figures_for(rows: Rows) -> dict[str, ReportFigure]:
    """The figures that a matrix has something to show in, by the names of their files."""
    every = {name: ReportFigure(name, FIGURES[name]) for name in names_of("experiment")}
    return {name: figure for name, figure in every.items() if figure.entry.applicable(rows)}


def prediction_figures_for(rows: Rows) -> dict[str, ReportFigure]:
    """The figures of predictions that a matrix has something to show in, by names of files."""
    strategies = dict.fromkeys(row.cell.strategy for row in supported(rows))
    predicted = _strategies_with_models()
    every = _prediction_figures(strategy for strategy in strategies if strategy in predicted)
    return {
        name: figure
        for name, figure in every.items()
        if figure.strategy or figure.entry.applicable(rows)
    }


def prediction_figure(name: str, strategies: Iterable[str]) -> ReportFigure:
    """The figure of predictions of a file.

    Raises:
        ConfigError: there is no such figure.
    """
    figures = _prediction_figures(strategies)
    if name not in figures:
        raise ConfigError(
            f"unknown figure of predictions {name!r}; known: {', '.join(names_of('prediction'))}, "
            f"and {' and '.join(f'{one}_<strategy>' for one in names_of('strategy'))} of a "
            "predicted strategy"
        )
    return figures[name]


def _prediction_figures(strategies: Iterable[str]) -> dict[str, ReportFigure]:
    """All of them, those of each strategy last."""
    each = (
        ReportFigure(f"{name}_{_slug(strategy)}", FIGURES[name], strategy)
        for strategy in strategies
        for name in names_of("strategy")
    )
    whole = (ReportFigure(name, FIGURES[name]) for name in names_of("prediction"))
    return {figure.name: figure for figure in (*whole, *each)}


def caption_of(name: str) -> str:
    """The caption of the figure of a file; empty without one."""
    entry = _entry_of(name)
    return entry.caption if entry else ""


def heading_of(name: str) -> str:
    """The heading of the figure of a file; of a figure without a caption, its name."""
    entry = _entry_of(name)
    return (entry.heading if entry else "") or name


def _entry_of(name: str) -> FigureEntry | None:
    """For rules of the workflow, which have a path and no figure."""
    each = (one for one in names_of("strategy") if name.startswith(f"{one}_"))
    return FIGURES[name] if name in FIGURES else next((FIGURES[one] for one in each), None)


def _strategies_with_models() -> set[str]:
    from ddlbench.predict.prediction import modelled_strategies, predictor_of  # noqa: PLC0415

    named: set[str] = set()
    for name in known("ddlbench.predictors"):  # slow to import
        named |= set(modelled_strategies(predictor_of(name)) or ())
    return named


def _slug(strategy: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", strategy.lower())
