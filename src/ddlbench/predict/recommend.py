"""Which strategy to train with: a ranking by predicted time of what fits into memory.

::

    network, dataset, nodes x devices, batch
        -> a cell for each strategy -> can it run? -> predicted step, memory -> does it fit?
        -> fastest first; what does not fit, cannot run or has no prediction stands below, with why

Every case of an experiment is put to the recommender in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.registry import known
from ddlbench.experiment.schema import nearest
from ddlbench.experiment.site import Site
from ddlbench.experiment.units import GB
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.memory import capacity_bytes, fits, fullest_bytes
from ddlbench.planning.plan import Plan, make_plan
from ddlbench.planning.strategy import normalise, strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.prediction import NO_HISTORY, History, Prediction, ask, predictor_of
from ddlbench.predict.recommenders import DEFAULT_RECOMMENDER, predictor_for

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class PredictionRequest:
    """What the user wants to train, and on how much.

    Args:
        network, dataset: names; a network of one's own is ``package.module:callable``.
        nodes, devices_per_node: how many devices there are, and where.
        batch_size: samples of one optimiser step, the same for every strategy.
        settings: further fields of the cell (precision, fabric, ...).
        options: strategy -> its options, where they differ from the defaults.
    """

    network: str
    dataset: str
    nodes: int
    devices_per_node: int
    batch_size: int
    settings: Mapping[str, Any]
    options: Mapping[str, Mapping[str, Any]]

    def check_names(self) -> None:
        """Refuse names that are none.

        Raises:
            ConfigError: dataset, network or a strategy among the options is unknown.
        """
        DATASETS.check(self.dataset)
        if self.network not in known("ddlbench.networks") and ":" not in self.network:
            remark = nearest(self.network, known("ddlbench.networks"))
            raise ConfigError(
                f"unknown network {self.network!r}; {remark}; "
                "a network of your own is package.module:callable"
            )
        for strategy in self.options:
            if strategy not in known("ddlbench.strategies") and ":" not in strategy:
                remark = nearest(strategy, known("ddlbench.strategies"))
                raise ConfigError(f"options: unknown strategy {strategy!r}; {remark}")

    def cell(self, strategy: str) -> Cell:
        """The cell of one strategy; the baseline is one device with the whole batch.

        Raises:
            ConfigError: an option is unknown, or a value cannot be.
        """
        options = strategy_of(strategy).check_options(
            self.options.get(strategy, {}), f"options of {strategy}"
        )
        cell = Cell(
            dataset=self.dataset,
            network=self.network,
            strategy=strategy,
            batch_size=self.batch_size,
            nodes=self.nodes,
            devices_per_node=self.devices_per_node,
            options=tuple(options.items()),
            **self.settings,
        )
        return normalise(cell)


@dataclass(frozen=True)
class Candidate:
    """One strategy's place in the ranking.

    Args:
        cell: what would be run.
        label: the strategy, as figures write it.
        synchronous: its updates use gradients of the current weights.
        prediction: None where it cannot run or nothing predicts it.
        memory_bytes: of the fullest device (on CPU: process); None where unknown.
        capacity_bytes: memory of one device; None where unknown.
        fits: None where memory or capacity is unknown.
        why: one sentence.
    """

    cell: Cell
    label: str
    synchronous: bool
    prediction: Prediction | None
    memory_bytes: int | None
    capacity_bytes: float | None
    fits: bool | None
    why: str

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        told = self.prediction
        return {
            "strategy": self.cell.strategy,
            "cell_id": self.cell.id,
            "synchronous": self.synchronous,
            "predictor": told.predictor if told else None,
            "predicted_step_s": told.step_s if told else None,
            "interval_s": list(told.interval_s) if told and told.interval_s else None,
            "samples_per_s": self.cell.batch_size / told.step_s if told else None,
            "compute_s": told.compute_s if told else None,
            "communication_s": told.communication_s if told else None,
            "exposed_communication_s": told.exposed_communication_s if told else None,
            "bubble_s": told.bubble_s if told else None,
            "memory_bytes": self.memory_bytes,
            "device_memory_bytes": self.capacity_bytes,
            "fits": self.fits,
            "why": self.why,
            "limits": list(told.limits) if told else [],
            "notes": list(told.notes) if told else [],
        }


@dataclass(frozen=True)
class Recommendation:
    """Candidates, best first; ``best`` is None where none can run and fits."""

    recommender: str
    ranking: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate | None:
        """The fastest that can run and is not known to be too large."""
        first = self.ranking[0] if self.ranking else None
        return first if first and first.prediction and first.fits is not False else None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "recommender": self.recommender,
            "recommended": self.best.cell.strategy if self.best else None,
            "ranking": [candidate.to_dict() for candidate in self.ranking],
        }


def recommend(
    question: PredictionRequest,
    site: Site,
    inputs: Inputs,
    *,
    recommender: str = DEFAULT_RECOMMENDER,
    allow_stale: bool = False,
    device_memory_bytes: float | None = None,
    history: History = NO_HISTORY,
) -> Recommendation:
    """Rank every strategy that is known here.

    Args:
        question: what is to be trained.
        site: where.
        inputs: its profiles and links.
        recommender: a name in :data:`~ddlbench.predict.recommenders.RECOMMENDERS`, or a predictor
            that speaks of every strategy.
        allow_stale: also strategies whose updates use gradients of older weights; they do less
            for the same time, so they are left out by default.
        device_memory_bytes: memory of one device, instead of what profile and site say.
        history: measured cells, for predictors that carry measurements on.

    Raises:
        ConfigError: a name is unknown, or the profile or the links are missing or wrong.
    """
    question.check_names()
    candidates = []
    for name in known("ddlbench.strategies"):
        strategy = strategy_of(name)
        cell = question.cell(name)
        if strategy.is_synchronous(cell) or allow_stale:
            reason = strategy.supports(cell) or site.supports(cell)
            if reason is not None:
                candidates.append(_impossible(cell, f"cannot run: {reason}"))
                continue
            workload = inputs.workload(cell)
            capacity = device_memory_bytes or capacity_bytes(workload, site)
            candidates.append(
                _candidate(
                    cell,
                    workload,
                    inputs,
                    recommender=recommender,
                    device=site.device,
                    capacity=capacity,
                    history=history,
                )
            )
    return Recommendation(recommender, tuple(sorted(candidates, key=_place)))


def _candidate(
    cell: Cell,
    workload: Workload,
    inputs: Inputs,
    *,
    recommender: str,
    device: str,
    capacity: float | None,
    history: History,
) -> Candidate:
    name = predictor_for(recommender, cell.strategy, device)
    if name is None:
        return _impossible(cell, f"recommender {recommender} has no predictor for it on {device}")
    try:
        plan = make_plan(cell, inputs.site)
        prediction = ask(predictor_of(name), workload, inputs.links(cell), plan, history)
    except ConfigError as error:
        return _impossible(cell, f"no prediction: {error}")
    strategy = strategy_of(cell.strategy)
    devices = prediction.memory_bytes
    needed = fullest_bytes(workload, plan, devices) if devices else None
    fit = None
    if devices and capacity is not None:
        fit = fits(workload, plan, devices, capacity)
    why = _why(prediction, fit, needed, capacity, plan)
    synchronous = strategy.is_synchronous(cell)
    return Candidate(cell, strategy.label, synchronous, prediction, needed, capacity, fit, why)


def _why(
    told: Prediction, fit: bool | None, needed: int | None, capacity: float | None, plan: Plan
) -> str:
    if fit is False and needed is not None and capacity is not None:
        return f"does not fit: {GB.text(needed)} needed, a device has {GB.text(capacity)}"
    parts = [f"compute {told.compute_s:.3g} s"]
    if told.bubble_s:
        parts.append(f"bubble {told.bubble_s:.3g} s")
    if plan.cell.devices > 1:
        hidden = max(0.0, told.communication_s - told.exposed_communication_s)
        parts.append(f"waits {told.exposed_communication_s:.3g} s for communication")
        parts.append(f"hides {hidden:.3g} s of it")
    if fit is None:
        parts.append("memory of a device unknown" if needed else "memory unknown")
    return ", ".join(parts)


def _impossible(cell: Cell, why: str) -> Candidate:
    strategy = strategy_of(cell.strategy)
    synchronous = strategy.is_synchronous(cell)
    return Candidate(cell, strategy.label, synchronous, None, None, None, None, why)


def _place(candidate: Candidate) -> tuple[int, float, str]:
    """Sort key: what fits by time, then what does not, then what has no prediction."""
    if candidate.prediction is None:
        return (2, 0.0, candidate.cell.strategy)
    group = 1 if candidate.fits is False else 0
    return (group, candidate.prediction.step_s, candidate.cell.strategy)


_NAMED = (
    "dataset", "network", "nodes", "devices_per_node", "batch_size", "fabric", "precision",
    "threads_per_device",
)  # fmt: skip
COLUMNS = (
    *_NAMED, "place", "recommended", "strategy", "predictor", "predicted_step_s", "samples_per_s",
    "memory_bytes", "fits", "why",
)  # fmt: skip


def recommendations(
    rows: Sequence[MatrixRow], site: Site, results_root: Path = RESULTS
) -> pd.DataFrame:
    """Rank all strategies for every network, dataset, geometry and batch of a matrix.

    Strategies have their default options, whatever the matrix gives them. ``place`` counts from 1
    and is empty for what cannot run, has no prediction, or does not fit.

    Args:
        rows: the expanded matrix; its cells of one device are no case.
        site: where.
        results_root: the folder that holds the site's profiles and links.

    Raises:
        ConfigError: a profile or the links are missing or wrong.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import

    inputs = Inputs(site.name, results_root)
    cells = (row.cell for row in rows if row.unsupported is None and row.cell.devices > 1)
    cases = dict.fromkeys(tuple(getattr(cell, name) for name in _NAMED) for cell in cells)
    records: list[dict[str, Any]] = []
    for case in cases:
        named = dict(zip(_NAMED, case, strict=True))
        found = recommend(_question(named), site, inputs)
        for place, candidate in enumerate(found.ranking, start=1):
            told = candidate.to_dict()
            able = candidate.prediction is not None and candidate.fits is not False
            records.append(
                {
                    **named,
                    **{name: told[name] for name in COLUMNS if name in told},
                    "place": place if able else None,
                    "recommended": candidate is found.best,
                }
            )
    return pd.DataFrame(records, columns=list(COLUMNS)).astype(
        {"place": "Int64", "memory_bytes": "Int64"}
    )


def _question(named: dict[str, Any]) -> PredictionRequest:
    settings = ("fabric", "precision", "threads_per_device")
    return PredictionRequest(
        **{name: value for name, value in named.items() if name not in settings},
        settings={name: named[name] for name in settings},
        options={},
    )
