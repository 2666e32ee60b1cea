"""How probably each candidate is the fastest: hand-worked, and against draws."""

from __future__ import annotations

import math
import random

import pytest

from ddlbench.predict.belief import Belief, fastest, from_prediction, from_runs


def test_equal_candidates_share() -> None:
    same = [Belief(1.0, 0.1, "predicted")] * 4
    assert fastest(same) == pytest.approx([0.25] * 4, abs=1e-6)


def test_two_are_the_difference_of_normals() -> None:
    first, second = Belief(1.0, 0.06, "predicted"), Belief(1.1, 0.08, "measured")
    expected = 0.5 * (1 + math.erf(math.log(1.1) / 0.1 / math.sqrt(2)))
    assert fastest([first, second]) == pytest.approx([expected, 1 - expected], abs=1e-4)
    assert first.beats(second) == pytest.approx(expected)


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
    assert fastest([Belief(1.0, 1e-6, "measured"), Belief(1.2, 1e-6, "measured")])[0] > 0.999
    assert fastest([]) == []


def test_runs_narrow_what_is_known() -> None:
    one, three = from_runs([1.0]), from_runs([1.0, 1.02, 0.98])
    assert one.spread == pytest.approx(0.05 * math.sqrt(2 / 2))
    assert three.spread < one.spread / 1.7
    assert from_runs([1.0, 1.5]).spread > one.spread
    assert (three.step_s, three.basis, three.runs) == (1.0, "measured", 3)


def test_a_prediction_is_as_good_as_it_was() -> None:
    assert from_prediction(1.0, None, []).spread == 0.2
    assert from_prediction(1.0, None, [0.5, -0.5]).spread == 0.2  # two say too little
    errors = [math.exp(0.1) - 1, math.exp(-0.1) - 1, 0.0]
    assert from_prediction(1.0, None, errors).spread == pytest.approx(0.1 * math.sqrt(2 / 3))
    calibrated = from_prediction(2.0, 1.08, errors)
    assert calibrated.interval_s == pytest.approx((2 / 1.08, 2 * 1.08), rel=1e-3)
