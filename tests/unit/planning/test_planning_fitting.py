"""Options that nobody wrote are fitted to the geometry and the batch; written ones stay."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.registry import SHIPPED_STRATEGIES
from ddlbench.planning.planner import compared_micro_batches, fitted, micro_batch_counts
from ddlbench.planning.strategy import normalise, strategy_of
from ddlbench.predict.question import Question
from ddlbench.strategies.pipelining.descriptor import PipeliningOptions


def question(geometry: str, batch_size: int, network: str = "vgg11", **options) -> Question:
    nodes, devices_per_node = map(int, geometry.split("x"))
    return Question(
        network=network,
        dataset="cifar10",
        nodes=nodes,
        devices_per_node=devices_per_node,
        batch_size=batch_size,
        settings={},
        options={name.replace("_", "-"): values for name, values in options.items()},
    )


def why_not(cell: Cell) -> str | None:
    return strategy_of(cell.strategy).supports(cell)


@pytest.mark.parametrize(
    ("strategy", "geometry", "batch_size", "options"),
    [
        ("pipe-1f1b", "1x8", 256, {"chunks": 8}),  # four micro-batches leave eight stages idle
        ("pipe-1f1b", "1x4", 256, {}),  # the default
        ("pipe-1f1b", "1x2", 14, {"chunks": 2}),  # 14 does not divide into 4
        ("pipe-1f1b", "1x2", 13, {"chunks": 13}),
        ("pipe-gpipe", "2x4", 96, {"chunks": 8}),
        ("gpipe", "1x8", 24, {"chunks": 8}),
        ("gpipe", "1x2", 7, {"chunks": 7}),
        ("parameter-server", "1x4", 32, {"servers": 2}),  # 3 workers do not share 32 samples
        ("parameter-server", "1x4", 33, {}),
        ("parameter-server", "1x8", 30, {"servers": 2}),
        ("data-filter", "4x2", 6, {"group": 4}),  # two groups, not four
        ("data-filter", "4x2", 8, {}),
        ("ddp", "1x4", 30, {}),  # has nothing to fit
    ],
)
def test_what_is_fitted(strategy, geometry, batch_size, options) -> None:
    cell = question(geometry, batch_size).cell(strategy)
    assert dict(cell.options) == options
    assert (why_not(cell) is None) == (strategy != "ddp")


def test_a_group_of_data_and_tensor_is_fitted() -> None:
    """Two groups of 4, as 6 samples do not divide over four of 2."""
    case = replace(question("4x2", 6, "gpt-tiny"), dataset="tokens")
    cell = case.cell("data-tensor")
    assert dict(cell.options) == {"group": 4}
    assert why_not(cell) is None


def test_seven_samples_of_two_stages_are_cut_into_seven() -> None:
    assert list(micro_batch_counts(7, 2)) == [7, 1]
    assert list(micro_batch_counts(96, 8))[:3] == [8, 12, 16]
    assert list(micro_batch_counts(997, 2)) == [1]  # 997 passes are not worth their overhead


def test_compared_numbers_of_micro_batches_double_up_to_four_a_stage() -> None:
    assert list(compared_micro_batches(256, 8)) == [8, 16, 32]
    assert list(compared_micro_batches(96, 8)) == [8, 16, 32]
    assert list(compared_micro_batches(14, 2)) == [2, 7]
    assert list(compared_micro_batches(13, 2)) == []
    assert list(compared_micro_batches(4096, 64)) == []  # too many passes


@pytest.mark.parametrize(
    ("strategy", "geometry", "options", "others"),
    [
        ("pipe-1f1b", "1x4", {}, [{"chunks": 8}, {"chunks": 16}]),
        ("gpipe", "1x4", {}, [{"chunks": 8}, {"chunks": 16}]),
        ("pipe-1f1b", "1x4", {"replicas": 2}, [{"chunks": n, "replicas": 2} for n in (2, 8)]),
        ("pipe-interleaved", "1x2", {}, [{"chunks": 2}, {"chunks": 8}]),
        ("pipe-1f1b", "1x4", {"chunks": 4}, []),  # that was written
        ("hsdp", "4x4", {}, [{"group": 2}, {"group": 8}]),
        ("hsdp", "8x1", {}, [{"group": 2}, {"group": 4}]),
        ("hsdp", "4x4", {"group": 4}, []),
        ("parameter-server", "1x8", {}, []),  # already fitted: 7 workers do not share 256 samples
        *((name, "1x4", {}, []) for name in ("pipedream", "model-parallel", "ddp", "fsdp")),
    ],
)
def test_other_options_are_compared(strategy, geometry, options, others) -> None:
    case = question(geometry, 256, **{strategy.replace("-", "_"): options})
    first, *more = (dict(cell.options) for cell in case.cells(strategy))
    assert more == others
    assert first not in more


def test_the_number_with_the_shortest_predicted_step_was_the_fastest_measured_one() -> None:
    """As docs/validation/README.md says of the searches that are kept."""
    table = pd.read_csv(project_root() / "docs" / "validation" / "tuning.csv")
    cases = table[table["chunks"].notna()].groupby(["search", "batch_size"])
    gains = []
    for (search, batch_size), rows in cases:
        stages = 4 if "1x4" in search else 2
        default = PipeliningOptions.chunks
        compared = {default, *compared_micro_batches(batch_size, stages)}
        rates = rows[rows["chunks"].isin(compared)].set_index("chunks")
        taken = rates["predicted_samples_per_s"].idxmax()
        assert taken == rates["samples_per_s"].idxmax()
        gains.append(rates["samples_per_s"][taken] / rates["samples_per_s"][default] - 1)
    assert len(gains) == 6
    assert round(max(gains), 2) == 0.14


def test_twice_as_many_servers_are_compared() -> None:
    cells = question("1x8", 240).cells("parameter-server")
    assert [dict(cell.options)["servers"] for cell in cells] == [2, 4]


def test_what_nobody_can_divide_keeps_its_defaults_and_says_why() -> None:
    for strategy in ("ddp", "horovod", "fsdp"):
        cell = question("1x4", 13).cell(strategy)
        assert cell.options == ()
        assert why_not(cell).code == "uneven_batch"


@pytest.mark.parametrize(
    ("options", "geometry", "batch_size"),
    [
        ({"pipe_1f1b": {"chunks": 4}}, "1x8", 256),
        ({"pipe_1f1b": {"chunks": 3}}, "1x2", 32),
        ({"gpipe": {"chunks": 5}}, "1x2", 32),
        ({"parameter_server": {"servers": 1}}, "1x4", 32),
        ({"data_filter": {"group": 2}}, "4x2", 6),
        ({"pipe_1f1b": {"replicas": 8}}, "1x4", 32),
    ],
)
def test_written_options_stay(options, geometry, batch_size) -> None:
    ((name, written),) = options.items()
    strategy = name.replace("_", "-")
    cell = question(geometry, batch_size, **options).cell(strategy)
    descriptor = strategy_of(strategy)
    assert descriptor.option_values(cell).items() >= written.items()
    defaults = descriptor.options.defaults()
    others = defaults.keys() - written.keys()
    assert all(descriptor.option_values(cell)[name] == defaults[name] for name in others)


@pytest.mark.parametrize(("chunks", "batch_size"), [(3, 32), (5, 32), (64, 32)])
def test_a_written_option_that_cannot_run_says_why(chunks, batch_size) -> None:
    cell = question("1x2", batch_size, pipe_1f1b={"chunks": chunks}).cell("pipe-1f1b")
    assert cell.option("chunks") == chunks
    assert str(chunks) in why_not(cell)


def test_a_written_replica_count_is_what_the_micro_batches_are_fitted_to() -> None:
    """Two replicas of four stages, 14 samples each: 7 is the least that fills the stages."""
    cell = question("1x8", 28, pipe_1f1b={"replicas": 2}).cell("pipe-1f1b")
    assert dict(cell.options) == {"replicas": 2, "chunks": 7}
    assert why_not(cell) is None


@given(samples=st.integers(0, 300), stages=st.integers(1, 40))
def test_micro_batches_fill_the_stages_first(samples, stages) -> None:
    counts = list(micro_batch_counts(samples, stages))
    assert all(samples % count == 0 for count in counts)
    divisors = [n for n in range(1, samples + 1) if samples % n == 0]
    assert sorted(counts) == [n for n in divisors if n <= 8 * stages]
    filling = [count for count in counts if count >= stages]
    assert counts[: len(filling)] == sorted(filling)
    assert counts[len(filling) :] == sorted(counts[len(filling) :], reverse=True)


@given(
    nodes=st.sampled_from([1, 2, 3, 4, 16]),
    devices_per_node=st.sampled_from([1, 2, 3, 4, 8]),
    batch_size=st.integers(1, 300),
)
def test_every_strategy_has_a_cell_that_runs_or_says_why(nodes, devices_per_node, batch_size):
    case = question(f"{nodes}x{devices_per_node}", batch_size)
    for strategy in SHIPPED_STRATEGIES:
        descriptor, cell = strategy_of(strategy), case.cell(strategy)
        plain = normalise(cell.with_(options=()))
        reason, by_default = why_not(cell), why_not(plain)
        assert reason is None or str(reason)
        assert cell.batch_size == batch_size
        if by_default is None:
            assert reason is None
            assert cell == plain or not descriptor.suits(plain)
        if reason is None:
            for device in ("cpu", "cuda"):
                bound = descriptor.most_speedup(cell, device)
                assert 1 - 1e-9 <= bound <= cell.devices + 1e-9
        else:
            assert cell == plain  # nothing is changed in vain


def test_a_cell_that_is_fitted_stays_as_it_is() -> None:
    for strategy in SHIPPED_STRATEGIES:
        once = question("1x8", 96).cell(strategy)
        assert fitted(once, strategy_of(strategy), {}) == once


def test_blocks_of_a_network_of_ones_own_are_cut_by_its_profile() -> None:
    cell = question("1x4", 32, network="mine.nets:tiny").cell("pipe-1f1b")
    assert cell.option("balance") == "profile"
    written = question("1x4", 32, "mine.nets:tiny", pipe_1f1b={"balance": "1+1+1+1"})
    assert written.cell("pipe-1f1b").option("balance") == "1+1+1+1"
