"""Base of strategies whose devices compute each layer together, in groups.

::

    all devices one group    [ rank 0  rank 1  rank 2  rank 3 ]    all: the same samples

    option ``group``         node 0   [ rank 0  rank 1 ]           group 0: samples 0 .. b-1
                             node 1   [ rank 2  rank 3 ]           group 1: samples b .. 2b-1

Ranks 0 and 2 have the same part of the weights, whose gradients are added up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.experiment.status import Reason
from ddlbench.planning.network_tables import NetworkTraits, first_unsupported
from ddlbench.planning.plan import PlanDetails, Process, placement_of_groups
from ddlbench.planning.step import GroupOptions, larger_groups, uneven_groups
from ddlbench.planning.strategy import Strategy


@dataclass(frozen=True)
class GroupDetails(PlanDetails):
    """Plan details of every strategy with groups."""

    group: int
    replicas: int


class Grouped(Strategy):
    """Without an option ``group``, all devices are one group."""

    family: ClassVar[str] = "split"
    splits_layers: ClassVar[bool] = True
    not_compiled: ClassVar[str] = "every message within a layer ends what torch can compile"

    def group_size(self, cell: Cell) -> int:
        """Devices that compute the same samples."""
        if not issubclass(self.options, GroupOptions):
            return cell.devices
        return GroupOptions.of_cell(cell).group or cell.devices_per_node

    def limit(self, cell: Cell) -> str | None:
        """Why a built-in network cannot be split; a user's own network is checked when it runs."""
        return None

    def supports(self, cell: Cell) -> str | None:
        return uneven_groups(cell, self.group_size(cell)) or self.limit(cell)

    def alternatives(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Groups of several nodes, so that the batch divides over fewer of them."""
        if issubclass(self.options, GroupOptions):
            yield from ({"group": size} for size in larger_groups(cell))

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        return placement_of_groups(cell, self.group_size(cell))

    def details(self, cell: Cell) -> dict[str, Any]:
        size = self.group_size(cell)
        return {**self.option_values(cell), "group": size, "replicas": cell.devices // size}


def weights_with_hooks(traits: NetworkTraits, label: str) -> Reason | None:
    """Why weights cannot be split: parts of a weight are new weights, without its hooks."""
    why = "has none of the hooks of a weight's gradient"
    instead = "change the gradient within forward, by torch.autograd.Function"
    return first_unsupported(f"{label} splits weights, and a part", (traits.hooked, why, instead))
