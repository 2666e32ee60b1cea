"""What the blocks of a network cost, by which a login node cuts it into stages.

Those of built-in networks are sums over their operations (:mod:`ddlbench.planning.layer_table`). An
emulated device has the blocks of its own table (:mod:`ddlbench.planning.device_table`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import Accelerator
from ddlbench.planning.device_table import DeviceTable, table_for
from ddlbench.planning.layer_table import LayerBlock, built_in_layers


@dataclass(frozen=True)
class BlockCost:
    """What a block costs; bytes are of float32.

    Args:
        name: in the network.
        work: that stages share evenly: floating-point operations of a forward pass of one sample,
            or the seconds of both passes where only an emulated device knows the block.
        parameter_bytes: of its weights.
        output_bytes: of one sample.
    """

    name: str
    work: float
    parameter_bytes: int
    output_bytes: float


@cache
def block_costs(network: str, dataset: str) -> tuple[BlockCost, ...] | None:
    """The blocks of a built-in network, in order; None of another one."""
    blocks = built_in_layers(network, dataset)
    return None if blocks is None else tuple(map(_cost, blocks))


def _cost(block: LayerBlock) -> BlockCost:
    work = sum(operation.operations * operation.times for operation in block.operations)
    return BlockCost(block.name, work, sum(block.tensor_bytes), block.output_bytes)


def blocks_of(cell: Cell, accelerator: Accelerator | None) -> tuple[BlockCost, ...] | None:
    """The blocks that the cell's network has on a site, in order; None if no table knows them.

    ``accelerator`` is what the site emulates; None if its devices are real.

    Raises:
        ConfigError: the accelerator's table is wrong.
    """
    built_in = block_costs(cell.network, cell.dataset)
    if accelerator is None or not accelerator.table_file(cell.dataset, cell.network).is_file():
        return built_in  # a cell without a table is refused by its site
    table = table_for(accelerator, cell.dataset, cell.network)
    return built_in if built_in and cut_alike(table, built_in) else _timed(table)


def cut_alike(table: DeviceTable, costs: Sequence[BlockCost]) -> bool:
    """Whether a table has as many blocks as a network, with as large weights in each."""
    return [block.parameter_bytes for block in table.blocks] == [c.parameter_bytes for c in costs]


def _timed(table: DeviceTable) -> tuple[BlockCost, ...]:
    largest = table.batch_sizes[-1]
    return tuple(
        BlockCost(
            block.name,
            block.forward.at(largest) + block.backward.at(largest),
            block.parameter_bytes,
            block.output_bytes,
        )
        for block in table.blocks
    )
