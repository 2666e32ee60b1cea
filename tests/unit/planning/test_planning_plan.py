"""plan.json: written and read back, the same for the same cell, open to roles we have not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from ddlbench.common.form import Natural
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import SHIPPED_STRATEGIES
from ddlbench.planning.data_parallel import data_parallel_placement
from ddlbench.planning.plan import Options, Process
from ddlbench.planning.planner import make_plan, read_plan
from ddlbench.planning.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Options):
    """Of the server."""

    staleness: Natural = 1
    """Steps."""


class ParameterServer(Strategy):
    """Workers on all devices but the last, which holds the weights."""

    name: ClassVar[str] = "parameter-server"
    label: ClassVar[str] = "Parameter server"
    family: ClassVar[str] = "data parallel"
    executor: ClassVar[str] = f"{__name__}:ServerOptions"
    synchronous: ClassVar[bool] = False
    options: ClassVar[type[Options]] = ServerOptions

    def supports(self, cell: Cell) -> str | None:
        return None if cell.devices > 1 else "a server needs a worker"

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        workers = data_parallel_placement(cell)[:-1]
        server = Process(
            rank=cell.devices - 1,
            role="server",
            node=cell.nodes - 1,
            local_rank=cell.devices_per_node - 1,
            devices=(cell.devices_per_node - 1,),
            shard=-1,
            num_shards=len(workers),
            needs=(),
        )
        return (*workers, server)


SERVER = f"{__name__}:ParameterServer"


def _cell(strategy: str, **changes: Any) -> Cell:
    devices = 1 if strategy == "sequential" else 2
    return Cell("mnist", "vgg11", strategy, batch_size=32, devices_per_node=devices, **changes)


@pytest.mark.parametrize("strategy", SHIPPED_STRATEGIES)
def test_round_trip(strategy: str) -> None:
    plan = make_plan(_cell(strategy))
    again = read_plan(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.digest == plan.digest


def test_the_digest_is_stable() -> None:
    """Results name their plan by it; a change here makes every measured cell stale."""
    cell = _cell("gpipe", options=(("chunks", 8),))
    assert make_plan(cell).digest == make_plan(Cell.from_id(cell.id)).digest == "56aba29c2a6521ec"


@pytest.mark.parametrize(
    ("strategy", "given_as", "option"),
    [("horovod", 1.0, "cycle_time_s"), ("gpipe", "5", "balance")],
)
def test_a_cell_from_its_path_has_the_same_plan(strategy: str, given_as: Any, option: str) -> None:
    cell = _cell(strategy, options=((option, given_as),))
    assert make_plan(Cell.from_id(cell.id)).digest == make_plan(cell).digest


def test_other_cells_have_other_digests() -> None:
    cell = _cell("gpipe")
    others = [
        cell.with_(repeat=1),
        cell.with_(batch_size=64),
        cell.with_(devices_per_node=4),
        cell.with_(options=(("chunks", 8),)),
        cell.with_(strategy="model-parallel"),
    ]
    digests = {make_plan(other).digest for other in [cell, *others]}
    assert len(digests) == 6


def test_details_are_all_options() -> None:
    assert make_plan(_cell("gpipe", options=(("chunks", 8),))).details == {
        "chunks": 8,
        "checkpoint": "except_last",
        "balance": "time",
    }


def test_processes_of_a_node() -> None:
    plan = make_plan(_cell("ddp").with_(nodes=2))
    assert plan.world_size == 4
    assert [process.rank for process in plan.on_node(1)] == [2, 3]
    assert plan.on_node(2) == ()


def test_a_process_that_owns_no_batch() -> None:
    cell = _cell(SERVER, nodes=2, options=(("staleness", 3),))
    plan = make_plan(cell)
    assert [process.role for process in plan.processes] == ["worker"] * 3 + ["server"]
    *workers, server = plan.processes
    assert [(worker.shard, worker.needs) for worker in workers] == [
        (shard, ("inputs", "labels")) for shard in range(3)
    ]
    assert (server.shard, server.needs, server.node, server.devices) == (-1, (), 1, (1,))
    assert plan.on_node(1) == plan.processes[2:]
    again = read_plan(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.processes[-1].needs == ()
    assert Cell.from_id(cell.id) == cell
