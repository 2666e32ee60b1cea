"""Measured candidates move their siblings: hand-worked for two, and against draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ddlbench.predict.ranking import OTHER_FAMILY, SAME_FAMILY, Belief, error_correlation, informed

PREDICTED = [Belief(1.0, 0.2, "predicted"), Belief(2.0, 0.1, "predicted")]


def test_nothing_measured_changes_nothing() -> None:
    assert informed(PREDICTED, {}, np.eye(2)) == PREDICTED


def test_two_are_the_regression_of_one_on_the_other() -> None:
    correlation = np.array([[1.0, 0.5], [0.5, 1.0]])
    run = Belief(1.3, 1e-9, "measured", 1)
    first, second = informed(PREDICTED, {0: run}, correlation)
    assert first is run
    # slope = correlation * spread of the other / spread of the measured one
    assert second.step_s == pytest.approx(2.0 * 1.3 ** (0.5 * 0.1 / 0.2))
    assert second.spread == pytest.approx(0.1 * math.sqrt(1 - 0.5**2))
    assert second.basis == "predicted"


def test_strangers_stay_as_they_were() -> None:
    _, other = informed(PREDICTED, {0: Belief(1.5, 0.05, "measured", 1)}, np.eye(2))
    assert (other.step_s, other.spread) == (pytest.approx(2.0), pytest.approx(0.1))


def test_a_noisy_run_says_less() -> None:
    correlation = error_correlation(["pipeline", "pipeline"])
    sure = informed(PREDICTED, {0: Belief(1.3, 0.001, "measured", 1)}, correlation)[1]
    noisy = informed(PREDICTED, {0: Belief(1.3, 0.2, "measured", 1)}, correlation)[1]
    assert 2.0 < noisy.step_s < sure.step_s
    assert sure.spread < noisy.spread < 0.1


def test_many_are_what_draws_say() -> None:
    """Among draws of all errors, those near the measured ones have the mean and spread told."""
    spreads = np.array([0.2, 0.1, 0.3])
    correlation = error_correlation(["pipeline", "pipeline", "data parallel"])
    covariance = correlation * np.outer(spreads, spreads)
    draws = np.random.default_rng(1).multivariate_normal([0.0] * 3, covariance, 400_000)
    near = draws[abs(draws[:, 0] - 0.1) < 0.01]
    beliefs = [Belief(1.0, float(spread), "predicted") for spread in spreads]
    posteriors = informed(beliefs, {0: Belief(math.exp(0.1), 1e-6, "measured", 1)}, correlation)
    for index in (1, 2):
        assert math.log(posteriors[index].step_s) == pytest.approx(near[:, index].mean(), abs=0.01)
        assert posteriors[index].spread == pytest.approx(near[:, index].std(), rel=0.05)


def test_a_surprise_counts_as_three_spreads() -> None:
    correlation = error_correlation(["pipeline", "pipeline"])
    far = informed(PREDICTED, {0: Belief(99.0, 1e-9, "measured", 1)}, correlation)[1]
    three = informed(PREDICTED, {0: Belief(math.exp(0.6), 1e-9, "measured", 1)}, correlation)[1]
    assert far.step_s == pytest.approx(three.step_s)


def test_families_are_alike() -> None:
    matrix = error_correlation(["pipeline", "data parallel", "pipeline"])
    assert matrix[0, 2] == SAME_FAMILY
    assert matrix[0, 1] == OTHER_FAMILY
    assert (np.diag(matrix) == 1).all()
    assert (np.linalg.eigvalsh(matrix) > 0).all()
