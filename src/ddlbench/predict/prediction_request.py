"""What is asked of the predictors: a network, a dataset, devices and a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.registry import known
from ddlbench.experiment.schema import nearest
from ddlbench.planning.strategy import normalise, strategy_of

__all__ = ["PredictionRequest"]


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
