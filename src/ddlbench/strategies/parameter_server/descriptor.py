"""Parameter server: servers hold the weights, workers compute gradients (Li et al. 2014).

::

    rank 0   server 0   messages 0, 2, 4, ...   <- gradients -   rank 2   worker 0   its part of
    rank 1   server 1   messages 1, 3, 5, ...   -  weights  ->   rank 3   worker 1   each mini-batch

    2x1   node 0: server                4x1   node 0: server
          node 1: worker                      nodes 1, 2, 3: workers      (Cheng et al.)

All weights form one vector, which is cut into messages of equal size. Servers get them round-robin,
so each of K servers holds a K-th of the weights, whatever the sizes of tensors. The servers take
the first devices of the cell; the others share ``batch_size``.

Sources: Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014;
docs/strategies.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from ddlbench.common.form import Count
from ddlbench.common.quantities import counted
from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.experiment.status import Reason
from ddlbench.planning.data_parallel import uneven_shares
from ddlbench.planning.memory import backward_peak_bytes, persistent_bytes
from ddlbench.planning.network_tables import COMPLEX_AS_REAL, NetworkTraits, first_unsupported
from ddlbench.planning.plan import Options, Plan, Process, Tried, process_at
from ddlbench.planning.recomputation import RecomputingOptions
from ddlbench.planning.step import Compute, Message, Step, transport_of, worker_tasks
from ddlbench.planning.strategy import Strategy

if TYPE_CHECKING:
    from ddlbench.planning.workload import Workload


_LEAST_BYTES = 64  # of a message


@dataclass(frozen=True, kw_only=True)
class ParameterServerOptions(RecomputingOptions):
    """Options of a parameter server."""

    servers: Annotated[Count, Tried(2)] = 1
    """Devices that hold the weights and do not train."""
    mode: Literal["sync", "async"] = "sync"
    """When a server updates: with the average of all workers' gradients, or with each worker's as
    they come, at a learning rate over the number of workers."""
    message_bytes: Annotated[int, Ge(_LEAST_BYTES), Tried(2**20, 16 * 2**20)] = 4_194_304
    """Largest piece of gradients or weights that travels at once."""

    def message_cap(self, shrunk: Callable[[int], int]) -> int:
        """Largest message, divided as the weights are by ``shrunk``; at least 64 bytes."""
        return max(_LEAST_BYTES, shrunk(self.message_bytes))


class ParameterServer(Strategy):
    """K servers and N workers, synchronous or asynchronous."""

    name: ClassVar[str] = "parameter-server"
    label: ClassVar[str] = "Parameter server"
    colour: ClassVar[str] = "#003F66"
    marker: ClassVar[str] = "d"
    family: ClassVar[str] = "data parallel"
    not_compiled: ClassVar[str] = "its servers hold weights and no network that torch could compile"
    executor = "ddlbench.strategies.parameter_server.executor:ParameterServerExecutor"
    predictors: ClassVar[tuple[str, ...]] = ("parameter-server", "parameter-server-messages")
    preferred_predictor: ClassVar[Mapping[str, str]] = {
        "cpu": "parameter-server",
        "cuda": "parameter-server-messages",
    }
    options: ClassVar[type[Options]] = ParameterServerOptions

    def workers(self, devices: int, options: Mapping[str, Any]) -> int:
        """Devices that are no servers; at least one, so that a batch can be divided."""
        servers = int(options.get("servers", ParameterServerOptions.servers))
        return max(1, devices - servers)

    def is_synchronous(self, cell: Cell, details: Mapping[str, Any] | None = None) -> bool:
        return ParameterServerOptions.of_cell(cell).mode == "sync"

    def step(self, workload: Workload, plan: Plan) -> Step:
        """A worker's step: in rounds of a message a server, a push, the update, a pull."""
        options, whole = ParameterServerOptions.of(plan), workload.parameter_bytes
        cap_bytes = options.message_cap(workload.shrunk)
        messages = message_count(whole, options.servers, cap_bytes)
        rounds = messages // options.servers
        tasks, done = worker_tasks(), 0.0
        for fraction in _ready_fractions(workload, rounds):
            tasks.append(Compute("backward", fraction - done))
            done, push = fraction, len(tasks)
            tasks += [
                Message("exchange", whole / rounds, "out"),
                Compute("update", 1 / messages, waits_for=(push,), lane="server"),
                Message("exchange", whole / rounds, "in", waits_for=(push + 1,)),
            ]
        tasks.append(Compute("backward", 1 - done))
        samples = plan.cell.batch_size / (plan.world_size - options.servers)
        return Step(tuple(tasks), samples, transport_of(workload.device_kind))

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        """Peak bytes of every rank.

        ::

            server   its part of weights and momentum | a buffer of the same size for each worker
            worker   weights | buffers | gradients, always | peak of one backward pass

        A worker has no momentum. Its gradients are sent in place and so stay from step to step; a
        new gradient takes memory of its own until it is added.
        """
        cell, blocks = plan.cell, workload.blocks
        workers = sum(process.role == "worker" for process in plan.processes)
        weights = sum(block.parameter_bytes for block in blocks)
        copies = workers + 1 + cell.optimizer_states
        of_role = {
            "server": weights / (plan.world_size - workers) * copies,
            "worker": persistent_bytes(blocks, states=0)
            + backward_peak_bytes(blocks, cell.batch_size / workers, gradients_exist=True),
        }
        return tuple(
            round(workload.fixed_memory_bytes + of_role[process.role]) for process in plan.processes
        )

    def supports(self, cell: Cell) -> str | None:
        servers = ParameterServerOptions.of_cell(cell).servers
        if cell.devices <= servers:
            noun = "server leaves" if servers == 1 else "servers leave"
            return Reason(
                "too_few_devices",
                f"{servers} {noun} no worker of {counted(cell.devices, 'device')}; write a "
                f"geometry of {servers + 1} devices or more, for example {servers + 1}x1",
            )
        return uneven_shares(cell)

    def why_not_network(self, traits: NetworkTraits, plan: Plan) -> Reason | None:
        """The row of weights holds real numbers, and has a gradient of each."""
        return first_unsupported(
            "the parameter server",
            (traits.complex, "sends real numbers only", COMPLEX_AS_REAL),
            (traits.irregular, "has momentum move weights that a step does not use", "use ddp"),
        )

    def alternatives(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """More servers, up to half of the devices, so that the batch divides over the workers."""
        for servers in range(1, cell.devices // 2 + 1):
            if cell.batch_size % (cell.devices - servers) == 0:
                yield {"servers": servers}

    def refinements(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Twice as many servers, and so on: each sends and receives less, and fewer train."""
        most = 0
        for values in self.alternatives(cell):
            if int(values["servers"]) >= 2 * most:
                yield values
                most = int(values["servers"])

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        """One process a device: first the servers, then the workers."""
        servers = ParameterServerOptions.of_cell(cell).servers
        return tuple(_process(cell, rank, servers) for rank in range(cell.devices))


def message_count(weight_bytes: int, servers: int, message_bytes: int) -> int:
    """Number of messages: the fewest of at most ``message_bytes``, equally many on each server."""
    rounds = max(1, -(-weight_bytes // (servers * message_bytes)))
    return servers * rounds


def _ready_fractions(workload: Workload, rounds: int) -> list[float]:
    """Share of backward after which each of ``rounds`` equal parts of the gradients is ready."""
    ends = [workload.parameter_bytes * (index + 1) / rounds for index in range(rounds)]
    fractions: list[float] = []
    filled = 0
    for tensor in workload.tensors:
        filled += tensor.bytes
        while len(fractions) < rounds and ends[len(fractions)] <= filled:
            fractions.append(tensor.ready_fraction)
    return fractions + [1.0] * (rounds - len(fractions))


def _process(cell: Cell, rank: int, servers: int) -> Process:
    workers, worker = max(1, cell.devices - servers), rank - servers
    if worker < 0:
        server = {"replica": rank, "shard": -1, "num_shards": workers, "needs": ()}
        return process_at(cell, rank, "server", **server)
    shard = {"shard": worker, "num_shards": workers}
    return process_at(cell, rank, "worker", replica=worker, **shard)
