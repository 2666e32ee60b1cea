"""Recommend a strategy: rank the strategies that fit into memory by what is known of their time.

::

    network, dataset, nodes x devices, batch
        -> a cell for each strategy -> can it run? -> measured here, or predicted; memory -> fits?
        -> fastest first, each with the probability that it is the fastest
        -> below: what does not fit, cannot run or has no prediction, with the reason

A cell that was measured at the site counts as measured; its prediction stays beside it, and its
error moves what is believed of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.registry import PREDICTORS, STRATEGIES, known
from ddlbench.experiment.schema import nearest
from ddlbench.experiment.site import Site
from ddlbench.experiment.units import GB
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.memory import capacity_bytes, fits, fullest_bytes
from ddlbench.planning.plan import Plan, make_plan
from ddlbench.planning.strategy import (
    Strategy,
    cut_by_profile,
    known_strategy,
    normalise,
    strategy_of,
)
from ddlbench.planning.workload import Workload
from ddlbench.predict.calibration import calibrated
from ddlbench.predict.candidate import (
    Candidate,
    Recommendation,
    rank,
    with_belief,
    with_chances,
    with_siblings,
)
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.prediction import (
    DEFAULT_PREDICTOR,
    NO_HISTORY,
    History,
    Prediction,
    ask,
    predictor_of,
)

if TYPE_CHECKING:
    import pandas as pd

    from ddlbench.predict.accuracy import SignedErrors

DEFAULT_RECOMMENDER = DEFAULT_PREDICTOR
_MEASURED_LINKS = "measured-links"
_OVERLAP = "overlap"
RECOMMENDERS = (_MEASURED_LINKS, _OVERLAP, "thesis", "ddlbench-2020")

# "Horovod unless out of memory, else GPipe": a rule of thumb. It got all 24 cases of the thesis
# right; the thesis' recommender got 16.
UNLESS_OOM = "horovod-unless-oom"


def predictor_for(recommender: str, strategy: str, device: str) -> str | None:
    """Name of the predictor that a recommender uses for a strategy; None if it has none.

    A predictor of every strategy is a recommender by itself; the default is ``ddlbench``. For a
    strategy of another package, the first predictor of another package that lists it goes first.

    Args:
        recommender: its name.
        strategy: name of the strategy.
        device: "cpu" or "cuda", as the site file says.

    Raises:
        ConfigError: there is no such recommender.
    """
    own = recommender if recommender in known("ddlbench.predictors") else None
    if own is None and recommender not in RECOMMENDERS:
        names = [*RECOMMENDERS, UNLESS_OOM, *known("ddlbench.predictors")]
        remark = nearest(recommender, names)
        raise ConfigError(f"unknown recommender {recommender!r}; {remark}")
    if own is not None and own != DEFAULT_RECOMMENDER:
        return own
    predictor = None if own else _named_predictor(recommender, strategy, device)
    if predictor is not None or strategy in STRATEGIES:
        return predictor or own
    for name in known("ddlbench.predictors"):
        if name not in PREDICTORS and strategy in (predictor_of(name).strategies or ()):
            return name
    return own


def recommenders_on(device: str) -> list[str]:
    """Names of the recommenders that differ on such devices."""
    distinct: dict[tuple[str | None, ...], str] = {}
    for name in RECOMMENDERS:
        members = tuple(_named_predictor(name, strategy, device) for strategy in STRATEGIES)
        distinct.setdefault(members, name)
    return list(distinct.values())


def _named_predictor(recommender: str, strategy: str, device: str) -> str | None:
    """The predictor that a strategy's descriptor names for a recommender."""
    descriptor = known_strategy(strategy)
    if descriptor is None:
        return None
    if recommender == _MEASURED_LINKS:
        return descriptor.preferred_predictor.get(device)
    if recommender == _OVERLAP:
        return descriptor.preferred_predictor.get("cuda")
    return descriptor.recommended_by.get(recommender)


@dataclass(frozen=True)
class PredictionRequest:
    """What the user wants to train, and on which devices.

    Args:
        network: name, or ``package.module:callable``.
        dataset: name.
        nodes, devices_per_node: geometry.
        batch_size: samples of one optimiser step, the same for every strategy.
        settings: further fields of the cell (precision, fabric, ...).
        options: strategy -> its options that differ from the defaults.
    """

    network: str
    dataset: str
    nodes: int
    devices_per_node: int
    batch_size: int
    settings: Mapping[str, Any]
    options: Mapping[str, Mapping[str, Any]]

    def check_names(self) -> None:
        """Raise ConfigError if dataset, network or a strategy among the options is unknown."""
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
        """The cell of one strategy; the baseline has one device with the whole batch.

        Raises:
            ConfigError: an option is unknown, or a value is invalid.
        """
        written = self.options.get(strategy, {})
        options = strategy_of(strategy).check_options(written, f"options of {strategy}")
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
        return cut_by_profile(normalise(cell), written)


def recommend(
    request: PredictionRequest,
    site: Site,
    inputs: Inputs,
    *,
    recommender: str = DEFAULT_RECOMMENDER,
    allow_stale: bool = False,
    device_memory_bytes: float | None = None,
    history: History = NO_HISTORY,
    errors: SignedErrors = MappingProxyType({}),
) -> Recommendation:
    """Rank every registered strategy.

    Args:
        request: the network, the dataset and the devices.
        site: the machine.
        inputs: profiles and links of the site.
        recommender: a name in :data:`~ddlbench.predict.recommend.RECOMMENDERS`, a predictor of
            every strategy, or the rule of thumb :data:`~ddlbench.predict.recommend.UNLESS_OOM`.
        allow_stale: also rank strategies whose updates use gradients of older weights. They learn
            less in the same time, so they are left out by default.
        device_memory_bytes: memory of one device; by default that of the profile or the site.
        history: measured cells of the site; the default recommender takes them before predictions.
        errors: of the site's predictions, see :func:`ddlbench.predict.accuracy.errors_at`.

    Raises:
        ConfigError: a name is unknown, or the profile or the links are missing or wrong.
    """
    # The rule decides the order; memory and times are shown beside it.
    named = _MEASURED_LINKS if recommender == UNLESS_OOM else recommender
    request.check_names()
    candidates = []
    cells = [request.cell(name) for name in known("ddlbench.strategies")]
    inputs.workload(
        max(cells, key=lambda cell: cell.devices)
    )  # one error names all that is missing
    for cell in cells:
        strategy = strategy_of(cell.strategy)
        if not (allow_stale or _is_synchronous(strategy, cell, inputs.site)):
            continue
        reason = strategy.supports(cell) or site.supports(cell)
        if reason is not None:
            candidates.append(_not_predicted(cell, f"cannot run: {reason}"))
            continue
        workload = inputs.workload(cell)
        predictor = predictor_for(named, cell.strategy, site.device)
        if predictor is None:
            why = f"recommender {recommender} has no predictor for it on {site.device}"
            candidates.append(_not_predicted(cell, why))
            continue
        try:
            plan = make_plan(cell, inputs.site)
            prediction = ask(predictor_of(predictor), workload, inputs.links(cell), plan, history)
            prediction = calibrated(prediction, cell.strategy, inputs.calibration)
        except ConfigError as error:
            candidates.append(_not_predicted(cell, f"no prediction: {error}"))
            continue
        capacity = device_memory_bytes or capacity_bytes(workload, site)
        candidates.append(_predicted(prediction, workload, plan, capacity))
    # Who asks another recommender wants its own word.
    by_runs = recommender == DEFAULT_RECOMMENDER
    known_of = [
        with_belief(c, inputs.calibration, history, errors, by_runs=by_runs) for c in candidates
    ]
    ranking = sorted(with_chances(with_siblings(known_of)), key=rank)
    if recommender == UNLESS_OOM:
        ranking = _by_the_rule(ranking)
    return Recommendation(recommender, tuple(ranking))


def _by_the_rule(ranking: Sequence[Candidate]) -> list[Candidate]:
    """Horovod, or GPipe where Horovod does not fit, before all others; without chances."""
    placed = {c.cell.strategy: c for c in ranking if c.ranked}
    first = placed.get("horovod") or placed.get("gpipe")
    return [
        replace(candidate, fastest=None)
        for candidate in sorted(ranking, key=lambda candidate: candidate is not first)
    ]


def _is_synchronous(strategy: Strategy, cell: Cell, site: str) -> bool:
    """Whether updates use current weights, by the plan where the strategy alone does not say it."""
    if strategy.is_synchronous(cell):
        return True
    try:
        return strategy.is_synchronous(cell, make_plan(cell, site).details)
    except ConfigError:
        return False


def _predicted(
    prediction: Prediction, workload: Workload, plan: Plan, capacity: float | None
) -> Candidate:
    strategy, devices = strategy_of(plan.cell.strategy), prediction.memory_bytes
    needed = fullest_bytes(workload, plan, devices) if devices else None
    fit = None
    if devices and capacity is not None:
        fit = fits(workload, plan, devices, capacity)
    why = _explanation(prediction, fit, needed, capacity, plan)
    synchronous = strategy.is_synchronous(plan.cell, plan.details)
    ran_as = strategy.ran_as(plan.cell, plan.details)
    label = f"{strategy.label} ({ran_as})" if ran_as else strategy.label
    return Candidate(plan.cell, label, synchronous, prediction, needed, capacity, fit, why)


def _not_predicted(cell: Cell, why: str) -> Candidate:
    strategy = strategy_of(cell.strategy)
    synchronous = strategy.is_synchronous(cell)
    return Candidate(cell, strategy.label, synchronous, None, None, None, None, why)


def _explanation(
    prediction: Prediction,
    fit: bool | None,
    needed: int | None,
    capacity: float | None,
    plan: Plan,
) -> str:
    if fit is False and needed is not None and capacity is not None:
        return f"does not fit: {GB.text(needed)} needed, a device has {GB.text(capacity)}"
    parts = [f"compute {prediction.compute_s:.3g} s"]
    if prediction.bubble_s:
        parts.append(f"bubble {prediction.bubble_s:.3g} s")
    if plan.cell.devices > 1:
        hidden = max(0.0, prediction.communication_s - prediction.exposed_communication_s)
        parts.append(f"waits {prediction.exposed_communication_s:.3g} s for communication")
        parts.append(f"hides {hidden:.3g} s of it")
    if fit is None:
        parts.append("memory of a device unknown" if needed else "memory unknown")
    return ", ".join(parts)


_SETTINGS = ("fabric", "precision", "threads_per_device")
_SIZE = ("dataset", "network", "nodes", "devices_per_node", "batch_size")
_CASE = (*_SIZE, *_SETTINGS)
COLUMNS = (
    *_CASE, "place", "recommended", "strategy", "predictor", "predicted_step_s", "measured_step_s",
    "runs", "basis", "fastest", "samples_per_s", "memory_bytes", "fits", "why",
)  # fmt: skip


def recommendations(
    rows: Sequence[MatrixRow], site: Site, results_root: Path = RESULTS
) -> pd.DataFrame:
    """Rank all strategies for every network, dataset, geometry and batch size of a matrix.

    Strategies have their default options, whatever the matrix gives them. ``place`` counts from 1.
    It is empty for a strategy that cannot run, has no prediction, or does not fit.

    Args:
        rows: the expanded matrix; its cells of one device are left out.
        site: the machine.
        results_root: the folder that holds the site's profiles and links.

    Raises:
        ConfigError: a profile or the links are missing or wrong.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import

    # Here, as it asks this module for the predictors of recommenders.
    from ddlbench.predict.evaluate import measured_of  # noqa: PLC0415

    inputs = Inputs(site.name, results_root)
    cells = (row.cell for row in rows if row.unsupported is None and row.cell.devices > 1)
    cases = dict.fromkeys(tuple(getattr(cell, name) for name in _CASE) for cell in cells)
    records: list[dict[str, Any]] = []
    for values in cases:
        case = dict(zip(_CASE, values, strict=True))
        request = PredictionRequest(
            **{name: case[name] for name in _SIZE},
            settings={name: case[name] for name in _SETTINGS},
            options={},
        )
        history = measured_of(request.dataset, request.network, site.name, results_root)
        recommendation = recommend(request, site, inputs, history=history)
        for place, candidate in enumerate(recommendation.ranking, start=1):
            record = candidate.to_dict() | case
            record |= {
                "place": place if candidate.ranked else None,
                "recommended": candidate is recommendation.best,
            }
            records.append(record)
    return pd.DataFrame(records, columns=list(COLUMNS)).astype(
        {"place": "Int64", "memory_bytes": "Int64"}
    )
