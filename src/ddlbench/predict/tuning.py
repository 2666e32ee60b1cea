"""Tune a strategy's options: the predictor is the prior, short cells are the truth.

::

    predict all --> ask: greatest expected gain --> measure: a short cell --> tell --.
                      ^                                                              |
                      '---- its error moves what is believed of the others <---------'

The expected gain of a configuration is its expected improvement (Jones et al. 1998, eq. 15). Where
it takes ``x`` seconds a sample, and the best measured configuration takes ``b``::

    E[max(0, log b - log x)] = s (z Phi(z) + phi(z)),    z = (log b - log m) / s

with the median m and the spread s of the belief about x. The search ends when no configuration is
expected to gain half a percent.

Trials are kept in a study of Optuna. Its samplers may replace this rule, to compare with it. Each
trial is an ordinary cell at its ordinary path: nothing is measured twice, and a search that was
killed goes on where it was.

A strategy has these configurations::

    values of each option that varies  -> product -> cells -> cannot run | does not fit | predicted

An option varies if its schema names ``examples`` (values that are worth a try), or if the user
names values for it. ``batch_size`` may vary too, so configurations are compared by seconds a
sample.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from scipy.stats import norm

from ddlbench.common.document import Document
from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import nearest
from ddlbench.experiment.cell import Cell, OptionValue, setting_text
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.result import Glance
from ddlbench.experiment.status import Status
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict.candidate import Knowledge, assess
from ddlbench.predict.documents import VERSION, TuningFile
from ddlbench.predict.prediction import History, steps_measured
from ddlbench.predict.question import Question
from ddlbench.predict.ranking import Belief, Candidate, from_runs, informed
from ddlbench.predict.recommend import Limits, NotMeasured, Trial, device_s_all, short_cell

if TYPE_CHECKING:
    import optuna

Values = Mapping[str, OptionValue]

BATCH_SIZE = "batch_size"
# Correlation of the errors of two predictions that differ in one option; an assumption.
_ONE_OPTION = 0.85
_MOST = 2000


@dataclass(frozen=True)
class Configuration:
    """One cell to choose from; ``values`` has everything that varies, defaults included."""

    values: Values
    candidate: Candidate

    @property
    def cell(self) -> Cell:
        return self.candidate.cell

    @property
    def expected(self) -> Belief | None:
        """Seconds a sample by the prediction; None if it cannot run or has no prediction."""
        step = self.candidate.expected
        return None if step is None else replace(step, step_s=step.step_s / self.cell.batch_size)

    @property
    def memory_bytes(self) -> int | None:
        return self.candidate.memory_bytes

    @property
    def why(self) -> str:
        """Why it is left out; empty if it is not."""
        return str(self.candidate.reason)

    @property
    def label(self) -> str:
        """``chunks=8 balance=work``."""
        return " ".join(f"{name}={setting_text(value)}" for name, value in self.values.items())

    def runs(self, history: History) -> tuple[float, ...]:
        """Seconds a sample of each of its runs at the site."""
        steps_s = steps_measured(history, self.cell)
        return tuple(step_s / self.cell.batch_size for step_s in steps_s)


def varied(
    strategy: str, named: Mapping[str, Sequence[OptionValue]], fixed: Mapping[str, Any]
) -> dict[str, tuple[OptionValue, ...]]:
    """Name -> values: those the user named, else every option with examples that is not fixed.

    Raises:
        ConfigError: the strategy has no such option, or there is nothing to vary.
    """
    options = strategy_of(strategy).options.schemas()
    for name in named:
        if name != BATCH_SIZE and name not in options:
            remark = nearest(name, [BATCH_SIZE, *options])
            raise ConfigError(f"--vary {name}: {strategy} has no such option; {remark}")
        if name in fixed:
            raise ConfigError(f"--vary {name} and --option {strategy}.{name} exclude each other")
    if named:
        return {name: tuple(dict.fromkeys(values)) for name, values in named.items()}
    values_by_name = {
        name: tuple(dict.fromkeys((schema["default"], *schema["examples"])))
        for name, schema in options.items()
        if "examples" in schema and name not in fixed
    }
    if not values_by_name:
        raise ConfigError(
            f"{strategy} has no option that is worth tuning; name one with --vary, as "
            f"{BATCH_SIZE}=16,32,64"
        )
    return values_by_name


def configurations(
    question: Question, strategy: str, values: Mapping[str, Sequence[OptionValue]], known: Knowledge
) -> list[Configuration]:
    """Every configuration, predicted; what cannot run, does not fit or has no profile says why.

    Raises:
        ConfigError: a value is wrong, or there are too many.
    """
    count = int(np.prod([len(choices) for choices in values.values()]))
    if count > _MOST:
        raise ConfigError(
            f"{count} configurations are more than {_MOST}; vary fewer options (--vary)"
        )
    cells: dict[str, tuple[Values, Cell]] = {}
    for chosen in itertools.product(*values.values()):
        values_chosen = dict(zip(values, chosen, strict=True))
        cell = _cell(question, strategy, values_chosen)
        cells.setdefault(cell.id, (values_chosen, cell))
    base = assess(question.cell(BASE), known)
    return [
        Configuration(values_chosen, _limited(cell, base, known))
        for values_chosen, cell in cells.values()
    ]


def _limited(cell: Cell, base: Candidate, known: Knowledge) -> Candidate:
    alone = base
    if cell.batch_size != base.cell.batch_size:
        alone = assess(base.cell.with_(batch_size=cell.batch_size), known)
    return assess(cell, known).limited(alone)


def _cell(question: Question, strategy: str, values: Values) -> Cell:
    options = {**question.written_options(strategy), **values}
    batch_size = options.pop(BATCH_SIZE, question.batch_size)
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ConfigError(f"{BATCH_SIZE} {batch_size!r}: write whole numbers from 1 on")
    written = {**question.options, strategy: options}
    return replace(question, batch_size=batch_size, options=written).cell(strategy)


def error_correlation(configurations: Sequence[Configuration]) -> np.ndarray:
    """Correlation of the errors of their predictions, by how many options differ; (n, n)."""
    differing = np.zeros((len(configurations), len(configurations)))
    for name in configurations[0].values if configurations else ():
        column = np.array([str(configuration.values[name]) for configuration in configurations])
        differing += column[:, None] != column[None, :]
    matrix: np.ndarray = _ONE_OPTION**differing
    return matrix


WORTH = 0.005
BY_PREDICTOR = "predictor"
SAMPLERS = (BY_PREDICTOR, "tpe", "random")
_SEED = 0
_ASKS = 200  # of a sampler that repeats itself or asks for what cannot run


_DOCUMENT = Document(TuningFile, VERSION, "tuning", ConfigError)


@dataclass
class Tuning:
    """What was searched, and what was found."""

    configurations: Sequence[Configuration]
    history: History
    trials: list[Trial] = field(default_factory=list)
    stopped: str = ""

    @property
    def eligible(self) -> list[Configuration]:
        """Configurations that may be the best: they run and fit, as far as is known."""
        failed = {trial.cell_id for trial in self.trials if trial.status != Status.OK}
        too_large_bytes = self._too_large_bytes()
        return [
            configuration
            for configuration in self.configurations
            if configuration.expected is not None
            and not configuration.why
            and short_cell(configuration.cell).id not in failed
            and (configuration.memory_bytes is None or configuration.memory_bytes < too_large_bytes)
        ]

    def _too_large_bytes(self) -> float:
        """The least predicted memory of a trial that did not fit; infinite without such a trial."""
        failed = {trial.cell_id for trial in self.trials if trial.status == Status.OUT_OF_MEMORY}
        return min(
            (
                configuration.memory_bytes
                for configuration in self.configurations
                if configuration.memory_bytes is not None
                and short_cell(configuration.cell).id in failed
            ),
            default=math.inf,
        )

    def beliefs(self) -> list[tuple[Configuration, Belief]]:
        """Seconds a sample of what may be the best, the fastest first."""
        running = self.eligible
        measured = {
            place: from_runs(runs)
            for place, configuration in enumerate(running)
            if (runs := configuration.runs(self.history))
        }
        expected = [c.expected for c in running if c.expected is not None]
        known = informed(expected, measured, error_correlation(running))
        return sorted(zip(running, known, strict=True), key=lambda pair: pair[1].step_s)

    @property
    def best(self) -> tuple[Configuration, Belief] | None:
        """The fastest that was measured; before any was, the fastest by its prediction."""
        known = self.beliefs()
        measured = [pair for pair in known if pair[1].basis == "measured"]
        return next(iter(measured or known), None)

    @property
    def device_s(self) -> float:
        return sum(trial.device_s for trial in self.trials)

    def device_s_all(self) -> float | None:
        """What an exhaustive sweep would cost; None if nothing was measured."""
        tried = {trial.cell_id for trial in self.trials}
        others = [
            belief.step_s * configuration.cell.batch_size
            for configuration, belief in self.beliefs()
            if short_cell(configuration.cell).id not in tried
        ]
        devices = max(
            (configuration.cell.devices for configuration in self.configurations), default=0
        )
        return device_s_all(self.trials, others, devices)

    def to_dict(self, site: str, case: Mapping[str, Any]) -> dict[str, Any]:
        best = self.best
        return {
            "schema_version": VERSION,
            "site": site,
            "case": dict(case),
            "best": _entry(*best) if best else None,
            "stopped": self.stopped,
            "trials": [vars(trial) for trial in self.trials],
            "configurations": [
                _entry(configuration, belief) for configuration, belief in self.beliefs()
            ],
            "left_out": [
                {"values": dict(configuration.values), "why": configuration.why}
                for configuration in self.configurations
                if configuration.why
            ],
            "device_s": self.device_s,
            "device_s_all": self.device_s_all(),
        }


def _entry(configuration: Configuration, belief: Belief) -> dict[str, Any]:
    assert configuration.expected is not None
    return {
        "values": dict(configuration.values),
        "cell_id": configuration.cell.id,
        "basis": belief.basis,
        "samples_per_s": 1 / belief.step_s,
        "interval_samples_per_s": [1 / bound for bound in reversed(belief.interval_s)],
        "predicted_samples_per_s": 1 / configuration.expected.step_s,
        "predicted_interval_samples_per_s": [
            1 / bound for bound in reversed(configuration.expected.interval_s)
        ],
        "memory_bytes": configuration.memory_bytes,
    }


def gain(belief: Belief, best_s: float) -> float:
    """Expected gain of a predicted configuration, as a share of the best measured one.

    Both are in seconds a sample. The module has the equation.
    """
    ahead = math.log(best_s / belief.step_s)
    z = ahead / belief.spread
    return float(belief.spread * (z * norm.cdf(z) + norm.pdf(z)))


def next_of(tuning: Tuning) -> tuple[Configuration, float] | None:
    """What to measure next, and its expected gain; None if all are measured.

    The first is the fastest by its prediction.
    """
    known = tuning.beliefs()
    predicted = [pair for pair in known if pair[1].basis == "predicted"]
    if not predicted:
        return None
    measured = [belief.step_s for _, belief in known if belief.basis == "measured"]
    if not measured:
        return predicted[0][0], math.inf
    gains = [(configuration, gain(belief, min(measured))) for configuration, belief in predicted]
    return max(gains, key=lambda pair: pair[1])


def tune(
    configurations: Sequence[Configuration],
    history: Callable[[], History],
    measure: Callable[[Cell], Glance | None],
    limits: Limits,
    done: Callable[[Cell], Glance | None],
    *,
    sampler: str = BY_PREDICTOR,
) -> Tuning:
    """Measure configurations until none is worth it, or a limit is reached.

    Args:
        configurations: those to choose from.
        history: the measured cells of the site now.
        measure: measures a cell.
        limits: when to stop.
        done: the result of a cell that was measured before, for instance by a search that was
            killed; it counts as one of this search.
        sampler: one of :data:`SAMPLERS`; with all but the first, only limits end the search.
    """
    tuning, study = Tuning(configurations, history()), _Study(configurations, sampler)
    for configuration in tuning.eligible:
        if (before := done(short_cell(configuration.cell))) is not None:
            tuning.trials.append(Trial.of(before.cell, before))
            study.tell(study.enqueued(configuration), before)
    while True:
        following = next_of(tuning)
        least = WORTH if sampler == BY_PREDICTOR else -math.inf
        tuning.stopped = _reason(tuning, following, limits, least)
        if tuning.stopped or following is None:
            return tuning
        chosen = study.ask(tuning, following[0])
        if chosen is None:
            tuning.stopped = f"the sampler {sampler} asks for nothing new"
            return tuning
        configuration, trial = chosen
        cell = short_cell(configuration.cell)
        try:
            ended = measure(cell)
        except NotMeasured as error:  # says nothing of the options
            tuning.stopped = str(error)
            return tuning
        study.tell(trial, ended)
        tuning.trials.append(Trial.of(cell, ended))
        tuning.history = history()


def _reason(
    tuning: Tuning, following: tuple[Configuration, float] | None, limits: Limits, least: float
) -> str:
    if tuning.best is None:
        return "no configuration can run"
    if following is None:
        return "every configuration is measured"
    if following[1] < least:
        return f"no other configuration is expected to gain {least:.1%}"
    return limits.reached(tuning.trials)


class _Study:
    """Trials as Optuna keeps them: values of what varies, and samples a second or failure."""

    def __init__(self, configurations: Sequence[Configuration], sampler: str) -> None:
        import optuna  # noqa: PLC0415 - slow to import

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._failed = optuna.trial.TrialState.FAIL
        self._by_predictor = sampler == BY_PREDICTOR
        self._by_values = {
            tuple(configuration.values.items()): configuration for configuration in configurations
        }
        names = list(configurations[0].values) if configurations else []
        self._space = {
            name: optuna.distributions.CategoricalDistribution(
                list(dict.fromkeys(configuration.values[name] for configuration in configurations))
            )
            for name in names
        }
        tpe = sampler == "tpe"
        sampler_class = optuna.samplers.TPESampler if tpe else optuna.samplers.RandomSampler
        self._study = optuna.create_study(direction="maximize", sampler=sampler_class(seed=_SEED))

    def enqueued(self, configuration: Configuration) -> optuna.Trial:
        """A trial of this configuration, whatever the sampler."""
        self._study.enqueue_trial(dict(configuration.values))
        return self._study.ask(self._space)

    def ask(
        self, tuning: Tuning, following: Configuration
    ) -> tuple[Configuration, optuna.Trial] | None:
        """What to measure: ``following``, or what Optuna's sampler proposes.

        None if the sampler proposes nothing that is new and can run.
        """
        if self._by_predictor:
            return following, self.enqueued(following)
        tried = {trial.cell_id for trial in tuning.trials}
        running = tuning.eligible
        for _ in range(_ASKS):
            trial = self._study.ask(self._space)
            configuration = self._by_values.get(tuple(trial.params.items()))
            if (
                configuration is not None
                and configuration in running
                and short_cell(configuration.cell).id not in tried
            ):
                return configuration, trial
            self._study.tell(trial, state=self._failed)
        return None

    def tell(self, trial: optuna.Trial, ended: Glance | None) -> None:
        """Record how a trial ended; None if it left no result."""
        if ended is not None and ended.status == Status.OK and ended.step_s:
            self._study.tell(trial, ended.cell.batch_size / ended.step_s)
        else:
            self._study.tell(trial, state=self._failed)


def tuning_file(site: str, case_id: str, results_root: Path = RESULTS) -> Path:
    """Where a search is kept."""
    return results_root / site / "tunings" / case_id / "tuning.json"


def write_tuning(tuning: Tuning, site: str, case: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Check and write a search atomically; return the file's content."""
    content = tuning.to_dict(site, case)
    _DOCUMENT.write(path, cast("TuningFile", content))
    return content
