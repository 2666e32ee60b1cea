"""Who serves and who trains, what cannot run, and what counts workers instead of devices."""

from __future__ import annotations

from typing import Any

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.site import load_site
from ddlbench.planning.matrix import expand
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of, workers_of
from ddlbench.strategies.parameter_server.descriptor import message_count


def _cell(geometry: str, batch: int = 48, **options: Any) -> Cell:
    nodes, devices = map(int, geometry.split("x"))
    return Cell(
        "mnist",
        "mlp",
        "parameter-server",
        batch_size=batch,
        nodes=nodes,
        devices_per_node=devices,
        options=tuple(options.items()),
    )


@pytest.mark.parametrize("geometry", ["2x1", "4x1"])
def test_one_server_on_a_node_of_its_own(geometry: str) -> None:
    server, *workers = make_plan(_cell(geometry)).processes
    actual = (server.role, server.rank, server.node, server.shard, server.needs)
    assert actual == ("server", 0, 0, -1, ())
    count = int(geometry[0]) - 1
    assert [(w.role, w.rank, w.node, w.shard, w.num_shards) for w in workers] == [
        ("worker", index + 1, index + 1, index, count) for index in range(count)
    ]
    assert workers_of(_cell(geometry)) == count


def test_servers_take_the_first_places() -> None:
    plan = make_plan(_cell("2x3", servers=4))
    assert [(p.role, p.node, p.local_rank, p.devices, p.shard) for p in plan.processes] == [
        ("server", 0, 0, (0,), -1),
        ("server", 0, 1, (1,), -1),
        ("server", 0, 2, (2,), -1),
        ("server", 1, 0, (0,), -1),
        ("worker", 1, 1, (1,), 0),
        ("worker", 1, 2, (2,), 1),
    ]
    named = {"servers": 4, "mode": "sync", "message_bytes": 4_194_304, "recompute": False}
    assert plan.details == named


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (_cell("2x1"), None),
        (_cell("4x1"), None),
        (_cell("1x1"), "1 server leaves no worker of 1 device; write a geometry of 2 devices"),
        (
            _cell("1x2", servers=2),
            "2 servers leave no worker of 2 devices; write a geometry of 3",
        ),
        (
            _cell("4x1", batch=32),
            "32 does not divide over 3 workers; make batch_size a multiple of",
        ),
        (_cell("1x5", batch=32), None),
        (_cell("4x1", batch=32, servers=2), None),
    ],
)
def test_reasons(cell: Cell, reason: str | None) -> None:
    actual = strategy_of(cell.strategy).supports(cell)
    assert actual is None if reason is None else reason in str(actual)


def test_it_depends_on_the_mode_whether_updates_are_stale() -> None:
    strategy = strategy_of("parameter-server")
    assert strategy.is_synchronous(_cell("2x1"))
    assert not strategy.is_synchronous(_cell("2x1", mode="async"))
    with pytest.raises(ConfigError, match="mode"):
        strategy.check_options({"mode": "bounded"}, "here")


def test_a_batch_of_each_device_is_one_of_each_worker() -> None:
    experiment = parse_experiment(
        {
            "experiment": "e",
            "matrix": {
                "dataset": ["mnist"],
                "network": ["mlp"],
                "strategy": ["sequential", "parameter-server", "ddp"],
                "geometry": ["1x4"],
            },
            "settings": {"batch_per_device": 32},
            "strategies": {"parameter-server": {"servers": [1, 2]}},
        },
        "here",
    )
    site = load_site("local")
    rows = expand(experiment, site.__class__(**{**vars(site), "devices_per_node": 4}))
    batches = {
        (row.cell.strategy, row.cell.option("servers")): (row.cell.batch_size, row.unsupported)
        for row in rows
    }
    assert batches == {
        ("sequential", None): (32, None),
        ("parameter-server", None): (96, None),
        ("parameter-server", 2): (64, None),
        ("ddp", None): (128, None),
    }
    assert all(row.base_id is not None for row in rows)


@pytest.mark.parametrize(
    ("weight_bytes", "servers", "message_bytes", "messages"),
    [(100, 1, 100, 1), (101, 1, 100, 2), (101, 2, 100, 2), (201, 2, 100, 4), (0, 3, 100, 3)],
)
def test_messages(weight_bytes: int, servers: int, message_bytes: int, messages: int) -> None:
    assert message_count(weight_bytes, servers, message_bytes) == messages
