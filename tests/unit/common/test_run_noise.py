"""Ratios of noisy runs: planted noise and changes are recovered, and no change is not invented."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from ddlbench.common.run_noise import (
    Pair,
    RunNoise,
    Sample,
    block_length,
    median_error,
    repeats_to_tell,
)
from ddlbench.report.regressions import Verdict, verdict_of

MARGIN = 0.05
STATED = 0.024


def steps_of(random: np.random.Generator, count: int, correlation: float, sd: float) -> np.ndarray:
    """Logarithms of autocorrelated steps about 0: an autoregression of first order."""
    steps = np.empty(count + 50)
    steps[0] = 0.0
    for place in range(1, len(steps)):
        fresh = random.normal() * sd * np.sqrt(1 - correlation**2)
        steps[place] = correlation * steps[place - 1] + fresh
    return steps[50:]


def sample(
    random: np.random.Generator, runs: int, run_spread: float, change: float = 1.0
) -> Sample:
    """Runs of 20 autocorrelated steps of 0.1 s, each run with an offset of its own."""
    medians, errors = [], []
    for _ in range(runs):
        logs = random.normal() * run_spread + steps_of(random, 20, 0.6, 0.02)
        steps_s = 0.1 * change * np.exp(logs)
        medians.append(float(np.median(steps_s)))
        errors.append(median_error(steps_s))
    return Sample.of(medians, errors)


def judged(pairs: list[Pair], stated: float = STATED) -> Counter[Verdict]:
    noise = RunNoise(pairs, stated)
    return Counter(verdict_of(noise.ratio(pair), MARGIN) for pair in pairs)


@pytest.mark.parametrize(
    ("runs", "run_spread", "configurations"),
    [
        ((1, 1), 0.02, 10),
        ((2, 2), 0.02, 1),
        ((3, 3), 0.003, 10),
        ((3, 3), 0.02, 1),
        ((5, 2), 0.02, 10),
        ((3, 1), 0.003, 10),
    ],
)
def test_at_most_one_in_twenty_unchanged_pairs_is_called_slower(runs, run_spread, configurations):
    random = np.random.default_rng(7)
    verdicts: Counter[Verdict] = Counter()
    for _ in range(200 // configurations):
        pairs = [
            (sample(random, runs[0], run_spread), sample(random, runs[1], run_spread))
            for _ in range(configurations)
        ]
        verdicts += judged(pairs)
    assert sum(verdicts.values()) == 200
    assert verdicts[Verdict.SLOWER] <= 10
    assert verdicts[Verdict.FASTER] <= 10


def test_runs_noisier_than_the_stated_spread_are_not_called_slower_once_there_are_repeats():
    random = np.random.default_rng(8)
    pairs = [(sample(random, 3, 0.08), sample(random, 3, 0.08)) for _ in range(200)]
    assert judged(pairs)[Verdict.SLOWER] <= 10


def test_a_planted_tenth_is_slower_and_a_hundredth_never_is():
    random = np.random.default_rng(9)
    a_tenth = [(sample(random, 3, 0.003), sample(random, 3, 0.003, 1.1)) for _ in range(20)]
    a_hundredth = [(sample(random, 3, 0.003), sample(random, 3, 0.003, 1.01)) for _ in range(20)]
    assert judged(a_tenth)[Verdict.SLOWER] >= 18
    assert judged(a_tenth)[Verdict.SAME] == 0
    assert judged(a_hundredth)[Verdict.SLOWER] == 0


def test_intervals_hold_the_planted_ratio():
    random = np.random.default_rng(10)
    pairs = [(sample(random, 3, 0.02), sample(random, 4, 0.02, 1.2)) for _ in range(200)]
    noise = RunNoise(pairs, STATED)
    ratios = [noise.ratio(pair) for pair in pairs]
    held = sum(ratio.low <= 1.2 <= ratio.high for ratio in ratios)
    assert 184 <= held <= 199


def test_the_other_way_round_is_the_mirror_image():
    random = np.random.default_rng(11)
    pairs = [(sample(random, 2, 0.01), sample(random, 4, 0.01, 1.3)) for _ in range(4)]
    there, back = RunNoise(pairs, STATED), RunNoise([(b, a) for a, b in pairs], STATED)
    for a, b in pairs:
        ratio, mirrored = there.ratio((a, b)), back.ratio((b, a))
        assert ratio.ratio == pytest.approx(1 / mirrored.ratio)
        assert ratio.low == pytest.approx(1 / mirrored.high)


def test_the_error_of_a_median_knows_that_neighbours_are_alike():
    random = np.random.default_rng(12)
    for correlation in (0.0, 0.8):
        runs = [steps_of(random, 200, correlation, 0.05) for _ in range(200)]
        true = np.std([np.median(run) for run in runs])
        estimated = np.median([median_error(np.exp(run)) for run in runs[:40]])
        assert estimated == pytest.approx(true, rel=0.35)


def test_blocks_are_longer_the_more_neighbours_are_alike():
    random = np.random.default_rng(13)
    lengths = [
        np.median([block_length(steps_of(random, 400, correlation, 1.0)) for _ in range(20)])
        for correlation in (0.0, 0.5, 0.9)
    ]
    assert lengths[0] <= 3 < lengths[1] < lengths[2]
    assert block_length(np.ones(9)) == 1


@pytest.mark.parametrize("runs", [1, 2, 3, 4, 5, 8])
def test_the_weight_of_a_median_is_its_variance(runs):
    draws = np.random.default_rng(15).normal(size=(40_000, runs))
    true = np.median(draws, axis=1).var()
    assert 0.95 * true < Sample.of([1.0] * runs).weight < 1.22 * true


def test_few_steps_have_no_error():
    assert median_error([0.1, 0.1, 0.2]) is None
    assert median_error([0.1, 0.0, 0.2, 0.1]) is None


def test_a_run_without_repeats_takes_the_spread_of_others_and_else_a_stated_one():
    single = (Sample.of([1.0]), Sample.of([1.0]))
    repeated = (Sample.of([1.0, 1.02, 0.98]), Sample.of([1.0, 1.01, 0.99]))
    assert RunNoise([single], STATED).of(single).source == "stated"
    of_others = RunNoise([single, repeated], STATED)
    assert of_others.of(single).source == "other repeats"
    assert of_others.of(single).variance == pytest.approx((0.02**2 + 0.01**2) / 2, rel=0.02)
    assert of_others.of(repeated).source == "repeats"


def test_spreads_of_many_configurations_steady_each_other():
    random = np.random.default_rng(14)
    pairs = [(sample(random, 2, 0.02), sample(random, 2, 0.02)) for _ in range(30)]
    noise = RunNoise(pairs, STATED)
    variances = [(a.spread**2 + b.spread**2) / 2 for a, b in pairs]
    joined = [noise.of(pair).variance for pair in pairs]
    assert max(joined) / min(joined) < max(variances) / min(variances) / 4
    assert np.median(joined) == pytest.approx(0.02**2, rel=0.5)


def test_as_many_repeats_as_are_said_to_tell_do():
    noise = RunNoise([], 0.03).of((Sample.of([1.0]), Sample.of([1.0])))
    runs = repeats_to_tell(noise, MARGIN)
    half = 1.96 * np.sqrt(noise.variance * np.pi / runs)
    assert half <= np.log1p(MARGIN) < half * np.sqrt(runs / (runs - 1))
