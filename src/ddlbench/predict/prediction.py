"""The input and the output of a predictor, and which predictor a recommender uses.

::

    recommender      strategy     device        predictor
    ddlbench         any          any           ddlbench, or that of another package
    measured-links   ddp          cpu           the descriptor's preferred_predictor["cpu"]
    measured-links   gpipe        emulated      ... ["emulated"]; ["cpu"] where there is none
    overlap          ddp          any           the descriptor's preferred_predictor["cuda"]
    thesis           horovod      any           the descriptor's recommended_by["thesis"]
    linear           any          any           linear: a predictor of every strategy
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import ClassVar, Protocol

from ddlbench.common.entry_points import described, within
from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.schema import nearest
from ddlbench.experiment.cell import OF_A_STEP, Cell
from ddlbench.experiment.registry import PREDICTORS, STRATEGIES, check_class, known, load
from ddlbench.experiment.site import ComputeKind
from ddlbench.planning.memory import memory_bytes
from ddlbench.planning.plan import Plan
from ddlbench.planning.planner import StrategyPlan
from ddlbench.planning.step import Step
from ddlbench.planning.strategy import Strategy, known_strategy, strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.links import LinkTable

_LOG = logging.getLogger(__name__)
_GROUP = "ddlbench.predictors"
DEFAULT_PREDICTOR = "ddlbench"  # that of every strategy, which is asked unless another is named


class NotPredictable(ConfigError):  # noqa: N818 - a state of a cell, shown as such
    """A predictor cannot predict a cell; the message gives the reason."""


PARTS = ("compute_s", "communication_s", "exposed_communication_s", "bubble_s")
"""What a prediction says of a step's time."""
_ROUNDING = 1e-9  # of the computation; a float64 has 16 digits


@dataclass(frozen=True)
class Prediction:
    """One predicted step of a cell.

    ``step_s = compute_s + bubble_s + exposed_communication_s``: the critical path.

    Args:
        predictor: its name.
        compute_s: work on the critical path, data loading and optimiser included.
        communication_s: all communication of a step, hidden or not.
        exposed_communication_s: the part of it that the step waits for.
        bubble_s: idle time of the schedule.
        memory_bytes: peak of each device, in the order of ranks and their devices. A predictor
            may leave it empty; then :func:`ask` fills it in from :mod:`ddlbench.planning.memory`.
        limits: what the model leaves out.
        notes: which inputs were extrapolated or replaced by others.
        interval_s: of ``step_s``, if known: 95 % by the intervals of the inputs, or, if the site is
            calibrated, 90 % by its held-out cells.
    """

    predictor: str
    compute_s: float
    communication_s: float = 0.0
    exposed_communication_s: float = 0.0
    bubble_s: float = 0.0
    memory_bytes: tuple[int, ...] = ()
    limits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    interval_s: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Parts that are differences of equal times may lie below zero by rounding: they are 0."""
        for name in PARTS:
            if -_ROUNDING * self.compute_s <= getattr(self, name) < 0:
                object.__setattr__(self, name, 0.0)

    @property
    def step_s(self) -> float:
        return self.compute_s + self.bubble_s + self.exposed_communication_s


@dataclass(frozen=True)
class Measured:
    """The median step of one repeat of a finished cell, and its steps.csv."""

    cell: Cell
    step_s: float
    steps_file: Path | None = None


@dataclass(frozen=True)
class Departure:
    """A finished cell that does not train as it should, and the sentence that says how."""

    cell: Cell
    sentence: str


History = tuple[Measured, ...]
NO_HISTORY: History = ()


def steps_measured(history: History, cell: Cell) -> list[float]:
    """Median steps of the repeats that did the same work a step as a cell, seconds."""
    return [run.step_s for run in history if same_step(run.cell, cell)]


def same_step(cell: Cell, other: Cell) -> bool:
    """Whether two cells do the same work a step."""
    return all(getattr(cell, name) == getattr(other, name) for name in OF_A_STEP)


class Predictor(Protocol):
    """A pure function of files.

    Class attributes:
        name: key in the registry.
        source: paper, section, equation.
        strategies: None if it predicts every strategy. Otherwise a strategy's descriptor names the
            predictors that model it, and a predictor of another package lists here the strategies
            of this package that it models.
        baseline: a trivial rule that a model must beat.
        uses_first_repeat: it learns from repeat 0, so repeat 0 cannot score it.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    strategies: ClassVar[tuple[str, ...] | None] = ()
    baseline: ClassVar[bool] = False
    uses_first_repeat: ClassVar[bool] = False

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step.

        Args:
            workload: times and bytes of the cell's network on one device.
            links: of the cell's fabric; None if there are none.
            plan: who runs where.
            cell: the cell to predict.
            history: measured cells of the same site.

        Raises:
            NotPredictable: the model does not cover this cell.
            ConfigError: a file lacks what the model needs.
        """
        ...


@dataclass(frozen=True)
class CellInputs:
    """The arguments of :meth:`Predictor.predict`, for a predictor of this package."""

    predictor: str
    workload: Workload
    measured_links: LinkTable | None
    plan: Plan
    cell: Cell
    history: History

    @cached_property
    def strategy(self) -> Strategy:
        return strategy_of(self.cell.strategy)

    @property
    def links(self) -> LinkTable:
        """The links of the cell's fabric.

        Raises:
            NotPredictable: there are none.
        """
        if self.measured_links is None:
            raise NotPredictable(
                f"{self.predictor} needs the links of this fabric; "
                "measure them, or give them by hand"
            )
        return self.measured_links

    @cached_property
    def step(self) -> Step:
        """What a rank computes and sends.

        Raises:
            NotPredictable: the plan's strategy does not tell it, or the profile lacks something.
        """
        try:
            step = self.strategy.step(self.workload, self.plan)
        except ConfigError as error:
            raise NotPredictable(str(error)) from None
        if step is None:
            raise NotPredictable(
                f"{self.predictor} is of strategies that state their step; {self.cell.strategy} "
                "does not"
            )
        return step


class BuiltInPredictor(Predictor):
    """A predictor of this package: a subclass implements :meth:`model`.

    Class attributes:
        overlapped: name of the model of the same messages where computation hides them; None if
            this one has no such counterpart.
    """

    overlapped: ClassVar[str | None] = None

    def handled_share(self, inputs: CellInputs) -> float:
        """The share of its messages' time in which a computing rank sends or receives itself.

        In the rest of it the messages of other ranks are on a link, so that the rank is free.
        """
        return 1.0

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        return self.model(CellInputs(self.name, workload, links, plan, cell, history))

    def model(self, inputs: CellInputs) -> Prediction:
        """Predict one step, as :meth:`Predictor.predict`."""
        raise NotImplementedError


def ask(
    predictor: Predictor,
    workload: Workload,
    links: LinkTable | None,
    plan: StrategyPlan,
    history: History = NO_HISTORY,
) -> Prediction:
    """Predict a plan's cell with one predictor, and add the memory of each device.

    Raises:
        NotPredictable: the predictor does not model this strategy, or not this cell.
        ConfigError: a file lacks what the predictor needs.
    """
    cell = plan.cell
    modelled = modelled_strategies(predictor)
    if modelled is not None and cell.strategy not in modelled:
        raise NotPredictable(
            f"{predictor.name} is of {', '.join(modelled)}, not of {cell.strategy}"
        )
    if predictor.name in PREDICTORS:
        prediction = predictor.predict(workload, links, plan, cell, history)
    else:
        with within(_GROUP, predictor.name):
            prediction = predictor.predict(workload, links, plan, cell, history)
    if why := _why_no_prediction(prediction):
        raise NotPredictable(f"{described(_GROUP, predictor.name)} has a fault: {why}")
    prediction = replace(prediction, predictor=predictor.name)
    if prediction.memory_bytes:
        return prediction
    try:
        return replace(prediction, memory_bytes=memory_bytes(workload, plan))
    except ConfigError as error:
        return replace(prediction, notes=joined(prediction.notes, f"no memory: {error}"))


def _why_no_prediction(prediction: object) -> str | None:
    """Why what a predictor returned is no prediction; None if it is one."""
    if not isinstance(prediction, Prediction):
        return f"it returns {shown(prediction)}; return a Prediction"
    for name in PARTS:
        seconds = getattr(prediction, name)
        if not (isinstance(seconds, Real) and isfinite(seconds) and float(seconds) >= 0):
            return f"its {name} is {shown(seconds)}; write seconds, 0 or more"
    if not prediction.step_s:
        return "its step takes 0 s; write the seconds of the computation"
    numbers = (*(prediction.interval_s or ()), *prediction.memory_bytes)
    if not all(isinstance(number, Real) and isfinite(number) for number in numbers):
        return "its interval_s or memory_bytes holds what is no number; write seconds and bytes"
    return None


def modelled_strategies(predictor: Predictor) -> tuple[str, ...] | None:
    """Names of the strategies that a predictor models; None if it models every strategy."""
    if predictor.strategies is None:
        return None
    by_strategy = _predictors_by_strategy(tuple(known("ddlbench.strategies").items()))
    named = [name for name, predictors in by_strategy.items() if predictor.name in predictors]
    return tuple(dict.fromkeys((*named, *predictor.strategies)))


@cache
def _predictors_by_strategy(strategies: tuple[tuple[str, str], ...]) -> dict[str, frozenset[str]]:
    """The predictors that each strategy's descriptor names; ``strategies`` are registry entries."""
    return {name: frozenset(known_strategy(name).predictors) for name, _target in strategies}


def predictor_of(name: str) -> Predictor:
    """An instance of the predictor that ``name`` stands for.

    Raises:
        ConfigError: no predictor has this name, or the name stands for something else.
    """
    target = PREDICTORS.get(name)
    return _instance_of(name) if target is None else _built_in(name, target)


@cache
def _built_in(name: str, _target: str) -> Predictor:
    return _instance_of(name)


def _instance_of(name: str) -> Predictor:
    predictor_class = load(_GROUP, name)
    if not (
        isinstance(predictor_class, type) and callable(getattr(predictor_class, "predict", None))
    ):
        raise ConfigError(
            f"{name!r} is not a predictor: it must name a class with a predict method"
        )
    check_class(_GROUP, name, predictor_class, ("name", "source"))
    with within(_GROUP, name):
        predictor: Predictor = predictor_class()
    if getattr(predictor_class, "model", None) is BuiltInPredictor.model:
        raise ConfigError(
            f"{described(_GROUP, name)}: its class {predictor_class.__name__} lacks model; "
            "write model(self, inputs), which returns a Prediction"
        )
    of = getattr(predictor, "strategies", ())
    if of is not None and not (
        isinstance(of, tuple | list) and all(isinstance(each, str) for each in of)
    ):
        named = f"({of!r},)" if isinstance(of, str) else "a tuple of names, or None for every one"
        raise ConfigError(
            f"{described(_GROUP, name)}: its strategies are {shown(of)}; write {named}"
        )
    return predictor


def usable_predictors() -> list[str]:
    """Names of the predictors that work; one whose package is broken is named once."""
    return [name for name in known(_GROUP) if _is_usable(name)]


def _is_usable(name: str) -> bool:
    if name in PREDICTORS:
        return True
    try:
        predictor_of(name)
    except ConfigError as error:
        _warn(f"{described(_GROUP, name)} is left out: {error}")
        return False
    return True


@cache
def _warn(sentence: str) -> None:
    """Say it once, however many cells are predicted."""
    _LOG.warning("%s", sentence)


def joined(*remarks: str | Iterable[str] | None) -> tuple[str, ...]:
    """Remarks in order, without None and without repetitions."""
    flat: list[str] = []
    for remark in remarks:
        if isinstance(remark, str):
            flat.append(remark)
        elif remark is not None:
            flat.extend(remark)
    return tuple(dict.fromkeys(flat))


DEFAULT_RECOMMENDER = DEFAULT_PREDICTOR
MEASURED_LINKS = "measured-links"
_OVERLAP = "overlap"
RECOMMENDERS = (MEASURED_LINKS, _OVERLAP, "thesis", "ddlbench-2020")

# "Horovod unless out of memory, else GPipe": a rule of thumb. It got all 24 cases of the thesis
# right; the thesis' recommender got 16.
UNLESS_OOM = "horovod-unless-oom"


def predictor_for(recommender: str, strategy: str, compute_kind: ComputeKind) -> str | None:
    """Name of the predictor that a recommender uses for a strategy; None if it has none.

    A predictor of every strategy is a recommender by itself; the default is ``ddlbench``. For a
    strategy of another package, the first predictor of another package that lists it goes first.

    Raises:
        ConfigError: there is no such recommender.
    """
    named = recommender if recommender in known(_GROUP) else None
    if named is None and recommender not in RECOMMENDERS:
        names = [*RECOMMENDERS, UNLESS_OOM, *known(_GROUP)]
        remark = nearest(recommender, names)
        raise ConfigError(f"unknown recommender {recommender!r}; {remark}")
    if named is not None and named != DEFAULT_RECOMMENDER:
        return named
    predictor = None if named else _named_predictor(recommender, strategy, compute_kind)
    if predictor is not None or strategy in STRATEGIES:
        return predictor or named
    for name in usable_predictors():
        if name not in PREDICTORS and strategy in (predictor_of(name).strategies or ()):
            return name
    return named


def recommenders_on(compute_kind: ComputeKind) -> list[str]:
    """Names of the recommenders that differ on such devices."""
    distinct: dict[tuple[str | None, ...], str] = {}
    for name in RECOMMENDERS:
        members = tuple(_named_predictor(name, strategy, compute_kind) for strategy in STRATEGIES)
        distinct.setdefault(members, name)
    return list(distinct.values())


def _named_predictor(recommender: str, strategy: str, compute_kind: ComputeKind) -> str | None:
    descriptor = known_strategy(strategy)
    if recommender == MEASURED_LINKS:
        return descriptor.preferred_on(compute_kind)
    if recommender == _OVERLAP:
        return descriptor.preferred_on("cuda")
    return descriptor.recommended_by.get(recommender)
