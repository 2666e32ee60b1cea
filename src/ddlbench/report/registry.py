"""The registry of figures, and which of them an experiment has.

It needs neither results nor matplotlib. Other packages add figures by entry points of the group
``ddlbench.figures``, each a :class:`FigureEntry`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import get_args

from ddlbench.common.entry_points import Registry, load_target
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.registry import known
from ddlbench.report.applicability import (
    Rows,
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
from ddlbench.report.figure_entry import FigureEntry, FigureKind


def _of_package(name: str, target: str) -> FigureEntry:
    """The entry of another package."""
    entry = load_target(name, target)
    if not isinstance(entry, FigureEntry) or entry.kind not in get_args(FigureKind):
        raise ConfigError(f"figure {name!r}: {target} is no FigureEntry of a known kind")
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise ConfigError(f"figure {name!r} ({target}): write a name of a-z, 0-9 and _")
    return entry


_LINK_CAPTION = (
    "Samples a second as the links between nodes get worse in one way, the other conditions "
    "as the footer says. Both axes are logarithmic where they can be. Hollow circles are "
    "numbers that the networking study states of its own cluster.\n\n"
    "Look at slopes: a line that falls by ten where the delay grows by ten waits for round "
    "trips alone. A cross is a cell that ended without a rate, which is a result too."
)

_TRANSFORMER = "ddlbench.report.figures.transformer:draw"

FIGURES: Registry[FigureEntry] = Registry(
    "ddlbench.figures",
    {
        "speedup": FigureEntry(
            "experiment",
            "ddlbench.report.figures.speedup:draw",
            something_beside_a_base,
            caption=(
                "How much faster an epoch is than sequential training on one device of the same "
                "site. One panel a strategy, networks from left to right, datasets as shades; "
                "whiskers are the intervals that the footer names.\n\n"
                "Look at the two lines: a bar below *base* is slower than one device alone, and "
                "*linear* is what perfect scaling would give. Strategies differ only where "
                "their whiskers do not overlap. The footer has the absolute speed of the base, "
                "without which a speed-up says little, and a line under a strategy's name says "
                "what its numbers cannot show on this site."
            ),
        ),
        "memory": FigureEntry(
            "experiment",
            "ddlbench.report.figures.device_bars:draw_memory",
            caption=(
                "Peak memory of the fullest device. A device of a data-parallel strategy holds "
                "the whole network, but only its share of the batch: its activations are fewer, "
                "and its bar may be lower than the sequential one. A network that is split "
                "should be lower, as far as its parts are balanced.\n\n"
                "Look for marks that say OOM: there the bars of the other strategies show what "
                "fits. Where the device's size is known it is a dashed line. On CPUs the bars "
                "are live tensors, as several workers share one memory."
            ),
        ),
        "traffic": FigureEntry(
            "experiment",
            "ddlbench.report.figures.device_bars:draw_traffic",
            something_sent,
            caption=(
                "Bytes that the busiest rank sends in a step. Data parallelism sends gradients, "
                "sharded weights travel as well, and a pipeline sends activations forward and "
                "their gradients back.\n\n"
                "Look at it beside the step: a strategy that sends less and is slower waits for "
                "something else. Many small messages cost more than their bytes say."
            ),
        ),
        "utilisation": FigureEntry(
            "experiment",
            "ddlbench.report.figures.device_bars:draw_utilisation",
            caption=(
                "The share of its devices' measured peak that a step uses for what the network "
                "needs. Recomputation counts as lost, so checkpointing lowers it.\n\n"
                "Look at the base first: what it leaves unused is the network's own, as small or "
                "memory-bound layers. What a strategy lies below the base is its price."
            ),
        ),
        "steps": FigureEntry(
            "experiment",
            "ddlbench.report.figures.steps:draw",
            caption=(
                "Every measured step, not only its median; a step is as long as its slowest "
                "rank. Warm-up steps are left out.\n\n"
                "Look for long whiskers and lone points to the right: stragglers, a slow loader "
                "or a busy machine. Two groups of points in one row are two kinds of steps, for "
                "example with and without a pause of the loader, and a median hides them. A row "
                "marked noisy should be measured again before it is compared."
            ),
        ),
        "pipelines": FigureEntry(
            "experiment",
            "ddlbench.report.figures.pipelines:draw",
            pipelines_beside_a_base,
            caption=(
                "How much of what its own schedule allows each pipeline reaches: the speed-up "
                "of its median step over the bound that equal stages and free messages would "
                "give (1 for model parallelism, the number of devices for PipeDream, less the "
                "bubble for schedules that flush). The table beside has bound, bubble, memory, "
                "and what the thesis measured on its hardware.\n\n"
                "Look at what lies below one: messages, uneven stages, or overhead of each "
                "pass. Above one the base is what is slow."
            ),
        ),
        "loss": FigureEntry(
            "experiment",
            "ddlbench.report.figures.loss:draw",
            long_enough_to_learn,
            caption=(
                "The training loss, by updates on the left and by time on the right. Stale "
                "weights may need more updates for the same loss; whether they are worth it is "
                "decided on the right.\n\n"
                "Look at where each line first meets the dotted one, the lowest loss that all "
                "strategies of the row reach; the table beside has the updates and seconds."
            ),
        ),
        "time_to_accuracy": FigureEntry(
            "experiment",
            "ddlbench.report.figures.time_to_accuracy:draw",
            some_validation,
            caption=(
                "Accuracy on the validation images over the seconds of training, a point an "
                "epoch. Strategies with equal updates pass the same accuracies, each at its own "
                "speed; old weights may need more epochs.\n\n"
                "Look at when each line passes an accuracy, not only at where it ends; the "
                "dotted line is what guessing reaches. Synthetic images are easier than "
                "photographs: what is reached says whether training works."
            ),
        ),
        "latency": FigureEntry(
            "experiment",
            "ddlbench.report.figures.networking:draw_latency",
            links_vary("latency_s"),
            caption=_LINK_CAPTION,
        ),
        "bandwidth": FigureEntry(
            "experiment",
            "ddlbench.report.figures.networking:draw_bandwidth",
            links_vary("bandwidth_bits_per_s"),
            caption=_LINK_CAPTION,
        ),
        "packet_loss": FigureEntry(
            "experiment",
            "ddlbench.report.figures.networking:draw_loss",
            links_vary("loss"),
            caption=_LINK_CAPTION,
        ),
        "scaling": FigureEntry(
            "experiment",
            "ddlbench.report.figures.scaling:draw",
            several_numbers_of_workers,
            caption=(
                "Speed-up over the number of workers, both on logarithmic axes, so that linear "
                "speed-up is the straight dashed line.\n\n"
                "Look at where a line bends away from it: there communication, or the "
                "pipeline's idle time, costs more than another worker brings. Lines join "
                "measured points only along this axis. Crosses at the lower edge are cells "
                "without a point; the footer says why."
            ),
        ),
        "timelines": FigureEntry(
            "experiment",
            "ddlbench.report.timeline.figure:draw",
            some_pipeline,
            caption=(
                "What each device of a pipeline does when: as planned above, as measured below, "
                "over one time axis. Numbers are micro-batches, or mini-batches where these are "
                "not split; planned passes are as long as the same cell's medians, and messages "
                "are free.\n\n"
                "Look at the white between the boxes: above it is the bubble of the schedule, "
                "which every run has; what is white or grey below and not above is waiting for "
                "messages, loading data, or one device that holds up the others."
            ),
        ),
        "accuracy": FigureEntry(
            "prediction",
            "ddlbench.report.figures.accuracy:draw",
            caption=(
                "How far every predictor lies from what was measured, strategy by strategy. A "
                "model that is no better than a hatched baseline adds nothing. No predictor can "
                "be held to less than the dotted line, which is how far repeats of one cell "
                "differ. Look at the points, too: a small mean may hide one cell with a large "
                "error."
            ),
        ),
        "oracle": FigureEntry(
            "prediction",
            "ddlbench.report.figures.paradl:draw_runs",
            has_oracle,
            caption=(
                "The step that ParaDL's equations project beside the measured one, each as "
                "computation and communication: a row a network and dataset, a column a strategy, "
                "a group a geometry.\n\n"
                "Measured communication is the time that ranks wait for each other, a pipeline's "
                "bubble included, which projections count as computation."
            ),
        ),
        "conditions": FigureEntry(
            "prediction",
            "ddlbench.report.figures.conditions:draw",
            has_fabrics,
            caption=(
                "The predicted step beside the measured one under every condition of the links, "
                "from the fastest to the slowest. The footer says which predictions come from "
                "links that were measured under the condition.\n\n"
                "Look at whether the lines rise together: where only the measured one does, the "
                "term of the network is too small."
            ),
        ),
        "gpipe_step": FigureEntry(
            "prediction",
            "ddlbench.report.figures.gpipe_step:draw",
            has_gpipe,
            caption=(
                "When each partition of GPipe computed which micro-batch, in one step after the "
                "timed region. Look at whether partitions compute at the same time at all: the "
                "model assumes that they do. White is idle; compare it with the ideal gap."
            ),
        ),
        "micro_batches": FigureEntry(
            "prediction",
            "ddlbench.report.figures.micro_batches:draw",
            varies_chunks,
            caption=(
                "Measured and predicted time of a sample over the number of micro-batches. More "
                "of them shorten the pipeline's idle time but make each one smaller, and small "
                "ones compute less efficiently. Look at where the measured line turns and "
                "whether the predicted one does."
            ),
        ),
        "deviation": FigureEntry(
            "strategy",
            "ddlbench.report.figures.deviation:draw",
            caption=(
                "Deviation of each predictor from the measured step, by network and dataset; "
                "below zero the prediction is too short. Hollow marks are values printed in the "
                "thesis, of other machines: compare their sign and pattern, not their size. "
                "Bars that all lean to one side mean that the model lacks a term; the figure of "
                "parts shows which."
            ),
        ),
        "parts": FigureEntry(
            "strategy",
            "ddlbench.report.figures.step_parts:draw",
            caption=(
                "What each predictor says a step is made of, beside the measured step. Compare "
                "the predicted compute with the dashed line, and the rest of the predicted bar "
                "with what of the measured bar lies above it: that tells which term of a model "
                "is wrong."
            ),
        ),
        "links": FigureEntry("links", "ddlbench.report.figures.links:draw_links"),
        "sweeps": FigureEntry("links", "ddlbench.report.figures.links:draw_sweeps"),
        "oracle_published": FigureEntry(
            "published", "ddlbench.report.figures.paradl:draw_published"
        ),
        "transformer_runs": FigureEntry("transformer", f"{_TRANSFORMER}_runs"),
        "transformer_errors": FigureEntry("transformer", f"{_TRANSFORMER}_errors"),
        "transformer_scaling": FigureEntry("transformer", f"{_TRANSFORMER}_scaling"),
        "timeline": FigureEntry("cell", "ddlbench.report.timeline.figure:draw_cell"),
        "schedule": FigureEntry("schedule", "ddlbench.report.timeline.figure:draw_schedule"),
        "split": FigureEntry("sharding", "ddlbench.report.figures.sharding:draw"),
        "choice": FigureEntry(
            "choice",
            "ddlbench.report.figures.choice:draw",
            caption=(
                "Which strategy is the fastest?\n\n"
                "One panel a case, one row a strategy that can run there, the fastest above; the "
                "recommended one is bold. Grey lines hold the predicted step in 90 % of cases, "
                "coloured ones the measured step.\n\n"
                "Look at lines that overlap: there the order is not sure. A higher speed-up that "
                "is not advised has the reason beside it."
            ),
        ),
        "sizes": FigureEntry("sizes", "ddlbench.report.figures.sizes:draw"),
        "tuning": FigureEntry("tuning", "ddlbench.report.figures.tuning:draw"),
        "ways_to_choose": FigureEntry("choices", "ddlbench.report.figures.ways_to_choose:draw"),
    },
    _of_package,
)


def names_of(*kinds: FigureKind) -> list[str]:
    """Names of all figures of these kinds."""
    return [name for name, entry in FIGURES.items() if entry.kind in kinds]


def figures_for(rows: Rows) -> list[str]:
    """Names of the figures that a matrix has something to show in."""
    return [name for name in names_of("experiment") if FIGURES[name].applicable(rows)]


def prediction_figures_for(rows: Rows) -> list[str]:
    """Names of the figures of predictions that a matrix has something to show in."""
    strategies = dict.fromkeys(row.cell.strategy for row in supported(rows))
    predicted = _strategies_with_models()
    return [
        *(name for name in names_of("prediction") if FIGURES[name].applicable(rows)),
        *(
            f"{name}_{_slug(strategy)}"
            for strategy in strategies
            if strategy in predicted
            for name in names_of("strategy")
        ),
    ]


def prediction_figure(name: str, strategies: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Find a figure of predictions by a name of :func:`prediction_figures_for`.

    Returns:
        its name in :data:`FIGURES`, and its strategy if it has one.

    Raises:
        ConfigError: there is no such figure.
    """
    whole, each = names_of("prediction"), names_of("strategy")
    if name in whole:
        return name, ()
    for one in each:
        for strategy in strategies:
            if name == f"{one}_{_slug(strategy)}":
                return one, (strategy,)
    raise ConfigError(
        f"unknown figure of predictions {name!r}; known: {', '.join(whole)}, and "
        f"{' and '.join(f'{one}_<strategy>' for one in each)} of a predicted strategy"
    )


def figures_by_strategy(
    names: Sequence[str], strategies: Sequence[str]
) -> dict[str, list[tuple[str, str]]]:
    """Those of the figures that there are for each strategy.

    Returns:
        by its name in :data:`FIGURES`: the figures' names, each with its strategy.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for one in names_of("strategy"):
        for strategy in strategies:
            name = f"{one}_{_slug(strategy)}"
            if name in names:
                groups.setdefault(one, []).append((name, strategy))
    return groups


def caption_of(name: str) -> str:
    """The caption of a figure in the HTML report, by the name of its file."""
    if name in FIGURES:
        return FIGURES[name].caption
    each = (one for one in names_of("strategy") if name.startswith(f"{one}_"))
    return next((FIGURES[one].caption for one in each), "")


def heading_of(name: str) -> str:
    """The first sentence of a figure's caption, without its point; without one, the name."""
    return caption_of(name).partition("\n\n")[0].partition(". ")[0].rstrip(".") or name


def _strategies_with_models() -> set[str]:
    from ddlbench.predict.prediction import modelled_strategies, predictor_of  # noqa: PLC0415

    named: set[str] = set()
    for name in known("ddlbench.predictors"):  # slow to import
        named |= set(modelled_strategies(predictor_of(name)) or ())
    return named


def _slug(strategy: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", strategy.lower())
