"""DDP's options as its descriptor tells them."""

from __future__ import annotations

from typing import Any

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Tensor
from ddlbench.strategies.ddp.descriptor import BucketBytes, DdpOptions, bucket_bytes, shares

STRATEGY = strategy_of("ddp")


def cell_of(devices: int = 4, batch_size: int = 48, **options: Any) -> Cell:
    made = tuple(options.items())
    return Cell("mnist", "resnet18", "ddp", batch_size, devices_per_node=devices, options=made)


def test_defaults_are_not_in_a_cells_path():
    defaults = STRATEGY.options.defaults()
    assert STRATEGY.check_options(defaults, "here") == {}
    details = DdpOptions.of(make_plan(cell_of()))
    assert {name: getattr(details, name) for name in defaults} == defaults


@pytest.mark.parametrize(
    "options",
    [
        {"shard": "gradients"},
        {"accumulate": 0},
        {"bucket_view": 1},
        {"hook": "fp8"},
        {"hook_rank": 0},
    ],
)
def test_values_that_make_no_sense(options):
    with pytest.raises(ConfigError):
        STRATEGY.check_options(options, "here")


def test_micro_batches_must_divide_a_workers_samples():
    assert STRATEGY.supports(cell_of(accumulate=3)) is None
    reason = STRATEGY.supports(cell_of(accumulate=5))
    assert reason == (
        "a worker's share of a mini-batch (12) does not divide into 5 micro-batches (accumulate); "
        "make batch_size a multiple of 20"
    )
    uneven = STRATEGY.supports(cell_of(batch_size=50, accumulate=5))
    assert uneven is not None and "does not divide over 4 workers" in uneven
    assert STRATEGY.micro_batches(make_plan(cell_of(accumulate=3))) == 3
    for name in ("horovod", "fsdp", "hsdp"):
        other = cell_of(accumulate=5).with_(strategy=name)
        assert strategy_of(name).supports(other) == reason


def test_only_powersgd_has_a_rank():
    assert STRATEGY.supports(cell_of(hook="powersgd", hook_rank=4)) is None
    for hook in ({}, {"hook": "fp16"}):
        reason = STRATEGY.supports(cell_of(hook_rank=4, **hook))
        assert reason is not None and "hook_rank belongs to hook: powersgd" in reason


def test_powersgds_whole_gradients_are_not_measured():
    reason = STRATEGY.supports(cell_of(hook="powersgd").with_(warmup_steps=1))
    assert reason is not None and "set warmup_steps to 2 or more" in reason


def test_what_powersgd_did_not_send_is_of_older_weights():
    assert STRATEGY.is_synchronous(cell_of(hook="fp16", accumulate=2, shard="optimizer"))
    assert not STRATEGY.is_synchronous(cell_of(hook="powersgd"))


def test_powersgd_sends_two_factors_of_what_they_halve():
    tensors = [
        Tensor("conv", 4 * 64 * 288, 0.2, (64, 32, 3, 3)),
        Tensor("bias", 4 * 64, 0.2, (64,)),
        Tensor("square", 4 * 16, 0.3, (4, 4)),  # 2 (4 + 4) is not less than 16
        Tensor("number", 4, 0.3, ()),
    ]
    actual = bucket_bytes(tensors, 2)
    assert actual == BucketBytes(whole=4 * (64 + 16 + 1), left=4 * 64 * 2, right=4 * 288 * 2)
    assert actual.sizes == [324, 512, 2304]
    assert bucket_bytes(tensors[1:], 2).sizes == [324]
    with pytest.raises(ConfigError, match="the profile has no shapes of tensors"):
        bucket_bytes([Tensor("old", 4, 1.0)], 1)


@pytest.mark.parametrize(
    ("sizes", "ranks", "expected"),
    [([5, 1, 3, 3], 2, [6, 6]), ([9, 2, 1], 2, [9, 3]), ([4, 7], 4, [7, 4, 0, 0])],
    ids=str,
)
def test_tensors_are_dealt_the_largest_first(sizes, ranks, expected):
    assert shares(sizes, ranks) == expected
