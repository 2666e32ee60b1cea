"""What strategies say of themselves: who runs where, and what they cannot do."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import SHIPPED_STRATEGIES
from ddlbench.planning.plan import Process
from ddlbench.planning.strategy import Strategy, known_strategy, normalise, strategy_of
from ddlbench.strategies.ddp.descriptor import DdpOptions
from ddlbench.strategies.pipelining.descriptor import PipeliningOptions

DATA_PARALLEL = ("horovod", "ddp", "fsdp", "deepspeed", "local-sgd")
ONE_PROCESS = ("gpipe", "model-parallel")


def _cell(strategy: str, nodes: int = 1, devices: int = 1, batch: int = 48, **options: Any) -> Cell:
    return Cell(
        "mnist",
        "resnet18",
        strategy,
        batch_size=batch,
        nodes=nodes,
        devices_per_node=devices,
        options=tuple(options.items()),
    )


def _placement(strategy: str, nodes: int, devices: int) -> tuple[Process, ...]:
    return strategy_of(strategy).placement(_cell(strategy, nodes, devices))


# Placement: (rank, node, local rank, devices, shard, num_shards) ---------------------------------


# A parameter server has a device too many for that.
@pytest.mark.parametrize(
    "strategy", [name for name in SHIPPED_STRATEGIES if name != "parameter-server"]
)
def test_one_device(strategy: str) -> None:
    (process,) = _placement(strategy, 1, 1)
    assert process == Process(
        rank=0, role=process.role, node=0, local_rank=0, devices=(0,), shard=0, num_shards=1
    )
    assert process.needs == ("inputs", "labels")


@pytest.mark.parametrize("strategy", DATA_PARALLEL)
def test_data_parallel_on_one_node(strategy: str) -> None:
    processes = _placement(strategy, 1, 4)
    assert [
        (p.rank, p.node, p.local_rank, p.devices, p.shard, p.num_shards) for p in processes
    ] == [
        (0, 0, 0, (0,), 0, 4),
        (1, 0, 1, (1,), 1, 4),
        (2, 0, 2, (2,), 2, 4),
        (3, 0, 3, (3,), 3, 4),
    ]
    assert {p.role for p in processes} == {"worker"}


@pytest.mark.parametrize("strategy", DATA_PARALLEL)
def test_data_parallel_on_two_nodes(strategy: str) -> None:
    processes = _placement(strategy, 2, 4)
    assert [(p.rank, p.node, p.local_rank, p.devices) for p in processes] == [
        (0, 0, 0, (0,)),
        (1, 0, 1, (1,)),
        (2, 0, 2, (2,)),
        (3, 0, 3, (3,)),
        (4, 1, 0, (0,)),
        (5, 1, 1, (1,)),
        (6, 1, 2, (2,)),
        (7, 1, 3, (3,)),
    ]


@pytest.mark.parametrize("strategy", ONE_PROCESS)
def test_one_process_drives_a_node(strategy: str) -> None:
    (process,) = _placement(strategy, 1, 4)
    assert (process.rank, process.node, process.local_rank) == (0, 0, 0)
    assert process.devices == (0, 1, 2, 3)
    assert (process.shard, process.num_shards) == (0, 1)


@pytest.mark.parametrize("strategy", SHIPPED_STRATEGIES)
@given(nodes=st.integers(1, 5), devices=st.integers(1, 5))
def test_placements_are_whole(strategy: str, nodes: int, devices: int) -> None:
    cell = normalise(_cell(strategy, nodes, devices, batch=nodes * devices * 4))
    if strategy_of(strategy).supports(cell) is not None:
        return
    processes = strategy_of(strategy).placement(cell)
    assert [p.rank for p in processes] == list(range(len(processes)))
    # Every device of the cell is driven once.
    driven = sorted((p.node, device) for p in processes for device in p.devices)
    assert driven == [(n, d) for n in range(cell.nodes) for d in range(cell.devices_per_node)]
    # Every part of a mini-batch is consumed once, or by all of a group that computes it together;
    # a pipeline's stages need not all read it.
    (parts,) = {p.num_shards for p in processes}
    readers = len(processes) // parts if strategy_of(strategy).family == "split" else 1
    for need in ("inputs", "labels"):
        read = sorted(p.shard for p in processes if need in p.needs)
        assert read == [part for part in range(parts) for _ in range(readers)]
    for node in range(cell.nodes):
        local = [p.local_rank for p in processes if p.node == node]
        assert local == list(range(len(local)))


# What they cannot do -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (_cell("sequential"), None),
        (_cell("sequential", 1, 2), "sequential training uses one device; write 1x1"),
        (_cell("ddp", 4, 4), None),
        (_cell("ddp", 1, 5), "a mini-batch of 48 does not divide over 5 workers; make batch_size"),
        (_cell("horovod", 2, 4), None),
        (_cell("horovod", 2, 5), "a mini-batch of 48 does not divide over 10 workers; make batch"),
        (_cell("gpipe", 1, 4), None),
        (
            _cell("gpipe", 2, 4),
            "drives the devices of one node and cannot span 2; write a geometry of one",
        ),
        (_cell("gpipe", 1, 4, batch=50), "does not divide into 4 micro-batches; make batch_size a"),
        (_cell("gpipe", 1, 4, chunks=5), "does not divide into 5 micro-batches; make batch_size a"),
        (_cell("gpipe", 1, 2, balance="5+9"), None),
        (_cell("gpipe", 1, 4, balance="5+9"), "balance 5+9 has 2 parts for 4 stages"),
        (_cell("gpipe", 1, 1, balance=14), None),
        (
            _cell("gpipe", 1, 2, balance=14),
            "balance 14 has 1 part for 2 stages; write a number of blocks per stage, as 5+9",
        ),
        (_cell("model-parallel", 1, 4, batch=50), None),
        (_cell("model-parallel", 2, 1), "drives the devices of one node and cannot span 2"),
        (_cell("model-parallel", 1, 3, balance="5+9"), "balance 5+9 has 2 parts for 3 stages"),
    ],
)
def test_reasons(cell: Cell, reason: str | None) -> None:
    actual = strategy_of(cell.strategy).supports(cell)
    assert actual is None if reason is None else reason in str(actual)


def test_the_baseline_has_one_form() -> None:
    cell = _cell("sequential", 2, 4).with_(fabric="1gbit")
    assert normalise(cell) == _cell("sequential")
    other = _cell("ddp", 2, 4).with_(fabric="1gbit")
    assert normalise(other) is other


# Options and labels ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED_STRATEGIES)
def test_descriptors_are_complete(name: str) -> None:
    strategy = strategy_of(name)
    assert strategy.name == name
    assert strategy.label
    assert strategy.family in {"baseline", "data parallel", "pipeline", "model", "split"}
    module, _, attribute = strategy.executor.partition(":")
    assert importlib.util.find_spec(module) is not None
    assert attribute
    defaults = strategy.options.defaults()
    assert strategy.check_options(defaults, "defaults") == {}
    assert strategy.details(_cell(name)).keys() >= defaults.keys()


def test_options_that_are_defaults_are_dropped() -> None:
    checked = strategy_of("gpipe").check_options({"chunks": 4, "checkpoint": "never"}, "here")
    assert checked == {"checkpoint": "never"}


def test_option_values_are_whole() -> None:
    values = strategy_of("gpipe").option_values(_cell("gpipe", chunks=8))
    assert values == {"chunks": 8, "checkpoint": "except_last", "balance": "time"}


SHARED = ("fsdp", "hsdp", "deepspeed")


@pytest.mark.parametrize("name", SHIPPED_STRATEGIES)
def test_notes(name: str) -> None:
    assert strategy_of(name).note("cuda") is None
    assert (strategy_of(name).note("emulated") is not None) == (name in SHARED)
    assert (strategy_of(name).note("cpu") is not None) == (name in (*ONE_PROCESS, *SHARED))


@pytest.mark.parametrize(
    "name", ["ddlbench.planning.plan:Plan", "ddlbench.planning.planner:make_plan"]
)
def test_what_is_no_descriptor(name: str) -> None:
    with pytest.raises(ConfigError, match="must name a subclass of Strategy"):
        strategy_of(name)


def test_results_of_a_strategy_that_is_not_here_can_be_read() -> None:
    cell = _cell("theirs.package:Averaging", nodes=2, devices=2, rounds=3)
    missing = known_strategy(cell.strategy)
    assert (missing.label, missing.family) == ("Averaging", cell.strategy)
    assert missing.workers(cell.devices, {}) == 4
    assert missing.option_values(cell) == {"rounds": 3}
    assert missing.check_options({"rounds": 3}, "here") == {"rounds": 3}
    with pytest.raises(ConfigError, match="theirs"):
        strategy_of(cell.strategy)


@pytest.mark.parametrize("strategy", SHIPPED_STRATEGIES)
def test_an_option_is_a_field_with_a_default_and_a_text(strategy: str) -> None:
    options = strategy_of(strategy).options
    schemas, defaults = options.schemas(), options.defaults()
    assert schemas.keys() == defaults.keys()
    for name, schema in schemas.items():
        assert schema["default"] == defaults[name]
        assert schema["description"]


def test_options_of_a_cell_are_typed_and_those_of_other_strategies_left_out() -> None:
    cell = _cell("pipe-zb", devices=2, chunks=8, stages_per_rank=4)
    options = PipeliningOptions.of_cell(cell)
    assert (options.chunks, options.replicas, options.balance) == (8, 1, "work")
    assert not hasattr(options, "stages_per_rank")


def test_an_option_of_true_is_refused_also_after_one_of_1_was_read() -> None:
    assert DdpOptions.of_cell(_cell("ddp", devices=2, accumulate=1)).accumulate == 1
    with pytest.raises(ConfigError, match="accumulate"):
        DdpOptions.of_cell(_cell("ddp", devices=2, accumulate=True))


def test_the_base_class_asks_for_what_it_needs() -> None:
    with pytest.raises(NotImplementedError):
        Strategy().supports(_cell("ddp"))
    with pytest.raises(NotImplementedError):
        Strategy().placement(_cell("ddp"))
