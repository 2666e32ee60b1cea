"""Parameter server: servers hold the weights, workers compute gradients (Li et al. 2014).

::

    rank 0   server 0   messages 0, 2, 4, ...   <- gradients -   rank 2   worker 0   its part of
    rank 1   server 1   messages 1, 3, 5, ...   -  weights  ->   rank 3   worker 1   each mini-batch

    2x1   node 0: server                4x1   node 0: server
          node 1: worker                      nodes 1, 2, 3: workers      (Cheng et al.)

All weights in a row are cut into messages of equal size, dealt to the servers in turn: a server
holds a K-th of every network, however its tensors differ. Each server takes the place of a device,
the first of the cell; ``batch_size`` is shared by the others.

Sources: Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014;
docs/strategies/parameter_server.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.status import Reason
from ddlbench.planning.memory import backward_peak_bytes, persistent_bytes
from ddlbench.planning.plan import PlanDetails
from ddlbench.planning.strategy import Process, Strategy, uneven_shares

if TYPE_CHECKING:
    from ddlbench.planning.plan import Plan
    from ddlbench.planning.workload import Workload


@dataclass(frozen=True)
class ParameterServerDetails(PlanDetails):
    """What a plan of a parameter server fixes.

    Args:
        servers: devices that hold the weights and do not train.
        mode: "sync" or "async".
        message_bytes: largest piece of gradients or weights that travels at once.
    """

    servers: int
    mode: str
    message_bytes: int


class ParameterServer(Strategy):
    """K servers and N workers, in step or each at its own pace."""

    name: ClassVar[str] = "parameter-server"
    label: ClassVar[str] = "Parameter server"
    colour: ClassVar[str] = "#003F66"
    marker: ClassVar[str] = "d"
    family: ClassVar[str] = "data parallel"
    executor: ClassVar[str] = (
        "ddlbench.strategies.parameter_server.executor:ParameterServerExecutor"
    )
    predictors: ClassVar[tuple[str, ...]] = ("parameter-server", "parameter-server-messages")
    preferred_predictor: ClassVar[Mapping[str, str]] = {
        "cpu": "parameter-server",
        "cuda": "parameter-server-messages",
    }
    options: ClassVar[dict[str, dict[str, Any]]] = {
        "servers": {
            "type": "integer",
            "minimum": 1,
            "default": 1,
            "description": "Devices that hold the weights and do not train.",
        },
        "mode": {
            "enum": ["sync", "async"],
            "default": "sync",
            "description": (
                "When a server updates: with the average of all workers' gradients, or with each "
                "worker's as they come, at a learning rate over the number of workers."
            ),
        },
        "message_bytes": {
            "type": "integer",
            "minimum": 64,
            "default": 4_194_304,
            "description": "Largest piece of gradients or weights that travels at once.",
        },
    }

    def workers(self, devices: int, options: Mapping[str, Any]) -> int:
        """What the servers leave; at least one, so that a batch can be shared at all."""
        servers = int(options.get("servers", self.options["servers"]["default"]))
        return max(1, devices - servers)

    def is_synchronous(self, cell: Cell) -> bool:
        """Workers that do not wait for each other compute with weights that others have changed."""
        return self.option_values(cell)["mode"] == "sync"

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        """A server holds weights and a buffer a worker; a worker keeps its gradients."""
        return server_and_worker_bytes(workload, plan)

    def supports(self, cell: Cell) -> str | None:
        """A worker at least; equal shares."""
        servers = int(self.option_values(cell)["servers"])
        if cell.devices <= servers:
            noun = "server leaves" if servers == 1 else "servers leave"
            return Reason(
                "too_few_devices",
                f"{servers} {noun} no worker of {cell.devices} device(s); write a geometry of "
                f"{servers + 1} devices or more, for example {servers + 1}x1",
            )
        return uneven_shares(cell)

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        """One process a device: first the servers, then the workers."""
        servers = int(self.option_values(cell)["servers"])
        workers = max(1, cell.devices - servers)
        return tuple(_process(cell, rank, rank - servers, workers) for rank in range(cell.devices))


def message_count(weight_bytes: int, servers: int, message_bytes: int) -> int:
    """Messages that weights are cut into: as few as are not too large, as many on each server."""
    rounds = max(1, -(-weight_bytes // (servers * message_bytes)))
    return servers * rounds


def _process(cell: Cell, rank: int, worker: int, workers: int) -> Process:
    """The process of a rank; ``worker`` is below zero for a server."""
    node, local = divmod(rank, cell.devices_per_node)
    if worker < 0:
        return Process(
            rank=rank,
            role="server",
            node=node,
            local_rank=local,
            devices=(local,),
            replica=rank,
            shard=-1,
            num_shards=workers,
            needs=(),
        )
    return Process(
        rank=rank,
        role="worker",
        node=node,
        local_rank=local,
        devices=(local,),
        replica=worker,
        shard=worker,
        num_shards=workers,
    )


def server_and_worker_bytes(workload: Workload, plan: Plan) -> tuple[int, ...]:
    """Peak bytes of every rank.

    ::

        server   its part of weights and momentum | a buffer of the same size for each worker
        worker   weights | buffers | gradients, always | the worst moment of one backward pass

    A worker has no momentum, but its gradients stay from step to step, as they are sent from where
    they lie: a new one is beside them until it is added.

    Args:
        workload: the profile.
        plan: with processes of role ``server`` and ``worker``.
    """
    cell, blocks = plan.cell, workload.blocks
    workers = sum(process.role == "worker" for process in plan.processes)
    weights = sum(block.parameter_bytes for block in blocks)
    copies = workers + (2 if cell.momentum > 0 else 1)
    of_role = {
        "server": weights / (plan.world_size - workers) * copies,
        "worker": persistent_bytes(blocks, 0.0)
        + backward_peak_bytes(blocks, cell.batch_size / workers, gradients_exist=True),
    }
    return tuple(
        round(workload.fixed_memory_bytes + of_role[process.role]) for process in plan.processes
    )
