"""Plans that are made from a site's measurements: what they read, and what they refuse."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from planning_factory import SITE_NAME, block, write_site

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.paths import links_file, plan_file, profile_file, result_file
from ddlbench.experiment.profile import read_profile
from ddlbench.experiment.site import Site
from ddlbench.planning import matrix
from ddlbench.planning.matrix import MatrixRow, cell_of, expand
from ddlbench.planning.memory import held_bytes, why_too_large
from ddlbench.planning.pipeline_stages import NeedsProfile
from ddlbench.planning.planner import make_plan, plan_at
from ddlbench.planning.profiles import device_batches
from ddlbench.planning.strategy import strategy_of

SITE = Site(
    name=SITE_NAME,
    description="",
    device="cpu",
    launcher="local",
    nodes=1,
    devices_per_node=4,
    cpus_per_device=1,
    memory_per_device_mb=None,
    scratch="/tmp",
    keep_data=False,
    interface=None,
    cell_timeout_s=60,
    hang_timeout_s=600,
)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(matrix, "_missing_package", lambda *_: None)


def _cell(strategy: str, devices: int = 2, batch_size: int = 16, **options: Any) -> Cell:
    return Cell(
        "mnist", "vgg11", strategy, batch_size, devices_per_node=devices,
        options=tuple(options.items()),
    )  # fmt: skip


# torchgpipe's balance ----------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["gpipe", "model-parallel"])
def test_a_measured_balance_evens_out_times(strategy) -> None:
    write_site([block(0, 0.005), *(block(n, 0.001) for n in range(1, 6))])
    plan = make_plan(_cell(strategy, balance="profile"), SITE_NAME)
    assert plan.details["blocks_per_device"] == [1, 5]
    assert "blocks_per_device" not in make_plan(_cell(strategy), SITE_NAME).details


def test_a_balance_is_of_the_micro_batch() -> None:
    """At 2 samples the last block is the dearest by far, at 32 they are alike."""
    at_once = [
        {"batch_size": b, "time_s": s, "interval_s": None} for b, s in ((2, 0.4), (8, 0.4), (32, 2))
    ]
    per_sample = [
        {"batch_size": b, "time_s": s, "interval_s": None} for b, s in ((2, 0.1), (8, 0.4), (32, 2))
    ]
    blocks = [block(n, forward=per_sample, backward=per_sample) for n in range(3)]
    write_site([*blocks, block(3, forward=at_once, backward=at_once)])
    counts = [
        make_plan(_cell("gpipe", 2, 32, balance="profile", chunks=chunks), SITE_NAME).details[
            "blocks_per_device"
        ]
        for chunks in (16, 1)
    ]
    assert counts == [[3, 1], [2, 2]]
    stages = [
        make_plan(_cell("pipe-gpipe", 2, 32, balance="profile", chunks=chunks), SITE_NAME).details[
            "stages"
        ]
        for chunks in (16, 1)
    ]
    assert stages == [[[0, 3, 1], [3, 4, 1]], [[0, 2, 1], [2, 4, 1]]]


def test_a_measured_balance_says_what_it_lacks() -> None:
    cell = _cell("gpipe", balance="profile")
    with pytest.raises(NeedsProfile, match="no site is given"):
        make_plan(cell)
    with pytest.raises(NeedsProfile, match=r"make it with: snakemake .*profile\.json"):
        make_plan(cell, SITE_NAME)
    write_site([block(0)])
    with pytest.raises(ConfigError, match="is one block, too few for 2 stages"):
        make_plan(cell, SITE_NAME)


# What is measured before a cell ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "options", "profile", "links"),
    [
        ("gpipe", {}, False, False),
        ("gpipe", {"balance": "profile"}, True, False),
        ("model-parallel", {"balance": "profile"}, True, False),
        ("pipe-1f1b", {}, False, False),
        ("pipe-1f1b", {"balance": "profile"}, True, False),
        ("model-parallel-p2p", {"balance": "profile"}, True, False),
        ("pipedream", {}, False, False),
        ("pipedream", {"balance": "profile"}, True, True),
        ("pipedream", {"balance": "profile", "replicas": "1+1"}, True, False),
        ("ddp", {}, False, False),
    ],
)
def test_files_that_a_plan_is_made_from(strategy, options, profile, links) -> None:
    cell = _cell(strategy, **options)
    wanted = [profile_file(SITE_NAME, "mnist/vgg11/fp32-1t")] * profile
    wanted += [links_file(SITE_NAME, "default")] * links
    assert list(strategy_of(strategy).measured_inputs(cell, SITE_NAME)) == wanted
    # No more is read: with these files the plan can be made, and no other file is there.
    if not profile:
        assert make_plan(cell, SITE_NAME).cell == cell
    else:
        write_site([block(n) for n in range(4)])
        if not links:
            links_file(SITE_NAME, "default").unlink()
        assert make_plan(cell, SITE_NAME).cell == cell


def test_batches_to_profile_do_not_need_the_profile() -> None:
    assert device_batches(_cell("gpipe", balance="profile", chunks=4)) == {16, 4}
    assert device_batches(_cell("pipe-1f1b", balance="profile", chunks=8)) == {16, 2}
    assert device_batches(_cell("pipedream", balance="profile")) == {16}


def test_the_plan_that_a_cell_ran_with_is_kept_to() -> None:
    cell = _cell("gpipe", balance="profile")
    write_site([block(0, 0.005), *(block(n, 0.001) for n in range(1, 6))])
    path = plan_file(SITE_NAME, cell.id)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(make_plan(cell, SITE_NAME).to_dict()))
    write_site([block(n, 0.001) for n in range(6)])  # measured again
    assert plan_at(cell, SITE_NAME).details["blocks_per_device"] == [1, 5]
    other = cell.with_(repeat=1)
    assert plan_at(other, SITE_NAME).details["blocks_per_device"] == [3, 3]
    for broken in ("{", "[]", '{"schema_version": 1}'):
        path.write_text(broken)
        assert plan_at(cell, SITE_NAME).details["blocks_per_device"] == [3, 3]


# Memory ------------------------------------------------------------------------------------------


def test_bytes_that_a_stage_holds() -> None:
    """Stage 0 of 2 with W = 1: 2 passes of 16 samples, 2 weight versions, momentum, buffers."""
    blocks = [block(n, parameter_bytes=1000, buffer_bytes=7) for n in range(4)]
    write_site(blocks, fixed_memory_bytes=50)
    plan = make_plan(_cell("pipedream", balance="2+2"), SITE_NAME)
    profile = read_profile(profile_file(SITE_NAME, "mnist/vgg11/fp32-1t"))
    passes = 16 * 2 * 300
    assert held_bytes(plan, plan.strategy.pipeline_of(plan), profile) == (
        50 + 2000 * 3 + 14 + 2 * passes,
        50 + 2000 * 2 + 14 + passes,
    )
    plain = make_plan(_cell("pipedream", balance="2+2").with_(momentum=0.0), SITE_NAME)
    assert (
        held_bytes(plain, plain.strategy.pipeline_of(plain), profile)[1] == 50 + 2000 + 14 + passes
    )
    # 4 micro-batches of 4 samples, all of them held by GPipe, two by 1F1B's first rank.
    gpipe = make_plan(_cell("pipe-gpipe", balance="2+2"), SITE_NAME)
    assert (
        held_bytes(gpipe, gpipe.strategy.pipeline_of(gpipe), profile)
        == (50 + 4000 + 14 + passes,) * 2
    )
    plan_1f1b = make_plan(_cell("pipe-1f1b", balance="2+2"), SITE_NAME)
    assert held_bytes(plan_1f1b, plan_1f1b.strategy.pipeline_of(plan_1f1b), profile) == (
        50 + 4000 + 14 + passes / 2,
        50 + 4000 + 14 + passes / 4,
    )


def _rows(**config: Any) -> list[MatrixRow]:
    values = {
        "experiment": "e",
        "matrix": {
            "dataset": ["mnist"],
            "network": ["vgg11"],
            "strategy": ["ddp", "pipedream"],
            "geometry": ["1x2"],
        },
        "settings": {"batch_size": 16},
        "strategies": {"pipedream": {"balance": "2+2"}},
        **config,
    }
    return expand(parse_experiment(values, "my.yaml"), SITE)


@pytest.fixture
def four_blocks(monkeypatch) -> list[dict[str, Any]]:
    """The profile's network is no built-in one, whatever its name."""
    for where in ("strategy.blocks_of", "pipeline_stages.known_block_count"):
        monkeypatch.setattr(f"ddlbench.planning.{where}", lambda *_: None)
    return [block(n, saved_bytes_per_sample=10**6) for n in range(4)]


def test_a_stage_that_cannot_fit_is_unsupported_before_any_job(four_blocks) -> None:
    """Stage 0 keeps 2 passes of 16 samples and 2 MB each: 64 MB."""
    ddp, pipedream = _rows()
    assert (ddp.unsupported, pipedream.unsupported) == (None, None)  # nothing is known yet
    write_site(four_blocks, device_memory_bytes=60_000_000)
    ddp, pipedream = _rows()
    assert ddp.unsupported is None
    assert pipedream.unsupported == (
        "stage 0 (blocks 0 to 1) on rank 0 needs at least 0.064 GB of memory with 2 passes in "
        "flight, a device has 0.06 GB; use a smaller batch, more devices or another balance"
    )
    write_site(four_blocks, device_memory_bytes=70_000_000)
    assert all(row.unsupported is None for row in _rows())
    write_site(four_blocks)
    assert all(row.unsupported is None for row in _rows())  # nobody knows what a device has
    small = dataclasses.replace(SITE, memory_per_device_mb=60)
    plan = make_plan(_cell("pipedream", balance="2+2"), SITE_NAME)
    assert why_too_large(plan, SITE) is None
    assert "stage 0" in str(why_too_large(plan, small))


def test_what_has_run_or_is_asked_for_by_its_path_is_not_refused(four_blocks) -> None:
    """A job that is under way when the profile is made must find its cell."""
    write_site(four_blocks, device_memory_bytes=60_000_000)
    refused = _rows()[1]
    assert refused.unsupported is not None
    assert cell_of(refused.cell.id, SITE) == refused.cell
    path = result_file(SITE_NAME, refused.cell.with_(repeat=1).id)
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert _rows()[1].unsupported is None


def test_an_entry_by_hand_that_cannot_fit_is_a_row_and_no_error(four_blocks) -> None:
    write_site(four_blocks, device_memory_bytes=60_000_000)
    entry = {"dataset": "mnist", "network": "vgg11", "geometry": "1x2"}
    rows = _rows(include=[{**entry, "strategy": "pipedream", "options": {"balance": "1+3"}}])
    assert "stage 1 (blocks 1 to 3)" not in str(rows[2].unsupported)
    assert rows[2].unsupported is None  # 32 MB in flight on stage 0, 48 on stage 1
    rows = _rows(include=[{**entry, "strategy": "pipedream", "options": {"balance": "3+1"}}])
    assert "stage 0 (blocks 0 to 2)" in str(rows[2].unsupported)


def test_the_partitioner_keeps_to_the_memory_of_a_device() -> None:
    """Two blocks of 0.1 GB of weights and 0.8 GB a pass, twice: 4 GB on stage 0, by its terms."""
    blocks = [block(n, parameter_bytes=10**8, saved_bytes_per_sample=5 * 10**7) for n in range(4)]
    cell = _cell("pipedream", balance="profile")
    for capacity, stages in (
        (None, [[0, 2, 1], [2, 4, 1]]),
        (5 * 10**9, [[0, 2, 1], [2, 4, 1]]),
        (35 * 10**8, [[0, 1, 1], [1, 4, 1]]),
        (10**8, [[0, 2, 1], [2, 4, 1]]),  # nothing fits: refused by its stages, not by their cut
    ):
        write_site(blocks, device_memory_bytes=capacity)
        assert make_plan(cell, SITE_NAME).details["stages"] == stages
