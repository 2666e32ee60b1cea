"""What the synchronous pipelines say of themselves: schedules, stages, data, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_factory import bubble_share, picture

from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan, read_plan
from ddlbench.planning.schedules import StageDurations, check, replay
from ddlbench.planning.strategy import strategy_of

ALL = ("pipe-gpipe", "pipe-1f1b", "pipe-interleaved", "pipe-zb", "pipe-zbv")


def _cell(strategy: str, nodes: int = 1, devices: int = 4, batch: int = 48, **options: Any) -> Cell:
    return Cell(
        "mnist",
        "resnet18",
        strategy,
        batch_size=batch,
        nodes=nodes,
        devices_per_node=devices,
        options=tuple(sorted(options.items())),
    )


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (_cell("pipe-gpipe", 4, 2), None),
        (_cell("pipe-gpipe", replicas=3), "4 devices do not make 3 equal pipelines; write"),
        (_cell("pipe-1f1b", replicas=8), "4 devices do not make 8 equal pipelines; write"),
        (_cell("pipe-zb", batch=50), "50 does not divide into 4 micro-batches on each of 1 rep"),
        (_cell("pipe-zbv", batch=36, replicas=2), "make batch_size a multiple of 8"),
        (_cell("pipe-1f1b", devices=8, batch=64), "raise chunks to 8 or more"),
        (_cell("pipe-1f1b", devices=8, batch=64, replicas=2), None),
        (_cell("pipe-interleaved", batch=36, chunks=9), "write a multiple of 4"),
        (_cell("pipe-zb", batch=36, chunks=9), "write a multiple of 4"),
        (_cell("pipe-interleaved", chunks=3), None),
        (
            _cell("pipe-zb", devices=3, batch=48, chunks=8, stages_per_rank=3),
            "Zero bubble on 3 devices with 3 stages each and 8 micro-batches comes to a stop",
        ),
        (_cell("pipe-zbv", batch=36, chunks=9), None),
        (_cell("pipe-gpipe", 2, 8), "resnet18 has 14 blocks, too few for 16 stages; use fewer"),
        (_cell("pipe-zbv", 1, 8), "resnet18 has 14 blocks, too few for 16 stages; use fewer"),
        (_cell("pipe-interleaved", stages_per_rank=4), "14 blocks, too few for 16 stages"),
        (_cell("pipe-zbv", 1, 8, replicas=2), None),
        (_cell("pipe-gpipe", devices=2, balance="5+9"), None),
        (_cell("pipe-zbv", devices=2, balance="5+9"), "balance 5+9 has 2 parts for 4 stages"),
        (_cell("pipe-gpipe", devices=2, balance="5+8"), "deals 13 blocks, resnet18 has 14"),
    ],
)
def test_what_cannot_run_is_one_sentence(cell: Cell, reason: str | None) -> None:
    actual = strategy_of(cell.strategy).supports(cell)
    assert actual is None if reason is None else reason in str(actual), actual


def test_replicas_are_whole_pipelines_side_by_side() -> None:
    plan = make_plan(_cell("pipe-interleaved", 2, 2, replicas=2))
    assert plan.details["schedule"] == "interleaved-1f1b"
    assert plan.details["stage_ranks"] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert [
        (p.node, p.local_rank, p.stage, p.replica, p.shard, p.num_shards, p.needs)
        for p in plan.processes
    ] == [
        (0, 0, 0, 0, 0, 2, ("inputs",)),
        (0, 1, 1, 0, 0, 2, ("labels",)),
        (1, 0, 0, 1, 1, 2, ("inputs",)),
        (1, 1, 1, 1, 1, 2, ("labels",)),
    ]
    stages = plan.details["stages"]
    assert [replicas for *_, replicas in stages] == [2, 2, 2, 2]
    assert [first for first, *_ in stages] == [0, *(last for _, last, _ in stages[:-1])]
    assert stages[-1][1] == 14
    assert read_plan(plan.to_dict()) == plan


def test_who_reads_what() -> None:
    """A stage in the middle reads nothing; the V's first device holds both ends."""
    needs = {name: [p.needs for p in make_plan(_cell(name, devices=3)).processes] for name in ALL}
    straight = [("inputs",), (), ("labels",)]
    assert needs == {**dict.fromkeys(ALL[:4], straight), "pipe-zbv": [("inputs", "labels"), (), ()]}


def test_stages_per_device() -> None:
    counts = [len(make_plan(_cell(name, devices=2)).details["stages"]) for name in ALL]
    assert counts == [2, 2, 4, 4, 4]
    assert len(make_plan(_cell("pipe-zb", stages_per_rank=1)).details["stages"]) == 4


@given(
    strategy=st.sampled_from(ALL),
    ranks=st.integers(1, 4),
    replicas=st.integers(1, 3),
    chunks=st.integers(1, 9),
    stages=st.integers(1, 3),
)
def test_what_is_supported_has_a_schedule_that_runs(
    strategy: str, ranks: int, replicas: int, chunks: int, stages: int
) -> None:
    options: dict[str, Any] = {"chunks": chunks, "replicas": replicas}
    if "stages_per_rank" in strategy_of(strategy).options.defaults():
        options["stages_per_rank"] = stages
    cell = _cell(strategy, replicas, ranks, batch=2 * chunks * replicas, **options)
    descriptor = strategy_of(strategy)
    if descriptor.supports(cell) is not None:
        return
    schedule = descriptor.schedule(cell)
    check(schedule)
    plan = make_plan(cell)
    assert schedule.world_size == plan.world_size == cell.devices
    assert [list(ranks) for ranks in schedule.stage_ranks] == plan.details["stage_ranks"]
    assert schedule.micro_batches == chunks * replicas


ROWS = {
    "pipe-gpipe": "GPipe",
    "pipe-1f1b": "1F1B",
    "pipe-interleaved": "interleaved 1F1B",
    "pipe-zb": "zero bubble",
    "pipe-zbv": "zero bubble V",
}
PAGE = Path(__file__).parents[3] / "docs" / "pipelines.md"


@pytest.mark.parametrize("strategy", ALL)
def test_the_page_draws_and_bounds_what_is_planned(strategy: str) -> None:
    page = PAGE.read_text("utf-8")
    descriptor = strategy_of(strategy)
    small = descriptor.one_pipeline(*((4, 1, 8) if strategy == "pipe-1f1b" else (2, 2, 4)))
    for line in picture(small):
        assert f"   {line}\n" in page
    even = StageDurations([1.0] * 8, [2.0] * 8, input_share=0.5)
    share = 1 - bubble_share(replay(descriptor.one_pipeline(4, 2, 8), even))
    (row,) = (line for line in page.splitlines() if line.startswith(f"| {ROWS[strategy]} | "))
    assert row.split(" | ")[2].strip() == f"{share:.3f}"
