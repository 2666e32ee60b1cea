"""Executor of hybrid sharding: FSDP2 on a mesh of two axes, groups times ranks of a group."""

from __future__ import annotations

from typing import cast

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ddlbench.planning.strategy import strategy_of
from ddlbench.strategies.fsdp.executor import FsdpExecutor
from ddlbench.strategies.hsdp.descriptor import HybridSharded


class HsdpExecutor(FsdpExecutor):
    """A share of every weight for each rank of a group; groups add up gradients."""

    def mesh(self) -> DeviceMesh:
        cell = self.plan.cell
        sharers = cast(HybridSharded, strategy_of(cell.strategy)).sharers(cell)
        shape = (self.plan.world_size // sharers, sharers)
        return init_device_mesh(
            self.context.devices[0].type, shape, mesh_dim_names=("groups", "group")
        )
