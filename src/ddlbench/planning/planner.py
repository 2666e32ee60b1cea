"""Makes plans of cells, and finds those that cells ran with.

It also gives the data that a cell reads, and digests of the measurements that a plan is made from.
Where nobody wrote options, it fits them to the geometry and the batch (:func:`fitted`), and lists
others that may be faster (:func:`refined`)::

    1F1B, 8 devices, batch 256     4 micro-batches (default) < 8 stages     -> chunks=8, 16, 32
    1F1B, 2 devices, batch 14      14 does not divide into 4                -> chunks=2, 7

Each strategy names both (:meth:`ddlbench.planning.strategy.Strategy.alternatives`, `refinements`).
A matrix is not fitted: its cells are what the experiment file says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

from ddlbench.common.document import digest_of, read_json, read_object
from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.experiment.dataset_spec import DATASETS, SYNTHETIC, DataFormat, DataRequest
from ddlbench.experiment.paths import RESULTS, plan_file
from ddlbench.experiment.site import Accelerator, Site
from ddlbench.planning.plan import BlockSource, Plan
from ddlbench.planning.strategy import (
    Strategy,
    cut_by_profile,
    known_strategy,
    strategy_of,
    why_not_supported,
)
from ddlbench.planning.tried_networks import network_digest


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
    cell: Cell, source: BlockSource = None, accelerator: Accelerator | None = None
) -> StrategyPlan:
    """The plan of a cell that its strategy supports.

    ``source`` is needed if the plan is made from measurements.

    Raises:
        ConfigError: the plan is made from measurements that are missing.
    """
    strategy = strategy_of(cell.strategy, accelerator)
    return StrategyPlan(cell, *strategy.plan(cell, source), strategy)


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


def measured_digests(cell: Cell, site: str, results_root: Path = RESULTS) -> dict[str, str | None]:
    """Digests of what a plan would be made from now: links, profile, code of the network.

    None for a file that the plan does not use, or that is missing below ``results_root``.
    """
    digests = {
        "links_digest": None,
        "profile_digest": None,
        "network_digest": network_digest(cell.network),
    }
    for path in strategy_of(cell.strategy).measured_inputs(cell, site):
        with suppress(OSError, ValueError):
            content = read_json(results_root / path.relative_to(RESULTS))
            digests[f"{path.stem}_digest"] = digest_of(content)
    return digests


_MOST_ALTERNATIVES = 12  # a strategy that supports none of so many supports none
_MOST_PER_STAGE = 8
_MOST_PASSES = 2048  # of all stages and micro-batches


def fitted(cell: Cell, strategy: Strategy, written: Mapping[str, Any]) -> Cell:
    """The cell with options that its strategy supports, where nobody wrote others.

    ::

        defaults -> supported and suitable? -> alternatives, best first -> the first supported

    ``written`` are the options that the user wrote; these stay.

    Returns:
        The cell itself, with balance ``profile`` where it takes that, if no alternative helps.
    """
    cell = cut_by_profile(cell, strategy, written)
    if why_not_supported(cell, strategy) is None and strategy.suits(cell):
        return cell
    first = islice(strategy.alternatives(cell), _MOST_ALTERNATIVES)
    return next(_supported(cell, strategy, written, first), cell)


def refined(cell: Cell, strategy: Strategy, written: Mapping[str, Any]) -> list[Cell]:
    """The same cell with options that may make it faster; a prediction decides."""
    return list(_supported(cell, strategy, written, strategy.refinements(cell)))


def reduced(cell: Cell, strategy: Strategy, written: Mapping[str, Any]) -> Iterator[Cell]:
    """The same cell with options that need less memory, the slightest change first."""
    return _supported(cell, strategy, written, strategy.reductions(cell))


def _supported(
    cell: Cell,
    strategy: Strategy,
    written: Mapping[str, Any],
    changes: Iterable[Mapping[str, OptionValue]],
) -> Iterator[Cell]:
    """The cell with each of the changes that its strategy supports and that nobody wrote."""
    for values in changes:
        if values.keys() & written.keys():
            continue
        options = strategy.check_options({**dict(cell.options), **values}, cell.strategy)
        other = cut_by_profile(cell.with_(options=tuple(options.items())), strategy, written)
        if other != cell and why_not_supported(other, strategy) is None:
            yield other


def micro_batch_counts(samples: int, stages: int) -> Iterator[int]:
    """Numbers of equal micro-batches, best first: those that fill the stages, then fewer.

    With eight times as many as stages, the bubble is less than a ninth of the time: more are not
    worth their overhead.
    """
    least = range(max(1, stages), min(samples, _MOST_PER_STAGE * stages) + 1)
    fewer = range(min(stages - 1, samples), 0, -1)
    yield from (count for count in (*least, *fewer) if samples % count == 0)


def compared_micro_batches(samples: int, stages: int) -> Iterator[int]:
    """Numbers of equal micro-batches to compare: one a stage to four, each at least twice the last.

    With four times as many as stages the bubble is negligible (Huang et al. 2019, section 2.3).
    None makes so many passes that their schedule takes seconds to check.
    """
    last = 0
    for count in range(stages, min(samples, 4 * stages, _MOST_PASSES // stages) + 1):
        if samples % count == 0 and count >= 2 * last:
            yield count
            last = count
