"""How long links take: the same numbers limit the sweeps and foretell them."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import pytest

from ddlbench.experiment.site import Interconnect, Site, load_site
from ddlbench.interconnect import time_plan
from ddlbench.interconnect.progress import LinksDisplay
from ddlbench.interconnect.time_plan import (
    BUDGET_S,
    LIMIT,
    Part,
    Shares,
    crowd_of,
    delay_turns,
    links_plan,
    parts_of,
    passes_of,
    steps_of,
)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(time_plan.os, "sched_getaffinity", lambda _: {0, 1})


def site(nodes: int, devices: int, **changes) -> Site:
    return replace(load_site("local"), nodes=nodes, devices_per_node=devices, **changes)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def measured(parts: list[Part], pace: float, aim_s: float, limit_s: float) -> list[float]:
    """Budgets of parts that take ``pace`` times what is planned; the clock is what they took."""
    clock, budgets = Clock(), []
    shares = Shares(parts, BUDGET_S, aim_s, limit_s, clock)
    for part in parts:
        budget_s, left_s = shares.begin()
        assert 0 <= left_s <= limit_s
        budgets.append(budget_s)
        clock.now_s += pace * part.sweeps * budget_s + part.fixed_s
    return [*budgets, clock.now_s]


# The plan


def test_the_expectation_is_what_the_parts_come_to():
    plan = links_plan(site(1, 2), "default")
    (_, collectives), *_ = steps = steps_of(plan.groups, "cpu", 2, horovod=False)
    assert plan.sweeps_s >= sum(part.seconds(BUDGET_S) for _, part in steps)
    assert collectives.seconds(BUDGET_S) == 5 * BUDGET_S  # ping-pong too
    assert plan.expected_s == plan.before_s + plan.sweeps_s + plan.after_s


def test_many_ranks_on_one_machine_share_a_time():
    emulated = load_site("accelerators")
    plan = links_plan(emulated, "default")
    assert plan.groups == ((2, 4), (2, 1), (1, 4), (1, 2))
    assert plan.expected_s <= 170
    longer = replace(emulated, interconnect=replace(emulated.interconnect, budget_s=3000))
    longer_plan = links_plan(longer, "default")
    assert longer_plan.groups == ((2, 4), (2, 1), (1, 4), (1, 3), (1, 2))
    assert longer_plan.sweeps_s > plan.sweeps_s


def test_a_cluster_measures_as_long_as_its_sweeps_need():
    cluster = replace(load_site("slurm-example", as_example=True), nodes=4, devices_per_node=4)
    plan = links_plan(cluster, "default")
    assert (plan.cores, plan.aim_s, plan.passes_s) == (None, math.inf, math.inf)
    assert len(plan.groups) == 7


def test_given_links_take_no_sweep():
    table = {"latency_s": 1e-6, "bandwidth_bytes_per_s": 1e9}
    given = site(1, 2, interconnect=Interconnect.from_dict({"links": {"default": {"node": table}}}))
    plan = links_plan(given, "default")
    assert (plan.groups, plan.sweeps_s) == ((), 0)
    assert plan.expected_s < 10


@pytest.mark.parametrize("sites", [(site(1, 2), site(1, 4)), (site(1, 4), site(2, 4))])
def test_more_ranks_take_longer(sites):
    fewer, more = (links_plan(each, "default").of(BUDGET_S) for each in sites)
    assert fewer < more


def test_parts_of_a_group():
    names = [part.name for part in parts_of(2, "cuda", 1.0, horovod=True)]
    assert names == ["collectives", "DDP", "computation", "Horovod"]
    assert [part.name for part in parts_of(4, "cpu", 2.0, horovod=False)][2:] == [
        "FSDP",
        "computation",
    ]
    assert (crowd_of(8, 2), crowd_of(2, 4), crowd_of(64, None)) == (4.0, 1.0, 1.0)
    assert (delay_turns(BUDGET_S), delay_turns(0.1), passes_of(240), passes_of(241)) == (
        *(41, 11),
        *(3, 1),
    )


# Shares of the time


def test_a_site_with_time_gets_what_it_asks_for():
    parts = [part for _, part in steps_of([(4, 4), (1, 2)], "cuda", None, horovod=True)]
    *budgets, _ = measured(parts, 1.0, math.inf, 2880.0)
    assert set(budgets) == {BUDGET_S}


@pytest.mark.parametrize("pace", [0.3, 1.0, LIMIT])
@pytest.mark.parametrize("limit_s", [60.0, 720.0, 3600.0])
def test_no_pace_breaks_the_limit_of_the_job(limit_s, pace):
    parts = [Part("a", 5, 0.5), Part("b", 2, 0.1), Part("c", 1, 1.0, share=2.0)] * 7
    *budgets, took_s = measured(parts, pace, math.inf, limit_s)
    assert took_s <= limit_s
    assert all(0 < budget_s <= 2 * BUDGET_S for budget_s in budgets)


def test_what_came_out_longer_is_taken_from_the_rest():
    parts = [Part("a", 10, 1.0)] * 5
    *quick, took_s = measured(parts, 1.0, 60.0, 960.0)
    assert took_s == pytest.approx(60.0)
    *slow, slow_took_s = measured(parts, 2.0, 60.0, 960.0)
    assert slow[0] == quick[0]
    assert slow[-1] < quick[-1]
    assert slow_took_s < 1.5 * 60.0


def test_no_part_is_without_time_unless_the_job_is_over():
    parts = [Part("a", 10, 1.0)] * 5
    *budgets, _ = measured(parts, 3.0, 10.0, 960.0)
    assert min(budgets) > 0
    assert measured(parts, 1.0, 10.0, 2.0)[:-1] == [0.0] * 5


# Progress


def shown(display_of) -> list[str]:
    clock, stream = Clock(), io.StringIO()
    display_of(LinksDisplay("links default", stream, clock), clock)
    return stream.getvalue().splitlines()


def test_a_line_comes_at_least_every_ten_seconds():
    times = []

    def follow(display, clock):
        seen = 0
        display.begin("8 processes start", 100.0, 30.0)
        for tick in range(120):
            clock.now_s = tick * 0.5
            if tick == 24:
                display.update(json.dumps({"doing": "FSDP of 2x4, 3 of 20", "left_s": 80}))
            display.tick()
            lines = display._stream.getvalue().count("\n")
            times.extend([clock.now_s] * (lines - seen))
            seen = lines

    lines = shown(follow)
    gaps = [later - earlier for earlier, later in zip(times, [*times[1:], 60.0], strict=True)]
    assert max(gaps) <= 10
    assert {len(line) for line in lines} == {80}
    assert " ".join(lines[0].split()) == "links default: 8 processes start left 2.2 min"
    assert any("FSDP of 2x4, 3 of 20" in line for line in lines)


def test_the_time_left_runs_down_and_is_never_negative():
    def follow(display, clock):
        display.begin("pairs of ranks", 20.0, 5.0)
        for clock.now_s in (10.0, 60.0):
            display.tick()

    assert [line.split("left")[1].strip() for line in shown(follow)] == ["25 s", "15 s", "5.0 s"]


@pytest.mark.parametrize("payload", ["", "[]", '{"doing": "x"}', '{"doing": 1, "left_s": "y"}'])
def test_a_malformed_mark_is_ignored(payload):
    def follow(display, clock):
        display.begin("pairs", 20.0, 0.0)
        clock.now_s = 10.0
        display.update(payload)
        display.tick()

    assert [line.split(":")[1].split()[0] for line in shown(follow)] == ["pairs", "pairs"]
