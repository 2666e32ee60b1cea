"""How probably each candidate is the fastest: hand-worked, and against other draws."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from ddlbench.predict.ranking import Belief, Race, from_prediction, from_runs, races

DRAWS = 0.01  # what 20 000 draws leave open


def phi(value: float) -> float:
    return 0.5 * (1 + math.erf(value / math.sqrt(2)))


def fastest(beliefs: list[Belief]) -> list[float]:
    return [race.fastest for race in races(beliefs, [0.0] * len(beliefs), None)]


def test_equal_candidates_share() -> None:
    assert fastest([Belief(1.0, 0.1, "predicted")] * 4) == pytest.approx([0.25] * 4, abs=DRAWS)


@pytest.mark.parametrize(
    ("other_s", "spreads"), [(1.1, (0.06, 0.08)), (1.0, (0.2, 0.01)), (1.5, (0.3, 0.2))]
)
def test_two_are_the_difference_of_normals(other_s, spreads) -> None:
    left, right = Belief(1.0, spreads[0], "predicted"), Belief(other_s, spreads[1], "measured")
    expected = phi(math.log(other_s) / math.hypot(*spreads))
    first, second = races([left, right], [0.0, 0.0], 0)
    assert (first.fastest, second.fastest) == pytest.approx((expected, 1 - expected), abs=DRAWS)
    assert second.beats_first == second.beats_base == pytest.approx(1 - expected, abs=DRAWS)
    assert first.beats_first == first.beats_base == 0


def test_many_are_what_draws_say() -> None:
    beliefs = [
        Belief(step_s, spread, "predicted")
        for step_s, spread in ((1.0, 0.2), (1.05, 0.01), (1.3, 0.3), (0.98, 0.05))
    ]
    draw, wins = random.Random(1), [0] * 4
    for _ in range(20_000):
        steps = [belief.step_s * math.exp(draw.gauss(0, belief.spread)) for belief in beliefs]
        wins[steps.index(min(steps))] += 1
    assert fastest(beliefs) == pytest.approx([count / 20_000 for count in wins], abs=0.015)


def test_what_is_certain_wins() -> None:
    assert fastest([Belief(1.0, 1e-6, "measured"), Belief(1.2, 1e-6, "measured")]) == [1, 0]
    assert races([], [], None) == []


def test_who_can_only_be_as_fast_as_one_device_wins_nothing() -> None:
    base, hopeless = Belief(1.0, 0.1, "predicted"), Belief(0.1, 0.5, "predicted")
    assert races([base, hopeless], [0.0, 1.0], 0) == [Race(1.0, 0.0, 0.0), Race(0.0, 0.0, 0.0)]
    # First of the list or not: nobody beats a step that is its own limit.
    assert races([hopeless, base], [1.0, 0.0], 1)[1].beats_first == 0


def test_several_at_their_limit_share_the_draw() -> None:
    base = Belief(1.0, 0.1, "predicted")
    sure = Belief(0.01, 1e-6, "predicted")  # far beyond half of the base
    won = races([sure, sure, base], [0.5, 0.5, 0.0], 2)
    assert [race.fastest for race in won] == [0.5, 0.5, 0.0]
    assert [race.beats_base for race in won] == [1, 1, 0]
    assert won[1].beats_first == 0  # as fast


def test_a_limit_follows_the_base() -> None:
    """``max(x, share base)`` beats a third step only where the base is fast enough."""
    base, third = Belief(1.0, 0.2, "predicted"), Belief(0.5, 0.1, "predicted")
    limited = Belief(0.001, 1e-6, "predicted")
    actual = races([limited, third, base], [0.5, 0.0, 0.0], 2)
    # 0.5 base < third: a draw of the base against twice the third step.
    assert actual[0].fastest == pytest.approx(0.5, abs=DRAWS)


def test_the_same_draws_every_time() -> None:
    beliefs = [Belief(1.0 + 0.01 * i, 0.1, "predicted") for i in range(5)]
    assert races(beliefs, [0.0] * 5, 0) == races(beliefs, [0.0] * 5, 0)


def test_runs_narrow_what_is_known() -> None:
    single, triple = from_runs([1.0]), from_runs([1.0, 1.02, 0.98])
    assert single.spread == pytest.approx(0.05 * math.sqrt(2 / 2))
    assert triple.spread < single.spread / 1.7
    assert from_runs([1.0, 1.5]).spread > single.spread
    assert (triple.step_s, triple.basis, triple.runs) == (1.0, "measured", 3)


@pytest.mark.parametrize("runs", [3, 10])
def test_the_interval_of_runs_covers_as_often_as_it_says(runs: int) -> None:
    """Where runs lie as far apart as on the project's test bed."""
    draws = np.random.default_rng(1)
    intervals = (from_runs(np.exp(draws.normal(0, 0.043, runs))).interval_s for _ in range(2000))
    assert np.mean([low <= 1 <= high for low, high in intervals]) == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize("count", [3, 10])
def test_the_interval_of_errors_covers_as_often_as_it_says(count: int) -> None:
    draws = np.random.default_rng(1).normal(0, 0.15, (2000, count + 1))
    beliefs = (from_prediction(1.0, None, np.expm1(errors[:-1]).tolist()) for errors in draws)
    ends = (belief.interval_s for belief in beliefs)
    inside = [
        low <= new <= high
        for (low, high), new in zip(ends, np.exp(draws[:, -1]).tolist(), strict=True)
    ]
    assert np.mean(inside) == pytest.approx(0.9, abs=0.02)


def test_a_prediction_is_as_good_as_it_was() -> None:
    assert from_prediction(1.0, None, []).spread == 0.2
    assert from_prediction(1.0, None, [0.01, -0.01]).spread == 0.2  # two say too little
    assert from_prediction(1.0, None, [math.e - 1]).spread == pytest.approx(1.0)  # one is bad
    errors = [math.exp(0.1) - 1, math.exp(-0.1) - 1, 0.0]
    typical, student = 0.1 * math.sqrt(2 / 3), 2.353  # 95 % of t with three degrees of freedom
    spread = from_prediction(1.0, None, errors).spread
    assert spread == pytest.approx(typical * student / 1.645, rel=1e-3)
    # Other strategies may show that predictions here are bad, not that they are good.
    assert from_prediction(1.0, None, [], [math.e - 1]).spread == pytest.approx(1.0)
    assert from_prediction(1.0, None, [], [0.01] * 9).spread == 0.2
    assert from_prediction(1.0, None, errors, [9.0]) == from_prediction(1.0, None, errors)
    calibrated = from_prediction(2.0, 1.08, errors)
    assert calibrated.interval_s == pytest.approx((2 / 1.08, 2 * 1.08), rel=1e-3)
