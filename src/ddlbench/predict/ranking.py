"""A question, and the ranking of its candidates: the fastest first, each with its chance to be it.

::

    candidates -> predictions within their bound -> measured steps move the other beliefs
               -> chances, within the bound -> order: ranked by time, then what is not ranked

A place is by the belief, which measured steps have moved. The predicted step beside it stays what
the model says, so that both speed-ups of a row are of one world: both steps are measured, or both
are predicted.

A question is what somebody wants to train, on which devices, with which batch::

    --network vgg11 --dataset cifar10 --geometry 2x4 --batch-size 256      by options
    --configfile mine.yaml [the same options, to choose among its values]   by an experiment

A question has a cell for each strategy. Options of a strategy that nobody wrote are fitted to the
geometry and the batch (:func:`ddlbench.planning.planner.fitted`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import median
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import nearest
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import Experiment
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import BASE, known, mismatch
from ddlbench.experiment.site import Accelerator
from ddlbench.experiment.status import Reason
from ddlbench.planning.matrix import check_name, written_points
from ddlbench.planning.planner import fitted
from ddlbench.planning.strategy import Strategy, known_strategy, normalise, strategy_of
from ddlbench.predict.belief import alike, informed, races
from ddlbench.predict.candidate import Candidate

SETTINGS = (
    "fabric", "precision", "threads_per_device", "loader_workers", "data_format", "data_source",
    "momentum", "compile",
)  # fmt: skip
"""Fields of a cell that tell two questions of the same size apart."""


@dataclass(frozen=True)
class Question:
    """What the user wants to train, and on which devices.

    Args:
        network: name, or ``package.module:callable``.
        dataset: name.
        nodes, devices_per_node: geometry.
        batch_size: samples of one optimiser step, the same for every strategy.
        settings: further fields of the cell (precision, fabric, ...).
        options: strategy -> its options that differ from the defaults.
        experiment: whose settings, options and overrides the cells have besides; None for none.
        accelerator: that the site emulates.
    """

    network: str
    dataset: str
    nodes: int
    devices_per_node: int
    batch_size: int
    settings: Mapping[str, Any]
    options: Mapping[str, Mapping[str, Any]]
    experiment: Experiment | None = None
    accelerator: Accelerator | None = None

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def geometry(self) -> str:
        return f"{self.nodes}x{self.devices_per_node}"

    def check_names(self) -> None:
        """Check dataset, network and the strategies among the options.

        Raises:
            ConfigError: one is unknown, or the network cannot read the dataset.
        """
        DATASETS.check(self.dataset)
        if self.network not in known("ddlbench.networks") and ":" not in self.network:
            remark = nearest(self.network, known("ddlbench.networks"))
            raise ConfigError(
                f"unknown network {self.network!r}; {remark}; "
                "a network of your own is package.module:callable"
            )
        for strategy in self.options:
            check_name("ddlbench.strategies", strategy, "options")
        if (reason := mismatch(self.network, self.dataset)) is not None:
            raise ConfigError(reason)

    def written_options(self, strategy: str) -> dict[str, Any]:
        """The options of a strategy that the user wrote.

        Where the experiment lists several, these are the first that the strategy supports.

        Raises:
            ConfigError: an option is unknown, or a value is invalid.
        """
        return self._written(strategy)[0]

    def cell(self, strategy: str) -> Cell:
        """The cell of one strategy; the baseline has one device with the whole batch.

        Raises:
            ConfigError: an option is unknown, or a value is invalid.
        """
        return self._written(strategy)[1]

    @cached_property
    def _written(self) -> Callable[[str], tuple[dict[str, Any], Cell]]:
        """Written options and the cell of a strategy, which is planned once."""
        return cache(self._first_supported)

    def _first_supported(self, strategy: str) -> tuple[dict[str, Any], Cell]:
        points = [{}] if self.experiment is None else self._points(strategy)
        descriptor = strategy_of(strategy, self.accelerator)
        cells = [self._cell_at(strategy, descriptor, point) for point in points]
        return next((pair for pair in cells if descriptor.supports(pair[1]) is None), cells[0])

    def _cell_at(
        self, strategy: str, descriptor: Strategy, point: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Cell]:
        written = {**point.get("options", {}), **self.options.get(strategy, {})}
        options = descriptor.check_options(written, f"options of {strategy}")
        cell = Cell(
            **{**_fields_of(point), **self.settings},
            dataset=self.dataset,
            network=self.network,
            strategy=strategy,
            batch_size=self.batch_size,
            nodes=self.nodes,
            devices_per_node=self.devices_per_node,
            options=tuple(options.items()),
        )
        return written, fitted(normalise(cell), descriptor, written)

    def with_batch(self, batch_size: int) -> Question:
        return replace(self, batch_size=batch_size)

    def to_dict(self) -> dict[str, Any]:
        """The question as JSON values, with the settings and options of its experiment."""
        names = ("network", "dataset", "nodes", "devices_per_node", "batch_size")
        named = {name: getattr(self, name) for name in names}
        return named | {"settings": self.all_settings(), "options": self.all_options()}

    def all_settings(self) -> dict[str, Any]:
        """The settings of its cells that differ from the defaults and that decide a step."""
        of_all = {} if self.experiment is None else _fields_of(self._points(BASE)[0])
        written = {**of_all, **self.settings}
        return {
            name: written[name]
            for name in SETTINGS
            if name in written and written[name] != Cell.__dataclass_fields__[name].default
        }

    def all_options(self) -> dict[str, dict[str, Any]]:
        named = dict.fromkeys(self.options)
        if self.experiment is not None:
            named |= dict.fromkeys(self.experiment.strategies)
        written = {name: self.written_options(name) for name in named}
        return {name: options for name, options in written.items() if options}

    def _points(self, strategy: str) -> list[dict[str, Any]]:
        assert self.experiment is not None
        axes = {
            "dataset": self.dataset,
            "network": self.network,
            "strategy": strategy,
            "geometry": self.geometry,
            "batch_size": self.batch_size,
            **self.settings,
        }
        return written_points(self.experiment, axes)


_NAMED = {
    "dataset", "network", "strategy", "batch_size", "nodes", "devices_per_node", "repeat",
    "options",
}  # fmt: skip


def _fields_of(point: Mapping[str, Any]) -> dict[str, Any]:
    names = Cell.__dataclass_fields__.keys() - _NAMED
    return {name: value for name, value in point.items() if name in names}


TIE = 0.25
"""Probability to be faster than the first from which a candidate is tied with it."""
_ROUNDING = 1e-9
_FAILED = Reason("no_step", "failed here: its cell ended without a step")


@dataclass(frozen=True)
class Speedup:
    """One device's step over a candidate's, both of one basis."""

    ratio: float
    basis: str


@dataclass(frozen=True)
class Ranking:
    """The candidates of a question, best first; of a machine that need not exist if ``planned``."""

    recommender: str
    candidates: tuple[Candidate, ...]
    planned: bool = False

    @cached_property
    def ranked(self) -> tuple[Candidate, ...]:
        return tuple(c for c in self.candidates if c.ranked)

    @cached_property
    def not_ranked(self) -> tuple[Candidate, ...]:
        return tuple(c for c in self.candidates if not c.ranked)

    @cached_property
    def best(self) -> Candidate | None:
        """The fastest that can run and is not known to be too large; None if there is none."""
        return next(iter(self.ranked), None)

    @cached_property
    def base(self) -> Candidate | None:
        """One device; None if nothing is known of it."""
        return next((c for c in self.ranked if c.strategy == BASE), None)

    @cached_property
    def tied(self) -> tuple[Candidate, ...]:
        """The best, and all that are faster than it with a probability of a quarter or more."""
        best = self.best
        if best is None:
            return ()
        if best.chance is None:  # a rule placed it
            return (best,)
        return tuple(c for c in self.ranked if c is best or c.chance_to_win >= TIE)

    @cached_property
    def reference(self) -> Candidate | None:
        """One device, which speed-ups are ratios to; of a planned cluster also a too small one."""
        base = next((c for c in self.candidates if c.strategy == BASE), None)
        return base if self.planned and base and base.code == "too_large" else self.base

    def speedup(self, candidate: Candidate) -> Speedup | None:
        """Its speed-up over one device, measured if both were, else predicted; None if unknown."""
        base = self.reference
        if base is None:
            return None
        if candidate.basis == base.basis == "measured":
            return Speedup(base.shown_s / candidate.shown_s, "measured")
        if candidate.predicted_s and base.predicted_s:
            return Speedup(base.predicted_s / candidate.predicted_s, "predicted")
        return None

    def interval_s(self, candidate: Candidate) -> tuple[float, float]:
        """Holds the step in 90 % of cases, and the step that is shown.

        A prediction begins where the bound allows it, or at the shown step if that is shorter.
        """
        assert candidate.belief is not None
        low, high = candidate.belief.interval_s
        base = self.base
        if candidate.basis == "predicted" and base is not None and base.belief and candidate.bound:
            low = max(low, base.belief.interval_s[0] / candidate.bound)
        return min(low, candidate.shown_s), max(high, candidate.shown_s)

    def above_bound(self, candidate: Candidate) -> bool:
        """Whether it was measured faster than it can be."""
        speedup = self.speedup(candidate)
        if speedup is None or speedup.basis != "measured" or candidate.bound is None:
            return False
        return candidate.strategy != BASE and speedup.ratio > candidate.bound * (1 + _ROUNDING)

    def without(self, strategies: Collection[str]) -> Ranking:
        """The ranking after some candidates could not run; the others' chances grow."""
        if not strategies:
            return self
        left = [
            replace(c, belief=None, chance=None, reason=_FAILED) if c.strategy in strategies else c
            for c in self.candidates
        ]
        return replace(self, candidates=tuple(_ordered(left)))


def rank(
    candidates: Sequence[Candidate],
    recommender: str,
    *,
    by_rule: bool = False,
    planned: bool = False,
) -> Ranking:
    """Rank the candidates of one question.

    Args:
        candidates: in any order; sequential training, if it is among them, is the base.
        recommender: its name.
        by_rule: Horovod goes first, or GPipe where Horovod cannot; without chances.
        planned: the machine need not exist.
    """
    base = next((c for c in candidates if c.strategy == BASE), None)
    ordered = _ordered(_with_siblings([c.limited(base) for c in candidates]))
    return Ranking(recommender, tuple(_by_the_rule(ordered) if by_rule else ordered), planned)


def _with_siblings(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates; the runs of those that were measured move what is believed of the others."""
    known = [c for c in candidates if c.expected is not None and c.belief is not None]
    expected = [c.expected for c in known if c.expected is not None]
    measured = {
        place: c.belief
        for place, c in enumerate(known)
        if c.belief is not None and c.belief.basis == "measured"
    }
    beliefs = iter(
        informed(expected, measured, alike([known_strategy(c.strategy).family for c in known]))
    )
    return [replace(c, belief=next(beliefs)) if c in known else c for c in candidates]


def _ordered(candidates: Sequence[Candidate]) -> list[Candidate]:
    base = next((c for c in candidates if c.strategy == BASE and c.ranked), None)
    ranked = sorted((c for c in candidates if c.ranked), key=lambda c: _place(c, base))
    # What would be known, but does not fit, goes first.
    others = sorted(
        (c for c in candidates if not c.ranked), key=lambda c: (c.belief is None, c.strategy)
    )
    won = races(
        [c.belief for c in ranked if c.belief is not None],
        [_share(c) for c in ranked],
        ranked.index(base) if base is not None else None,
    )
    return [
        *(
            replace(
                c,
                chance=race.fastest,
                chance_to_win=race.beats_first,
                chance_to_gain=race.beats_base,
            )
            for c, race in zip(ranked, won, strict=True)
        ),
        *others,
    ]


def _share(candidate: Candidate) -> float:
    """The part of one device's step that the candidate needs at least; see :func:`races`.

    Measured steps may be shorter, but for a candidate that can gain nothing.
    """
    if candidate.strategy == BASE or not candidate.bound:
        return 0.0
    if candidate.basis == "measured" and candidate.bound > 1:
        return 0.0
    return 1 / candidate.bound


def _place(candidate: Candidate, base: Candidate | None) -> tuple[float, bool, float]:
    """By time within the bound; one device before what can only be as fast."""
    assert candidate.belief is not None
    step_s = candidate.belief.step_s
    least_s = _share(candidate) * base.belief.step_s if base and base.belief else 0.0
    return (max(step_s, least_s), candidate.strategy != BASE, step_s)


def _by_the_rule(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Horovod, or GPipe where Horovod does not fit, before all others; without chances."""
    placed = {c.strategy: c for c in candidates if c.ranked}
    first = placed.get("horovod") or placed.get("gpipe")
    return [
        replace(candidate, chance=None)
        for candidate in sorted(candidates, key=lambda candidate: candidate is not first)
    ]


def prediction_interval_s(ranking: Ranking, strategy: str) -> tuple[float, float] | None:
    """Holds the predicted step of a strategy in 90 % of cases; None if it has no prediction.

    By the prediction alone, whatever was measured of this strategy.
    """
    candidate = next((c for c in ranking.candidates if c.strategy == strategy), None)
    if candidate is None or candidate.expected is None:
        return None
    return ranking.interval_s(replace(candidate, belief=candidate.expected))


def candidate_dict(ranking: Ranking, candidate: Candidate) -> dict[str, Any]:
    """A ranked candidate as JSON values."""
    speedup = ranking.speedup(candidate)
    prediction = candidate.prediction
    parts = ("compute_s", "communication_s", "exposed_communication_s", "bubble_s")
    return {
        "strategy": candidate.strategy,
        "geometry": candidate.cell.geometry,
        "step_s": candidate.shown_s,
        "interval_s": list(ranking.interval_s(candidate)),
        "basis": candidate.basis,
        "speedup": speedup.ratio if speedup else None,
        "speedup_basis": speedup.basis if speedup else None,
        "bound": candidate.bound,
        "chance": candidate.chance,
        "fits": candidate.fits,
        "label": candidate.label,
        "cell_id": candidate.cell.id,
        "predicted_step_s": candidate.predicted_s,
        "predicted_interval_s": list(candidate.expected.interval_s) if candidate.expected else None,
        "measured_step_s": median(candidate.measured_s) if candidate.measured_s else None,
        "runs": len(candidate.measured_s),
        "predictor": prediction.predictor if prediction else None,
        **{name: getattr(prediction, name, None) for name in parts},
        "memory_bytes": candidate.memory_bytes,
        "device_memory_bytes": candidate.room.capacity_bytes if candidate.room else None,
        "limits": list(prediction.limits) if prediction else [],
        "notes": list(prediction.notes) if prediction else [],
    }
