"""Recommend a strategy: rank all strategies for one question by what is known of their steps.

::

    network, dataset, nodes x devices, batch
        -> a cell for each strategy                       ddlbench.predict.question
        -> what is known of each cell                     ddlbench.predict.candidate
        -> fastest first, each with its chance            ddlbench.predict.ranking
        -> what to train with, in sentences               ddlbench.predict.advice

A cell that was measured at the site counts as measured. Its prediction stays beside it, and its
error moves what is believed of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.config import Experiment
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.registry import BASE, known
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Reason
from ddlbench.planning.labels import strategy_label
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict.accuracy import errors_at
from ddlbench.predict.candidate import Candidate, Knowledge, assess
from ddlbench.predict.evaluate import departures_of, history_of, outcomes_of
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.question import SETTINGS, Question
from ddlbench.predict.ranking import Ranking, rank
from ddlbench.predict.recommenders import UNLESS_OOM, predictor_for


def recommend(question: Question, known_here: Knowledge) -> Ranking:
    """Rank every registered strategy.

    Args:
        question: the network, the dataset, the devices and the batch.
        known_here: what is known at the site.

    Raises:
        ConfigError: a name is unknown; or nothing is known of any strategy, as the profile or the
            links are missing or wrong.
    """
    question.check_names()
    if known_here.recommender != UNLESS_OOM:
        kind = known_here.site.compute_kind
        predictor_for(known_here.recommender, BASE, kind)  # the name must be known
    candidates = [_candidate(question, name, known_here) for name in known("ddlbench.strategies")]
    if not any(c.belief for c in candidates):
        known_here.inputs.check([candidate.cell for candidate in candidates])
    return rank(candidates, known_here.recommender, by_rule=known_here.recommender == UNLESS_OOM)


def _candidate(question: Question, strategy: str, known_here: Knowledge) -> Candidate:
    try:
        cell = question.cell(strategy)
    except ConfigError as error:
        if strategy in question.options:  # the user wrote what is wrong
            raise
        reason = Reason("unsupported", str(error))
    except Exception as error:
        reason = Reason("fault", f"fault in its code: {type(error).__name__}: {error}")
    else:
        return assess(cell, known_here)
    where = replace(question, options={}, experiment=None).cell(BASE).with_(strategy=strategy)
    return Candidate(where, strategy_label(strategy), reason=reason)


def fitted_options(question: Question, ranking: Ranking) -> dict[str, list[Candidate]]:
    """Candidates whose options were fitted to the geometry and the batch, by these options."""
    found: dict[str, list[Candidate]] = {}
    for candidate in ranking.ranked:
        strategy = candidate.strategy
        written = question.written_options(strategy)
        own = [
            f"{name}={value}"
            for name, value in candidate.cell.options
            if written.get(name, strategy_of(strategy).options.defaults()[name]) != value
            and name != "balance"
        ]
        if own:
            found.setdefault(", ".join(own), []).append(candidate)
    return found


@dataclass(frozen=True)
class DividingBatches:
    """Batches near one that does not divide.

    Args:
        batch_sizes: the nearest below and above that divide.
        more: strategies that can run with one of them, and cannot with the batch of the question.
    """

    batch_sizes: tuple[int, ...]
    more: int


def dividing_batches(
    question: Question, ranking: Ranking, known_here: Knowledge
) -> DividingBatches | None:
    """The nearest batches with which more strategies are compared; None if the batch divides."""
    uneven = [c for c in ranking.not_ranked if c.code in ("uneven_batch", "invalid_schedule")]
    if not uneven:
        return None
    below = question.batch_size // question.devices * question.devices
    near = {below, below + question.devices} - {0, question.batch_size}
    more = {}
    for size in sorted(near):
        other = question.with_batch(size)
        more[size] = sum(_candidate(other, c.strategy, known_here).ranked for c in uneven)
    best = max(more.values(), default=0)
    if not best:
        return None
    return DividingBatches(tuple(size for size in more if more[size] == best), best)


_SIZE = ("dataset", "network", "nodes", "devices_per_node", "batch_size")
_CASE = (*_SIZE, *SETTINGS)


def questions_of(experiment: Experiment, rows: Sequence[MatrixRow]) -> list[Question]:
    """The questions of an experiment: one for each of its cases on several devices."""
    cells = (row.cell for row in rows if row.unsupported is None and row.cell.devices > 1)
    cases = dict.fromkeys(tuple(getattr(cell, name) for name in _CASE) for cell in cells)
    found = []
    accelerator = rows[0].accelerator if rows else None
    for values in cases:
        case = dict(zip(_CASE, values, strict=True))
        size = {name: case[name] for name in _SIZE}
        settings = {name: case[name] for name in SETTINGS}
        found.append(
            Question(
                **size,
                settings=settings,
                options={},
                experiment=experiment,
                accelerator=accelerator,
            )
        )
    return found


def knowledge_of(
    question: Question, inputs: Inputs, site: Site, results_root: Path = RESULTS
) -> Knowledge:
    """What a site knows of a question, with the default recommender."""
    outcomes = outcomes_of(question.dataset, question.network, site.name, results_root)
    return Knowledge(
        site,
        inputs,
        history_of(outcomes, site.name, results_root),
        errors_at(site.name, results_root),
        departures=departures_of(outcomes),
    )
