"""What a predictor is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import ClassVar, Protocol

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.registry import known, load
from ddlbench.planning.gradient_traffic import GradientTraffic
from ddlbench.planning.memory import memory_bytes
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import known_strategy, strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.links import LinkTable


class NotPredictable(ConfigError):  # noqa: N818 - a state of a cell, shown as such
    """A predictor has nothing to say of a cell; the message says why."""


@dataclass(frozen=True)
class Prediction:
    """One step of a cell, by one predictor.

    ``step_s = compute_s + bubble_s + exposed_communication_s``: the critical path.

    Args:
        predictor: its name.
        compute_s: work on the critical path, data loading and optimiser included.
        communication_s: all communication of a step, hidden or not.
        exposed_communication_s: what of it the step waits for.
        bubble_s: idle time of the schedule.
        memory_bytes: peak of each device, in the order of ranks and their devices; a predictor
            may leave it empty, then :func:`ask` fills in :mod:`ddlbench.planning.memory`.
        limits: what the model leaves out.
        notes: what of its inputs was extrapolated or stood in.
        interval_s: 95 % of ``step_s`` from its inputs' own intervals; None where they have none.
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

    @property
    def step_s(self) -> float:
        """Seconds of one optimiser step."""
        return self.compute_s + self.bubble_s + self.exposed_communication_s


@dataclass(frozen=True)
class Measured:
    """What a finished cell took.

    Args:
        cell: the cell, of one repeat.
        step_s: median step.
        steps_file: its steps.csv.
    """

    cell: Cell
    step_s: float
    steps_file: Path | None = None


History = tuple[Measured, ...]
NO_HISTORY: History = ()


class Predictor(Protocol):
    """A pure function of files; one module each.

    Class attributes:
        name: key in the registry.
        source: paper, section, equation.
        strategies: None: it is of every strategy. Otherwise a strategy's descriptor names the
            predictors that model it; a predictor of another package names strategies of this
            one here.
        baseline: a trivial rule that a model must beat.
        uses_first_repeat: it learns from repeat 0, which therefore cannot score it.
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
            links: of the cell's fabric; a predictor without communication needs none.
            plan: who runs where.
            cell: what is asked for.
            history: measured cells of the same site.

        Raises:
            NotPredictable: it cannot speak of this cell.
            ConfigError: a file lacks what it needs.
        """
        ...


def ask(
    predictor: Predictor,
    workload: Workload,
    links: LinkTable | None,
    plan: Plan,
    history: History = NO_HISTORY,
) -> Prediction:
    """Ask one predictor about a plan's cell, and add the memory of each device.

    Raises:
        NotPredictable: it does not speak of this strategy, or of this cell.
        ConfigError: a file lacks what it needs.
    """
    cell = plan.cell
    modelled = modelled_strategies(predictor)
    if modelled is not None and cell.strategy not in modelled:
        raise NotPredictable(
            f"{predictor.name} is of {', '.join(modelled)}, not of {cell.strategy}"
        )
    prediction = predictor.predict(workload, links, plan, cell, history)
    if prediction.memory_bytes:
        return prediction
    try:
        return replace(prediction, memory_bytes=memory_bytes(workload, plan))
    except ConfigError as error:
        return replace(prediction, notes=joined(prediction.notes, f"no memory: {error}"))


def modelled_strategies(predictor: Predictor) -> tuple[str, ...] | None:
    """Names of the strategies that a predictor models; None of one that is of every strategy."""
    own = predictor.strategies
    if own is None:
        return None
    strategies = tuple(known("ddlbench.strategies").items())
    named = [name for name, them in _named_predictors(strategies) if predictor.name in them]
    return tuple(dict.fromkeys((*named, *own)))


@cache
def _named_predictors(
    strategies: tuple[tuple[str, str], ...],
) -> tuple[tuple[str, frozenset[str]], ...]:
    """The predictors that each strategy names, by its name."""
    found = ((name, known_strategy(name)) for name, _target in strategies)
    return tuple(
        (name, frozenset(strategy.predictors)) for name, strategy in found if strategy is not None
    )


def predictor_of(name: str) -> Predictor:
    """The predictor that ``name`` stands for.

    Raises:
        ConfigError: there is none, or it is no predictor.
    """
    found = load("ddlbench.predictors", name)
    if not (isinstance(found, type) and callable(getattr(found, "predict", None))):
        raise ConfigError(
            f"{name!r} is not a predictor: it must name a class with a predict method"
        )
    made: Predictor = found()
    return made


def links_or_error(links: LinkTable | None, predictor: str) -> LinkTable:
    """The links.

    Raises:
        NotPredictable: there are none.
    """
    if links is None:
        raise NotPredictable(
            f"{predictor} needs the links of this fabric; measure them, or give them by hand"
        )
    return links


def traffic_or_error(predictor: str, workload: Workload, plan: Plan) -> GradientTraffic:
    """The all-reduces of a data-parallel step.

    Raises:
        NotPredictable: the plan's strategy has none.
    """
    traffic = strategy_of(plan.cell.strategy).gradient_traffic(workload, plan)
    if traffic is None:
        raise NotPredictable(
            f"{predictor} is of data parallelism; {plan.cell.strategy} does not reduce all "
            "gradients over all ranks"
        )
    return traffic


def joined(*remarks: str | Iterable[str] | None) -> tuple[str, ...]:
    """Remarks without gaps and repetitions, in order."""
    flat: list[str] = []
    for remark in remarks:
        if isinstance(remark, str):
            flat.append(remark)
        elif remark is not None:
            flat.extend(remark)
    return tuple(dict.fromkeys(flat))
