"""Makes plans of cells, and finds those that cells ran with.

It also gives the data that a cell reads, and digests of the measurements that a plan is made from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from ddlbench.common.document import digest_of, read_json, read_object
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS, SYNTHETIC, DataFormat, DataRequest
from ddlbench.experiment.paths import RESULTS, plan_file
from ddlbench.experiment.site import Accelerator, Site
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import Strategy, known_strategy, strategy_of


@dataclass(frozen=True)
class StrategyPlan(Plan):
    """A plan with the descriptor of its strategy, as this module makes and reads it."""

    strategy: Strategy = field(compare=False, repr=False)

    @property
    def parts(self) -> int:
        """Parts of a mini-batch that pass through the network apart: micro-batches of shards."""
        shards = max(process.num_shards for process in self.processes)
        return shards * self.strategy.micro_batches(self)


def make_plan(
    cell: Cell, site: str | None = None, accelerator: Accelerator | None = None
) -> StrategyPlan:
    """The plan of a cell that its strategy supports.

    Args:
        cell: the cell.
        site: needed if the plan is made from the site's measurements.
        accelerator: that the site emulates.

    Raises:
        ConfigError: the plan is made from measurements that are missing.
    """
    strategy = strategy_of(cell.strategy, accelerator)
    return StrategyPlan(cell, *strategy.plan(cell, site), strategy)


def plan_at(
    cell: Cell, site: str, results_root: Path = RESULTS, accelerator: Accelerator | None = None
) -> StrategyPlan:
    """The plan that a cell ran with at a site, else the plan that it would run with.

    ``results_root`` is the folder that holds ``<site>/cells``.

    Raises:
        ConfigError: it did not run, and its plan is made from measurements that are missing.
    """
    path = results_root / plan_file(site, cell.id).relative_to(RESULTS)
    return kept_plan(path, cell) or make_plan(cell, site, accelerator)


def kept_plan(path: Path, cell: Cell) -> StrategyPlan | None:
    """The plan in a file; None if there is none, or it is not one of this cell."""
    try:
        plan = read_plan(read_object(path))
    except (OSError, ValueError):  # UnreadableJson, WrongForm and ConfigError are ValueErrors
        return None
    return plan if plan.cell == cell else None


def read_plan(values: Mapping[str, Any]) -> StrategyPlan:
    """A plan from its JSON form; its details must say of options what the cell says.

    Raises:
        WrongForm, ConfigError: as :meth:`Plan.from_dict`, or details and options differ.
    """
    plan = Plan.from_dict(values)
    strategy = known_strategy(plan.cell.strategy)
    plan.check_options(strategy.option_values(plan.cell))
    return StrategyPlan(plan.cell, plan.processes, plan.details, strategy)


def request_of(cell: Cell, site: Site) -> DataRequest:
    """The data of a cell on a site: generated, or the site's own copy."""
    source = SYNTHETIC
    if cell.data_source != "synthetic":
        source = DATASETS[cell.dataset].source or site.real_data[cell.dataset]
    return DataRequest(
        dataset=cell.dataset,
        data_format=cast("DataFormat | Literal['native']", cell.data_format),
        scale=cell.data_scale,
        seed=cell.seed,
        source=source,
    )


def measured_inputs(cell: Cell, site: str) -> tuple[Path, ...]:
    """Files of a site's measurements that the cell's plan is made from."""
    return strategy_of(cell.strategy).measured_inputs(cell, site)


def measured_digests(cell: Cell, site: str, results_root: Path = RESULTS) -> dict[str, str | None]:
    """``links_digest`` and ``profile_digest`` of a plan that would be made now.

    None for a file that the plan does not use, or that is missing below ``results_root``.
    """
    digests: dict[str, str | None] = {"links_digest": None, "profile_digest": None}
    for path in measured_inputs(cell, site):
        digests[f"{path.stem}_digest"] = _digest(results_root / path.relative_to(RESULTS))
    return digests


def _digest(path: Path) -> str | None:
    try:
        return digest_of(read_json(path))
    except (OSError, ValueError):
        return None
