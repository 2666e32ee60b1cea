"""Splits: several devices compute each layer of the same samples together.

::

    spatial    x | rows 0 | rows 1 |    filter    w | filters 0 |     channel   w | channels 0 |
                   halo exchange                    | filters 1 |                 | channels 1 |
                                                  outputs all-gathered          outputs added up

Source: Kahira et al., "An Oracle for Guiding Large-Scale Model/Hybrid Parallel Training of
Convolutional Neural Networks", HPDC 2021, section 3. Only once a user's own network is built is it
known to have enough rows or filters; if not, the cell ends ``unsupported`` and names the layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, ClassVar, Literal

from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Name
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.profile import SWAP
from ddlbench.experiment.status import Reason
from ddlbench.planning.network_tables import (
    DIMENSION_NAMES,
    DIMENSIONS,
    NetworkTraits,
    all_rows_needed,
    borrowing,
    first_unsupported,
    why_too_many,
)
from ddlbench.planning.plan import Options, Plan
from ddlbench.planning.step import Compute, Group, GroupOptions, Message, Step, transport_of
from ddlbench.planning.strategy import PARADL, LayerSplit
from ddlbench.strategies.grouped import Grouped
from ddlbench.strategies.splits.shares import By, layer_split, split_bytes

if TYPE_CHECKING:
    from ddlbench.planning.workload import Workload

_EXECUTORS = "ddlbench.strategies.splits.executor"


@dataclass(frozen=True, kw_only=True)
class SpatialOptions(Options):
    """Options of a split into rows."""

    split: Literal["height", "width", "both", "depth"] = "height"
    """Dimension that is split; both is a grid over height and width, depth is of volumes."""
    until: Name = "head"
    """First block that is whole on every device again; head finds the first linear, flattening or
    adaptive-pooling block, auto the first with too few rows before it."""


@dataclass(frozen=True, kw_only=True)
class DataSpatialOptions(SpatialOptions, GroupOptions):
    """Options of groups that split rows."""


@dataclass(frozen=True, kw_only=True)
class SplitDetails(SpatialOptions):
    """Plan details of a split; only one into rows has the options."""

    group: int
    replicas: int


class SplitStrategy(Grouped):
    """Base of all splits."""

    predictors: ClassVar[tuple[str, ...]] = ("split-layers", *PARADL)
    # None on CPUs: its steps are a third to two thirds too short there, so splits would win
    # where they lose (docs/validation/README.md, splits).
    preferred_predictor: ClassVar[Mapping[str, str]] = {"cuda": "paradl-corrected"}
    by: ClassVar[By]

    def limit(self, cell: Cell) -> str | None:
        return why_too_many(cell, self.by, self.group_size(cell))

    def layer_split(self, workload: Workload, plan: Plan) -> LayerSplit:
        details = SplitDetails.of(plan)
        grid = grid_of(details.split, details.group)
        return layer_split(workload, self.by, details.group, grid, details.until)

    def device_work(self, cell: Cell) -> str | None:
        if cell.devices == 1:
            return None
        details = self.details(cell)
        details["samples"] = cell.batch_size // int(details["replicas"])
        return " ".join([self.name, *(f"{key}={value}" for key, value in sorted(details.items()))])

    def step(self, workload: Workload, plan: Plan) -> Step | None:
        """One device measured alone, and the messages that it would have sent, without places."""
        work = self.device_work(plan.cell)
        if work is None:
            return None
        if work not in workload.alone:
            raise ConfigError(
                f"the profile of {workload.network} has no step of one device of {self.name} "
                f"alone ({work}); add {self.name} to the experiment's strategies, and measure the "
                "profile again (snakemake --force ...)"
            )
        messages = [
            Message(
                message.operation,
                message.bytes,
                group=_group(plan, message.ranks),
                ranks=tuple(message.ranks) if message.operation == SWAP else (),
                count=message.count,
            )
            for message in workload.alone[work].messages
        ]
        transport = transport_of(workload.device_kind)
        samples = plan.cell.batch_size / SplitDetails.of(plan).replicas
        return Step((Compute("alone"), *messages), samples, transport, alone=work)

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        details, split = SplitDetails.of(plan), self.layer_split(workload, plan)
        group, replicas = details.group, details.replicas
        return split_bytes(workload, plan.cell, split, by=self.by, group=group, replicas=replicas)

    def why_not_network(self, traits: NetworkTraits, plan: Plan) -> Reason | None:
        """Parts of a weight are new weights without its hooks; messages are differentiated once."""
        if traits.gradients_within:
            return Reason(
                "cannot_be_split",
                "the network differentiates its forward pass, and messages within layers cannot be "
                "differentiated twice; take a strategy that splits no layer",
            )
        why = first_unsupported(
            f"{self.label} splits weights, and a part",
            (traits.hooked, "has no hooks of the whole", "change the gradient within forward"),
            (traits.written, "is not written by forward", "change it between steps only"),
            (traits.irregular, "is to be used by all ranks alike", "take ddp"),
        )
        return why or (borrowing(traits) if traits.borrowed else None)


class Spatial(SplitStrategy):
    """Rows of every activation, with an exchange of halos (Dryden et al. 2019)."""

    by: ClassVar[By] = "rows"
    name: ClassVar[str] = "spatial"
    parallelism: ClassVar[str | None] = "spatial"
    label: ClassVar[str] = "Spatial"
    colour: ClassVar[str] = "#CC79A7"
    marker: ClassVar[str] = "8"
    executor: ClassVar[str] = f"{_EXECUTORS}:SpatialExecutor"
    options: ClassVar[type[Options]] = SpatialOptions

    def limit(self, cell: Cell) -> str | None:
        options, kind = SpatialOptions.of_cell(cell), DATASETS[cell.dataset].kind
        if kind == "images" and options.split == "depth":
            return Reason(
                "no_such_dimension",
                "images have no depth to split; write split: height, width or both",
            )
        if kind == "tokens":
            return Reason(
                "no_such_dimension",
                "a sequence of tokens has no rows to split; take strategy filter or channel",
            )
        for dim, size in grid_of(options.split, self.group_size(cell)).items():
            reason = why_too_many(cell, DIMENSION_NAMES[dim], size)
            # The table of limits counts the layers before the head only.
            if reason and (options.until == "head" or reason.code == "cannot_be_split"):
                return reason
        return None

    def why_not_layers(self, traits: NetworkTraits, cell: Cell) -> Reason | None:
        is_whole = self.group_size(cell) == 1 or not traits.blocks
        if is_whole or traits.rows_end_at != traits.blocks[0]:
            return None
        return all_rows_needed(traits.blocks[0])


class Filter(SplitStrategy):
    """Filters of every layer, outputs all-gathered."""

    by: ClassVar[By] = "filter"
    name: ClassVar[str] = "filter"
    parallelism: ClassVar[str | None] = "filter"
    label: ClassVar[str] = "Filter"
    colour: ClassVar[str] = "#8A4A70"
    marker: ClassVar[str] = "H"
    executor: ClassVar[str] = f"{_EXECUTORS}:WeightSplitExecutor"


class Channel(SplitStrategy):
    """Input channels of every layer but the first, outputs added up."""

    by: ClassVar[By] = "channel"
    name: ClassVar[str] = "channel"
    parallelism: ClassVar[str | None] = "channel"
    label: ClassVar[str] = "Channel"
    colour: ClassVar[str] = "#E3B3CC"
    marker: ClassVar[str] = "$\\clubsuit$"
    executor: ClassVar[str] = f"{_EXECUTORS}:WeightSplitExecutor"


class DataFilter(Filter):
    """Groups split filters; gradients are averaged over groups."""

    name: ClassVar[str] = "data-filter"
    parallelism: ClassVar[str | None] = "data+filter"
    label: ClassVar[str] = "Data + filter"
    colour: ClassVar[str] = "#5B2A48"
    marker: ClassVar[str] = "$\\diamondsuit$"
    options: ClassVar[type[Options]] = GroupOptions


class DataSpatial(Spatial):
    """Groups split rows; gradients are averaged over groups."""

    name: ClassVar[str] = "data-spatial"
    parallelism: ClassVar[str | None] = "data+spatial"
    label: ClassVar[str] = "Data + spatial"
    colour: ClassVar[str] = "#F08CC8"
    marker: ClassVar[str] = "$\\spadesuit$"
    options: ClassVar[type[Options]] = DataSpatialOptions


def _group(plan: Plan, ranks: Sequence[int]) -> Group:
    """The shape of the groups that send what the device sent to ``ranks`` when it was alone."""
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    alike = range(ranks[0], ranks[-1] + 1, step)
    tiles = tuple(alike) == tuple(ranks) and plan.world_size % (len(ranks) * step) == 0
    return Group.widest(plan, alike) if tiles else Group.of(plan, ranks)


def grid_of(split: str, devices: int) -> dict[int, int]:
    """Devices along each split dimension; -2 is height, -1 is width.

    ``both`` makes the grid as square as possible, with more devices along the height.

    >>> grid_of("height", 4), grid_of("both", 8)
    ({-2: 4}, {-2: 4, -1: 2})
    """
    if split != "both":
        return {DIMENSIONS[split]: devices}
    columns = next(size for size in range(isqrt(devices), 0, -1) if devices % size == 0)
    grid = {-2: devices // columns, -1: columns}
    return {dim: size for dim, size in grid.items() if size > 1}
