"""Hybrid sharding (HSDP): ranks of a group share the weights, groups have copies of them.

::

    node 0   [ rank 0: w 1/2   rank 1: w 2/2 ]   group 0: samples 0 .. b-1
    node 1   [ rank 2: w 1/2   rank 3: w 2/2 ]   group 1: samples b .. 2b-1
                 |                  |
                 '- all-reduces of the gradients of a share, between nodes

    a block's turn    | all-gather within the group | compute | free |
    after backward    | reduce-scatter within the group | all-reduce over groups, of a share |

Between nodes travel the gradients of a share only, once a step, while FSDP sends whole weights and
gradients. Within a group each rank keeps more: 1 over the ranks of a group, not of all.

Source: Y. Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.2 (hybrid sharding).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.planning.data_parallel import uneven_shares
from ddlbench.planning.plan import Options
from ddlbench.planning.step import GroupOptions, larger_groups, uneven_groups
from ddlbench.strategies.fsdp.descriptor import FsdpOptions, FullyShardedDataParallel


@dataclass(frozen=True, kw_only=True)
class HsdpOptions(FsdpOptions, GroupOptions):
    """Options of FSDP, and how many devices share the weights."""


class HybridSharded(FullyShardedDataParallel):
    """Weights are shared within a group, by default a node, and copied between groups."""

    name: ClassVar[str] = "hsdp"
    label: ClassVar[str] = "HSDP"
    colour: ClassVar[str] = "#6F5FA8"
    marker: ClassVar[str] = "$\\circledast$"
    not_compiled: ClassVar[str] = "its two axes have not been tried with torch.compile"
    executor: ClassVar[str] = "ddlbench.strategies.hsdp.executor:HsdpExecutor"
    options: ClassVar[type[Options]] = HsdpOptions

    def sharers(self, cell: Cell) -> int:
        return HsdpOptions.of_cell(cell).group or cell.devices_per_node

    def supports(self, cell: Cell) -> str | None:
        return uneven_groups(cell, self.sharers(cell)) or uneven_shares(cell)

    def alternatives(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Groups of several nodes, whose ranks keep less."""
        yield from ({"group": size} for size in larger_groups(cell))
