"""Local SGD as its descriptor tells it."""

from __future__ import annotations

from typing import Any

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.planning.strategy import strategy_of, too_few_steps

STRATEGY = strategy_of("local-sgd")


def cell_of(devices: int = 2, **options: Any) -> Cell:
    made = tuple(options.items())
    return Cell("mnist", "mlp", "local-sgd", 8, devices_per_node=devices, options=made)


def test_rounds_of_one_step_and_one_device_are_synchronous():
    assert not STRATEGY.synchronous
    assert not STRATEGY.is_synchronous(cell_of())
    assert STRATEGY.is_synchronous(cell_of(average_every_steps=1))
    assert STRATEGY.is_synchronous(cell_of(1))
    each_step = cell_of(average_every_steps=1)
    assert not STRATEGY.is_synchronous(each_step.with_(optimizer="adamw"))
    outer = cell_of(average_every_steps=1, outer_optimizer="nesterov")
    assert not STRATEGY.is_synchronous(outer)
    assert not STRATEGY.is_synchronous(outer.with_(devices_per_node=1))


@pytest.mark.parametrize("options", [{"outer_lr": 0.5}, {"outer_momentum": 0.5}])
def test_options_of_the_outer_sgd_need_it(options):
    assert STRATEGY.supports(cell_of(outer_optimizer="nesterov", **options)) is None
    reason = STRATEGY.supports(cell_of(**options))
    assert reason is not None and "belong to outer_optimizer: nesterov" in reason


@pytest.mark.parametrize(
    "options",
    [{"average_every_steps": 0}, {"outer_lr": 0}, {"outer_momentum": 1}, {"outer_momentum": 0}],
)
def test_values_that_make_no_sense(options):
    with pytest.raises(ConfigError):
        STRATEGY.check_options(options, "here")


def test_a_round_must_fit_the_measured_steps():
    cell = cell_of(average_every_steps=8).with_(epochs=2)
    assert too_few_steps(cell, STRATEGY, 4) is None
    reason = too_few_steps(cell.with_(max_steps=3), STRATEGY, 100)
    assert (
        reason is not None and "a round of 8 steps is longer than all measured ones (6)" in reason
    )
