"""plan.json: which process runs where, and what the strategy fixes; read by run and predict.

``details`` are plain JSON: a strategy's options, and what follows from them. Only the strategy
itself reads them, through a view that names each value and its type::

    class DdpDetails(PlanDetails):
        bucket_cap_bytes: int

    DdpDetails.of(plan).bucket_cap_bytes

This module also gives the data that a cell reads, and digests of the measurements behind a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS, SYNTHETIC, DataFormat, DataRequest
from ddlbench.experiment.document import digest_of
from ddlbench.experiment.errors import shown
from ddlbench.experiment.form import Form, WrongForm, read_form
from ddlbench.experiment.paths import RESULTS, plan_file
from ddlbench.experiment.site import Accelerator, Site
from ddlbench.experiment.text import read_json, read_object
from ddlbench.planning.strategy import Process, known_strategy, strategy_of

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Plan:
    """A cell's processes, and the other values that its strategy fixes."""

    cell: Cell
    processes: tuple[Process, ...]
    details: dict[str, Any]

    @property
    def world_size(self) -> int:
        return len(self.processes)

    def on_node(self, node: int) -> tuple[Process, ...]:
        return tuple(process for process in self.processes if process.node == node)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "cell": self.cell.to_dict(),
            "processes": [process.to_dict() for process in self.processes],
            "details": self.details,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Read what :meth:`to_dict` writes.

        Raises:
            WrongForm: it is of another version, a part is missing or not of its type, or what the
                plan says of the cell's options is not what the cell says.
            ConfigError: the cell cannot be one.
        """
        parts = read_form(_PlanFile, values)
        if parts.schema_version != SCHEMA_VERSION:
            raise WrongForm(f"schema_version: is {parts.schema_version}, not {SCHEMA_VERSION}")
        plan = cls(Cell.from_dict(parts.cell), parts.processes, dict(parts.details))
        plan._check_options()
        return plan

    def _check_options(self) -> None:
        """A number that was damaged could have a schedule of it built without end."""
        strategy = known_strategy(self.cell.strategy)
        options = {} if strategy is None else strategy.option_values(self.cell)
        for name, value in options.items():
            said = self.details.get(name, value)
            if isinstance(value, int) and value and said != value:  # 0 lets the plan choose
                raise WrongForm(f"details.{name}: {shown(said)} is not the cell's {value}")

    @property
    def digest(self) -> str:
        return digest_of(self.to_dict())


@dataclass(frozen=True)
class _PlanFile(Form):
    """Parts of plan.json and their types."""

    schema_version: int
    cell: Mapping[str, Any]
    processes: tuple[Process, ...]
    details: Mapping[str, Any]


def make_plan(cell: Cell, site: str | None = None, accelerator: Accelerator | None = None) -> Plan:
    """The plan of a cell that its strategy supports.

    Args:
        cell: the cell.
        site: needed if the plan is made from the site's measurements.
        accelerator: that the site emulates.

    Raises:
        ConfigError: the plan is made from measurements that are missing.
    """
    return Plan(cell, *strategy_of(cell.strategy, accelerator).plan(cell, site))


def parts_of(plan: Plan) -> int:
    """Equal parts of a mini-batch that pass through the network apart: shards' micro-batches."""
    shards = max(process.num_shards for process in plan.processes)
    return shards * strategy_of(plan.cell.strategy).micro_batches(plan)


def plan_at(
    cell: Cell,
    site: str,
    results_root: Path = RESULTS,
    accelerator: Accelerator | None = None,
) -> Plan:
    """The plan that a cell ran with at a site, else the plan that it would run with.

    ``results_root`` is the folder that holds ``<site>/cells``.

    Raises:
        ConfigError: it did not run, and its plan is made from measurements that are missing.
    """
    path = results_root / plan_file(site, cell.id).relative_to(RESULTS)
    return kept_plan(path, cell) or make_plan(cell, site, accelerator)


def kept_plan(path: Path, cell: Cell) -> Plan | None:
    """The plan in a file; None if there is none, or it is not one of this cell."""
    try:
        plan = Plan.from_dict(read_object(path))
    except (OSError, ValueError):  # UnreadableJson, WrongForm and ConfigError are ValueErrors
        return None
    return plan if plan.cell == cell else None


@dataclass(frozen=True)
class PlanDetails:
    """Base of the views; a field without a default must be in the plan."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"strict": True, "extra": "ignore"}

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The view of a plan's details. JSON lists become tuples, also those within lists.

        Raises:
            WrongForm: the plan lacks a value, or it is not of its type; so it is of another
                strategy, or damaged.
        """
        return read_form(cls, plan.details)


@dataclass(frozen=True)
class OwnParts:
    """What was found out about the user's own networks and data.

    Args:
        operations: of the forward pass of one sample, by network and dataset.
        images: training images that are read, by dataset and scale.
        remarks: what could not be looked at here, a sentence each.
        data: what lies in folders of data, a line each.
    """

    operations: Mapping[tuple[str, str], int] = field(default_factory=dict)
    images: Mapping[tuple[str, float], int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    data: tuple[str, ...] = ()


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
    """``links_digest`` and ``profile_digest`` of a plan that would be made now.

    None for a file that the plan does not use, or that is missing below ``results_root``.
    """
    digests: dict[str, str | None] = {"links_digest": None, "profile_digest": None}
    for path in strategy_of(cell.strategy).measured_inputs(cell, site):
        digests[f"{path.stem}_digest"] = _digest(results_root / path.relative_to(RESULTS))
    return digests


def _digest(path: Path) -> str | None:
    try:
        return digest_of(read_json(path))
    except (OSError, ValueError):
        return None
