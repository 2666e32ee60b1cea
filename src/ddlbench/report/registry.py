"""The registry of figures: what draws each, from what, its caption, and which matrix has it.

Whether a matrix has something to show is decided before anything runs. The registry needs neither
results nor matplotlib. Other packages add figures by entry points of the group
``ddlbench.figures``, each a :class:`FigureEntry`. Ours are in ``figures.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ddlbench.common.entry_points import Registry, described, load_target
from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.schema import nearest, read_yaml
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


def some(is_meant: Callable[[MatrixRow], object]) -> Callable[[Rows], bool]:
    """Some supported row is meant."""
    return lambda rows: any(map(is_meant, supported(rows)))


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


def links_vary(quantity: str) -> Callable[[Rows], bool]:
    """Cells over emulated links differ in this quantity of their condition."""

    def applicable(rows: Rows) -> bool:
        conditions = (row.condition for row in supported(rows))
        return len({getattr(c, quantity) for c in conditions if c is not None}) > 1

    return applicable


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


FigureKind = Literal[
    "experiment",
    "prediction",
    "strategy",
    "links",
    "published",
    "cell",
    "schedule",
    "sharding",
    "choice",
    "sizes",
    "tuning",
    "choices",
    "transformer",
    "comparison",
    "sites",
]


@dataclass(frozen=True)
class FigureEntry:
    """One figure.

    Args:
        kind: sets the arguments of the function:

            * ``experiment``: ``Tables``, ``Context``;
            * ``prediction``: ``Predicted``, ``Context``;
            * ``strategy``: ``Predicted``, ``Context``, a strategy's name; there is a figure for
              each predicted strategy, as ``deviation_horovod``;
            * ``links``: ``Links``;
            * ``published``: rows of a measured campaign, a ParaDL platform, their source;
            * ``cell``: a ``CellTimeline``; ``schedule``: a ``Lesson``; ``sharding``: the name of
              one of ParaDL's strategies;
            * ``choice``: the content of choice.json; ``tuning``: that of tuning.json;
            * ``sizes``: what ``ddlbench.predict.largest_batch.sizes_dict`` returns;
            * ``choices``: rows of a study's choices.csv;
            * ``comparison``: a ``Comparison`` of two trees of results;
            * ``sites``: ``Tables`` and ``Context`` of each site;
            * ``transformer``: measured runs, predicted seconds, their source.
        draw: ``module:function``; it returns ``(figure, table of the plotted numbers)``, or only
            the figure if it shows no numbers.
        applicable: whether a matrix has something to show; for the first two kinds.
        caption: for the HTML report: what the figure shows, and what to look at.
    """

    kind: FigureKind
    draw: str
    applicable: Callable[[Rows], bool] = anything_runs
    caption: str = ""

    @property
    def heading(self) -> str:
        """The first sentence of the caption, without its point; empty without a caption."""
        return self.caption.partition("\n\n")[0].partition(". ")[0].rstrip(".")

    def function(self) -> Callable[..., Any]:
        """Import the function that draws it.

        Raises:
            ConfigError: it cannot be imported.
        """
        return load_target("figure", self.draw)


@dataclass(frozen=True)
class ReportFigure:
    """A figure of an experiment, by the name of its files."""

    name: str
    entry: FigureEntry
    strategy: str = ""
    """That it is of, as ``deviation_horovod`` of Horovod."""


def _of_package(name: str, target: str) -> FigureEntry:
    entry = load_target(name, target)
    if not isinstance(entry, FigureEntry):
        raise ConfigError(
            f"figure {name!r}: {target} is {shown(entry)}; write FigureEntry(kind, draw)"
        )
    kinds = get_args(FigureKind)
    if entry.kind not in kinds:
        raise ConfigError(
            f"figure {name!r}: {target} has the kind {shown(entry.kind)}; "
            f"{nearest(entry.kind, kinds)}"
        )
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise ConfigError(f"figure {name!r} ({target}): write a name of a-z, 0-9 and _")
    return entry


_APPLICABLE: Mapping[str, Callable[[Rows], bool]] = {
    "speedup": something_beside_a_base,
    "traffic": some(lambda row: len(row.strategy.placement(row.cell)) > 1),
    "pipelines": pipelines_beside_a_base,
    "loss": long_enough_to_learn,
    "time_to_accuracy": some(lambda row: row.cell.validate),
    "latency": links_vary("latency_s"),
    "bandwidth": links_vary("bandwidth_bits_per_s"),
    "packet_loss": links_vary("loss"),
    "scaling": several_numbers_of_workers,
    "timelines": some(lambda row: row.strategy.family in ("pipeline", "model")),
    "oracle": some(lambda row: row.strategy.parallelism),
    "conditions": has_fabrics,
    "gpipe_step": some(lambda row: row.cell.strategy == "gpipe"),
    "micro_batches": varies_chunks,
}
"""Of the figures of an experiment and of its predictions that some matrices have nothing for."""


def _built_in() -> dict[str, FigureEntry]:
    figures = read_yaml(Path(__file__).with_name("figures.yaml"))
    return {
        name: FigureEntry(
            figure["kind"],
            f"ddlbench.report.{figure['draw']}",
            _APPLICABLE.get(name, anything_runs),
            figure.get("caption", ""),
        )
        for name, figure in figures.items()
    }


FIGURES: Registry[FigureEntry] = Registry("ddlbench.figures", _built_in(), _of_package)


def names_of(*kinds: FigureKind) -> list[str]:
    """Names of all figures of these kinds that can be loaded; :func:`faulty_figures` has others."""
    return [name for name in FIGURES if not _fault(name) and FIGURES[name].kind in kinds]


def faulty_figures() -> list[str]:
    """A sentence for each figure of another package that cannot be loaded."""
    faults = {name: _fault(name, with_function=True) for name in FIGURES.third_party}
    return [left_out_text(name, fault) for name, fault in faults.items() if fault]


def left_out_text(name: str, fault: str) -> str:
    """The sentence for a figure that is left out; it names the figure and its package."""
    whose = described(FIGURES.group, name)
    return f"{fault if whose in fault else f'{whose}: {fault}'}; it is left out"


def _fault(name: str, *, with_function: bool = False) -> str:
    """Why a figure of another package cannot be loaded; empty if it can."""
    if name in FIGURES.built_in:
        return ""
    try:
        entry = FIGURES[name]
        if with_function:  # whose module may import what is slow
            entry.function()
    except ConfigError as error:
        return str(error)
    return ""


def _applies(name: str, rows: Rows) -> bool:
    """Whether a matrix has something to show; one that cannot tell fails where it is drawn."""
    try:
        return bool(FIGURES[name].applicable(rows))
    except Exception:
        if name in FIGURES.built_in:
            raise
        return True


def figures_for(rows: Rows) -> dict[str, ReportFigure]:
    """The figures that a matrix has something to show in, by the names of their files."""
    every = {name: ReportFigure(name, FIGURES[name]) for name in names_of("experiment")}
    return {name: figure for name, figure in every.items() if _applies(name, rows)}


def prediction_figures_for(rows: Rows) -> dict[str, ReportFigure]:
    """The figures of predictions that a matrix has something to show in, by names of files."""
    strategies = dict.fromkeys(row.cell.strategy for row in supported(rows))
    predicted = _strategies_with_models()
    every = _prediction_figures(strategy for strategy in strategies if strategy in predicted)
    return {
        name: figure for name, figure in every.items() if figure.strategy or _applies(name, rows)
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
            f"and {' and '.join(f'{prefix}_<strategy>' for prefix in names_of('strategy'))} of a "
            "predicted strategy"
        )
    return figures[name]


def _prediction_figures(strategies: Iterable[str]) -> dict[str, ReportFigure]:
    """All of them, those of each strategy last."""
    each = (
        ReportFigure(
            f"{name}_{re.sub(r'[^a-z0-9]+', '_', strategy.lower())}", FIGURES[name], strategy
        )
        for strategy in strategies
        for name in names_of("strategy")
    )
    whole = (ReportFigure(name, FIGURES[name]) for name in names_of("prediction"))
    return {figure.name: figure for figure in (*whole, *each)}


def caption_of(name: str) -> str:
    """The caption of the figure of a file, for rules of the workflow; empty without one."""
    entry = _entry_of(name)
    return entry.caption if entry else ""


def heading_of(name: str) -> str:
    """The heading of the figure of a file; of a figure without a caption, its name."""
    entry = _entry_of(name)
    return (entry.heading if entry else "") or name


def _entry_of(name: str) -> FigureEntry | None:
    """For rules of the workflow, which have a path and no figure."""
    each = (prefix for prefix in names_of("strategy") if name.startswith(f"{prefix}_"))
    return FIGURES[name] if name in FIGURES else next((FIGURES[prefix] for prefix in each), None)


def _strategies_with_models() -> set[str]:
    from ddlbench.predict.prediction import (  # noqa: PLC0415 - slow to import
        modelled_strategies,
        predictor_of,
        usable_predictors,
    )

    named: set[str] = set()
    for name in usable_predictors():
        named |= set(modelled_strategies(predictor_of(name)) or ())
    return named
