"""Recommend a strategy for a question, by what is known of the steps or by measuring a few.

::

    network, dataset, nodes x devices, batch
        -> cells of each strategy                         ddlbench.predict.question
        -> what is known of each cell                     ddlbench.predict.candidate
        -> the fastest cell of each strategy              here
        -> fastest first, each with its chance            ddlbench.predict.ranking
        -> what to train with, in sentences               ddlbench.predict.advice

A cell that was measured at the site counts as measured. Its prediction stays beside it, and its
error moves what is believed of the others.

To choose is to measure the most probable candidates until one is surely the fastest::

    rank --> sure (95 %)? budget spent? K measured? --yes--> choice.json
      ^                       | no
      |        measure the likeliest candidate that is only predicted
      `-------- one short cell, an ordinary one ---------'

A cell that ends without a step (out of memory, timeout) takes its strategy out. Cells lie where
every cell lies, so nothing is measured twice: a choice that was killed goes on where it was, and an
experiment finds them there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from ddlbench.common.document import Document
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import HOURS, counted
from ddlbench.experiment.cell import Cell, setting_text
from ddlbench.experiment.config import Experiment
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.paths import RESULTS, result_file
from ddlbench.experiment.registry import BASE, known
from ddlbench.experiment.result import Glance, glance
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Reason, Status
from ddlbench.planning.labels import strategy_label
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict.accuracy import errors_at
from ddlbench.predict.candidate import Knowledge, assess, check_askable
from ddlbench.predict.documents import VERSION, ChoiceFile
from ddlbench.predict.evaluate import departures_of, divergences_of, history_of, outcomes_of
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.prediction import UNLESS_OOM, predictor_for
from ddlbench.predict.question import SETTINGS, Question
from ddlbench.predict.ranking import Candidate, Ranking, rank


def recommend(question: Question, known_here: Knowledge) -> Ranking:
    """Rank every registered strategy.

    Raises:
        ConfigError: a name is unknown; or nothing is known of any strategy, as the profile or the
            links are missing or wrong.
    """
    question.check_names()
    if known_here.recommender != UNLESS_OOM:
        kind = known_here.site.compute_kind
        predictor_for(known_here.recommender, BASE, kind)  # the name must be known
    candidates = [candidate_of(question, name, known_here) for name in known("ddlbench.strategies")]
    if not any(c.belief for c in candidates):
        check_askable([candidate.cell for candidate in candidates], known_here)
    return rank(candidates, known_here.recommender, by_rule=known_here.recommender == UNLESS_OOM)


def candidate_of(question: Question, strategy: str, known_here: Knowledge) -> Candidate:
    """One strategy with its fastest options; what is wrong with it is its reason.

    Raises:
        ConfigError: an option that the user wrote is unknown, or has an invalid value.
    """
    try:
        cells = question.cells(strategy)
    except ConfigError as error:
        if strategy in question.options:  # the user wrote what is wrong
            raise
        reason = Reason("unsupported", str(error))
    except Exception as error:
        reason = Reason("fault", f"fault in its code: {type(error).__name__}: {error}")
    else:
        fastest = _fastest_of([assess(cell, known_here) for cell in cells])
        if fastest.code != "too_large" or not known_here.by_runs:
            return fastest
        smaller = (assess(cell, known_here) for cell in question.smaller_cells(strategy))
        small = next((candidate for candidate in smaller if candidate.ranked), fastest)
        again = question.recomputing(strategy)
        if again is None:
            return small
        return _fastest_of([small, candidate_of(again, strategy, known_here)])
    where = replace(question, options={}, experiment=None).cell(BASE).with_(strategy=strategy)
    return Candidate(where, strategy_label(strategy), reason=reason)


_AS_FAST = 1.01
"""Of options whose steps differ by less, the first are taken: no prediction is so exact."""


def _fastest_of(settings: Sequence[Candidate]) -> Candidate:
    """One strategy's fastest options: by runs where there are any, else by predictions."""
    usable = [(c, c.belief.step_s) for c in settings if c.belief and c.ranked]
    usable = [(c, step_s) for c, step_s in usable if c.basis == "measured"] or usable
    least_s = min((step_s for _, step_s in usable), default=0.0)
    return next((c for c, step_s in usable if step_s <= _AS_FAST * least_s), settings[0])


def fitted_options(question: Question, ranking: Ranking) -> dict[str, list[Candidate]]:
    """Candidates whose options were fitted to the geometry and the batch, by these options."""
    by_options: dict[str, list[Candidate]] = {}
    for candidate in ranking.ranked:
        if options := unwritten_options(question, candidate.cell):
            by_options.setdefault(options, []).append(candidate)
    return by_options


def unwritten_options(question: Question, cell: Cell) -> str:
    """``chunks=8``: the options of a cell that are no defaults, and that nobody wrote."""
    written = question.written_options(cell.strategy)
    defaults = strategy_of(cell.strategy).options.defaults()
    return ", ".join(
        f"{name}={setting_text(value)}"
        for name, value in cell.options
        if written.get(name, defaults[name]) != value and name != "balance"
    )


def dividing_batches(
    question: Question, ranking: Ranking, known_here: Knowledge
) -> tuple[tuple[int, ...], int]:
    """The nearest batches with which more strategies are compared, and how many more they are."""
    uneven = [c for c in ranking.not_ranked if c.code in ("uneven_batch", "invalid_schedule")]
    if not uneven:
        return (), 0
    below = question.batch_size // question.devices * question.devices
    near = {below, below + question.devices} - {0, question.batch_size}
    more = {}
    for size in sorted(near):
        other = question.with_batch(size)
        more[size] = sum(candidate_of(other, c.strategy, known_here).ranked for c in uneven)
    best = max(more.values(), default=0)
    return tuple(size for size in more if best and more[size] == best), best


_SIZE = ("dataset", "network", "nodes", "devices_per_node", "batch_size")
_CASE = (*_SIZE, *SETTINGS)


def questions_of(experiment: Experiment, rows: Sequence[MatrixRow]) -> list[Question]:
    """The questions of an experiment: one for each of its cases on several devices."""
    cells = (row.cell for row in rows if row.unsupported is None and row.cell.devices > 1)
    cases = dict.fromkeys(tuple(getattr(cell, name) for name in _CASE) for cell in cells)
    accelerator = rows[0].accelerator if rows else None
    return [
        Question(
            **dict(zip(_SIZE, values, strict=False)),
            settings=dict(zip(SETTINGS, values[len(_SIZE) :], strict=True)),
            options={},
            experiment=experiment,
            accelerator=accelerator,
        )
        for values in cases
    ]


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
        divergences=divergences_of(outcomes),
    )


SURE = 0.95
_WARMUP_STEPS, _STEPS = 2, 10
_NO_CHANCE = 0.005


_DOCUMENT = Document(ChoiceFile, VERSION, "choice", ConfigError)


def short_cell(cell: Cell) -> Cell:
    """A cell of the same work a step, with few steps and no more data than they need."""
    samples = (_WARMUP_STEPS + _STEPS) * cell.batch_size
    scale = ceil(1000 * samples / DATASETS[cell.dataset].num_train) / 1000
    return cell.with_(
        epochs=1, warmup_steps=_WARMUP_STEPS, max_steps=_STEPS, data_scale=min(1.0, scale), repeat=0
    )


@dataclass(frozen=True)
class Limits:
    """When to stop.

    Most candidates that are measured, and most seconds of devices.
    """

    cells: int
    device_s: float | None = None

    def reached(self, trials: Sequence[Trial]) -> str:
        """Which limit these trials have reached; empty for none."""
        if len(trials) >= self.cells:
            return f"{counted(len(trials), 'cell')} tried, now or before, of at most {self.cells}"
        spent_s = sum(trial.device_s for trial in trials)
        if self.device_s is not None and spent_s >= self.device_s:
            return f"{HOURS.of(spent_s):.2g} device-hours are spent"
        return ""


@dataclass(frozen=True)
class Trial:
    """A candidate that was measured for this choice.

    Args:
        strategy: its name.
        cell_id: of the short cell.
        status: how it ended.
        step_s: mean of its steps; None where none was timed.
        device_s: seconds of the cell times its devices.
    """

    strategy: str
    cell_id: str
    status: str
    step_s: float | None
    device_s: float

    @classmethod
    def of(cls, cell: Cell, ended: Glance | None) -> Trial:
        """How a cell ended; None if it left no result."""
        if ended is None:
            return cls(cell.strategy, cell.id, NOT_MEASURED, None, 0.0)
        device_s = ended.elapsed_s * cell.devices
        return cls(cell.strategy, ended.cell.id, str(ended.status), ended.step_s, device_s)


@dataclass
class Choice:
    """What was chosen, and what it cost."""

    ranking: Ranking
    trials: list[Trial] = field(default_factory=list)
    stopped: str = ""

    @property
    def device_s(self) -> float:
        return sum(trial.device_s for trial in self.trials)

    def device_s_all(self) -> float | None:
        """What measuring every candidate would cost; None if nothing was measured."""
        measured = {trial.strategy for trial in self.trials}
        devices = max((c.cell.devices for c in self.ranking.candidates), default=0)
        others = [self.ranking.step_s(c) for c in self.ranking.ranked if c.strategy not in measured]
        return device_s_all(self.trials, others, devices)

    def to_dict(self, site: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        """The content of choice.json; the answer is that of the ranking."""
        return {
            **answers_dict(site, [answer]),
            "stopped": self.stopped,
            "trials": [vars(trial) for trial in self.trials],
            "device_s": self.device_s,
            "device_s_all": self.device_s_all(),
        }


def answers_dict(site: str, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The content of choice.json where nothing was measured for the answers."""
    return {
        "schema_version": VERSION,
        "site": site,
        "answers": [dict(answer) for answer in answers],
        "stopped": "",
        "trials": [],
        "device_s": 0.0,
        "device_s_all": None,
    }


def device_s_all(trials: Sequence[Trial], others_s: Sequence[float], devices: int) -> float | None:
    """Device-seconds of the trials and of a short cell of each of the others.

    ``others_s`` are steps of what was not measured; each takes as long to start as the trials did
    on average.

    Returns:
        None if nothing was measured.
    """
    if not trials:
        return None
    steps = _WARMUP_STEPS + _STEPS
    starts = [
        trial.device_s - devices * steps * trial.step_s
        for trial in trials
        if trial.step_s is not None
    ]
    start_s = max(0.0, fmean(starts)) if starts else 0.0
    spent = sum(trial.device_s for trial in trials)
    return spent + sum(start_s + devices * steps * step_s for step_s in others_s)


def choose(
    rank: Callable[[], Ranking],
    measure: Callable[[Cell], Glance | None],
    limits: Limits,
    done: Callable[[Cell], Glance | None],
    cell_of: Callable[[Cell], Cell] = short_cell,
) -> Choice:
    """Measure candidates until the choice is sure, or a limit is reached.

    Args:
        rank: the ranking by all that is measured now.
        measure: measures a cell; None if that failed, which ends this candidate only. It raises
            NotMeasured if the workflow did not begin the cell, which ends the choice.
        limits: when to stop.
        done: the result of a cell that was measured before, for instance by a choice that was
            killed; it counts as one of this choice.
        cell_of: the cell that is measured for a candidate's cell.
    """
    choice = Choice(rank())
    failed: set[str] = set()
    for candidate in choice.ranking.candidates:
        if candidate.strategy != BASE:
            known = done(cell_of(candidate.cell))
            if known is not None:
                _keep(choice, candidate.cell, known, failed)
    while True:
        choice.ranking = rank().without(failed)
        likeliest = likeliest_of(choice.ranking, [trial.strategy for trial in choice.trials])
        choice.stopped = _reason(choice, likeliest, limits)
        if choice.stopped or likeliest is None:
            return choice
        try:
            result = measure(cell_of(likeliest.cell))
        except NotMeasured as error:  # says nothing of the strategy
            choice.stopped = str(error)
            return choice
        _keep(choice, likeliest.cell, result, failed)


class NotMeasured(ConfigError):  # noqa: N818 - an end of measuring, shown as such
    """The workflow ended before a cell began; the message says what to do."""


NOT_MEASURED = "not measured"
"""Status of a trial whose cell left no result: its job failed, or was not submitted."""


def _keep(choice: Choice, cell: Cell, result: Glance | None, failed: set[str]) -> None:
    if result is None or result.status != Status.OK:
        failed.add(cell.strategy)
    choice.trials.append(Trial.of(cell, result))


def likeliest_of(ranking: Ranking, tried: Collection[str] = ()) -> Candidate | None:
    """The candidate that is only predicted and is most probably the fastest; None if all are known.

    One that can gain nothing need not be measured: one device does the same. One that the site is
    too small for cannot be.
    """
    predicted = [
        c
        for c in ranking.ranked
        if c.basis == "predicted" and c.strategy not in (BASE, *tried) and not c.beyond
    ]
    best = max(predicted, key=lambda c: c.chance or 0.0, default=None)
    return best if best is not None and (best.chance or 0.0) >= _NO_CHANCE else None


def _reason(choice: Choice, likeliest: Candidate | None, limits: Limits) -> str:
    best = choice.ranking.best
    if best is None:
        return "no candidate can run"
    if (best.chance or 0.0) >= SURE:
        return f"{best.label} is the fastest with a chance of {best.chance:.0%}"
    if likeliest is None:
        small = any(c.beyond for c in choice.ranking.ranked)
        why = "the site is too small to measure the others"
        return why if small else "no other candidate has a chance of half a percent"
    return limits.reached(choice.trials)


def result_of(cell: Cell, site: str) -> Glance | None:
    """The result of a cell, if it has a readable one."""
    return glance(result_file(site, cell.id), site, cell.id)


def choice_file(site: str, case_id: str, results_root: Path = RESULTS) -> Path:
    """Where a choice is kept."""
    return results_root / site / "choices" / case_id / "choice.json"


def write_choice(content: Mapping[str, Any], path: Path) -> None:
    """Check and write a choice file atomically."""
    _DOCUMENT.write(path, cast("ChoiceFile", content))


def read_choice(path: Path) -> ChoiceFile:
    """The content of a choice file.

    Raises:
        ConfigError: it is missing, or is not of its form.
    """
    return _DOCUMENT.read(path)
