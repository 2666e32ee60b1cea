"""A question: what somebody wants to train, on which devices, with which batch.

::

    --network vgg11 --dataset cifar10 --geometry 2x4 --batch-size 256      by options
    --configfile mine.yaml [the same options, to choose among its values]   by an experiment

A question has a cell for each strategy. Options of a strategy that nobody wrote are fitted to the
geometry and the batch (:func:`ddlbench.planning.planner.fitted`); some strategies have further
cells, whose options may be faster (:func:`ddlbench.planning.planner.refined`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import OF_A_STEP, Cell
from ddlbench.experiment.config import Experiment
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import BASE, NETWORKS, known, mismatch, unknown
from ddlbench.experiment.site import Accelerator
from ddlbench.planning.matrix import check_name, written_points
from ddlbench.planning.planner import fitted, reduced, refined
from ddlbench.planning.recomputation import RecomputingOptions
from ddlbench.planning.strategy import Strategy, normalise, strategy_of

_OF_A_QUESTION = {
    "dataset", "network", "strategy", "nodes", "devices_per_node", "batch_size", "options",
}  # fmt: skip
SETTINGS = tuple(name for name in OF_A_STEP if name not in _OF_A_QUESTION)
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
        if self.network not in known(NETWORKS.group) and ":" not in self.network:
            raise ConfigError(unknown(NETWORKS.group, self.network, known(NETWORKS.group)))
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

    def cells(self, strategy: str) -> list[Cell]:
        """The cell of one strategy, and the same with options that may be faster.

        Raises:
            ConfigError: an option is unknown, or a value is invalid.
        """
        written, cell = self._written(strategy)
        return [cell, *refined(cell, strategy_of(strategy, self.accelerator), written)]

    def smaller_cells(self, strategy: str) -> Iterator[Cell]:
        """The cell of one strategy with options that need less memory.

        Raises:
            ConfigError: an option is unknown, or a value is invalid.
        """
        written, cell = self._written(strategy)
        return reduced(cell, strategy_of(strategy, self.accelerator), written)

    def recomputing(self, strategy: str) -> Question | None:
        """The question with activations that one strategy recomputes.

        None if the strategy cannot, or if the user wrote whether it does.

        Raises:
            ConfigError: an option is unknown, or a value is invalid.
        """
        written = self.written_options(strategy)
        can = issubclass(strategy_of(strategy, self.accelerator).options, RecomputingOptions)
        if not can or "recompute" in written:
            return None
        return replace(self, options={**self.options, strategy: {**written, "recompute": True}})

    @cached_property
    def _planned(self) -> dict[str, tuple[dict[str, Any], Cell]]:
        """Written options and the cell of each strategy that was planned."""
        return {}

    def _written(self, strategy: str) -> tuple[dict[str, Any], Cell]:
        """Written options and the cell of a strategy, which is planned once."""
        if strategy not in self._planned:
            self._planned[strategy] = self._first_supported(strategy)
        return self._planned[strategy]

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


def _fields_of(point: Mapping[str, Any]) -> dict[str, Any]:
    names = Cell.__dataclass_fields__.keys() - _OF_A_QUESTION - {"repeat"}
    return {name: value for name, value in point.items() if name in names}
