"""Latency-bandwidth fits recover what was planted, and refuse what is no sweep."""

import math
from dataclasses import replace

import numpy as np
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.common.fits import fit_hockney, given_hockney
from ddlbench.experiment.links import SweepPoint

SIZES = [1 << k for k in range(10, 29)]  # 1 KiB .. 256 MiB


def sweep(time_s, noise=0.0, seed=0, sizes=SIZES):
    random = np.random.default_rng(seed)
    return [
        SweepPoint(size, time_s(size) * float(np.exp(noise * random.normal())), None, 1)
        for size in sizes
    ]


def test_exact_points_are_one_piece():
    fit = fit_hockney(sweep(lambda size: 20e-6 + size / 1e9))
    (piece,) = fit.pieces
    assert piece.alpha_s == pytest.approx(20e-6)
    assert piece.beta_s_per_byte == pytest.approx(1e-9)
    assert (piece.from_bytes, piece.to_bytes) == (0, None)
    assert fit.largest_relative_residual < 1e-9


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("alpha_s", "bandwidth"), [(5e-6, 12e9), (1e-3, 1.25e8), (3e-5, 2e9)])
def test_planted_line_is_recovered_from_noise(alpha_s, bandwidth, seed):
    fit = fit_hockney(sweep(lambda size: alpha_s + size / bandwidth, noise=0.05, seed=seed))
    first, last = fit.pieces[0], fit.pieces[-1]
    assert first.alpha_s == pytest.approx(alpha_s, rel=0.15)
    assert last.beta_s_per_byte == pytest.approx(1 / bandwidth, rel=0.15)
    assert 0.005 < fit.median_relative_residual < 0.1


@pytest.mark.parametrize("outliers", [0.0, 0.08])
def test_intervals_cover_the_planted_values_as_often_as_they_say(outliers):
    random = np.random.default_rng(0)
    covered = []
    for seed in range(400):
        points = [
            replace(point, time_s=point.time_s * math.exp(0.5 * (random.random() < outliers)))
            for point in sweep(lambda s: 2e-5 + s / 1e9, noise=0.05, seed=seed)
        ]
        (piece,) = fit_hockney(points, max_pieces=1).pieces
        planted = ((piece.alpha_interval_s, 2e-5), (piece.beta_interval_s_per_byte, 1e-9))
        covered += [low <= value <= high for (low, high), value in planted]
    assert 0.93 <= np.mean(covered) <= 0.97


def test_a_protocol_change_makes_a_second_piece():
    def time_s(size):
        return 10e-6 + size / 1e9 if size < 1 << 18 else 300e-6 + size / 8e9

    fit = fit_hockney(sweep(time_s, noise=0.02))
    assert len(fit.pieces) == 2
    eager, rendezvous = fit.pieces
    assert 1 << 17 < eager.to_bytes <= 1 << 18
    assert eager.to_bytes == rendezvous.from_bytes
    assert eager.alpha_s == pytest.approx(10e-6, rel=0.1)
    assert rendezvous.beta_s_per_byte == pytest.approx(1 / 8e9, rel=0.1)


@pytest.mark.parametrize("sizes", [SIZES, SIZES[::2]])
@pytest.mark.parametrize("seed", range(4))
def test_three_planted_pieces_are_found_in_long_and_short_sweeps(sizes, seed):
    def time_s(size):
        if size < 1 << 16:
            return 1e-5 + size / 1e9
        return 1e-4 + size / (4e9 if size < 1 << 23 else 1.5e9)

    fit = fit_hockney(sweep(time_s, noise=0.03, seed=seed, sizes=sizes))
    assert len(fit.pieces) == 3
    errors = [abs(fit.time_s(size) / time_s(size) - 1) for size in sizes]
    assert np.median(errors) < 0.04


@pytest.mark.parametrize("sizes", [SIZES, SIZES[::2]])
def test_noise_seldom_buys_a_piece(sizes):
    pieces = [
        len(fit_hockney(sweep(lambda s: 2e-5 + s / 1e9, 0.05, seed, sizes)).pieces)
        for seed in range(20)
    ]
    assert pieces.count(1) >= 18


def test_an_outlier_neither_bends_the_line_nor_buys_a_piece():
    points = sweep(lambda size: 2e-5 + size / 1e9, noise=0.02)
    points[7] = replace(points[7], time_s=8 * points[7].time_s)
    fit = fit_hockney(points)
    assert len(fit.pieces) == 1
    assert fit.pieces[0].alpha_s == pytest.approx(2e-5, rel=0.1)
    assert fit.pieces[0].beta_s_per_byte == pytest.approx(1e-9, rel=0.1)
    assert fit.largest_relative_residual > 0.5


def test_nothing_is_negative_where_the_sweep_would_have_it_so():
    falling = [SweepPoint(s, 1e-3 - s * 1e-9, None, 1) for s in (1000, 2000, 4000)]
    steep = [SweepPoint(s, 1e-9 * s**1.3, None, 1) for s in (1000, 2000, 4000)]
    for points in (falling, steep):
        for piece in fit_hockney(points).pieces:
            assert piece.alpha_s >= 0
            assert piece.beta_s_per_byte >= 0


def test_order_and_repeats_of_sizes_do_not_matter():
    points = sweep(lambda size: 2e-5 + size / 1e9, noise=0.05)
    points += sweep(lambda size: 2e-5 + size / 1e9, noise=0.05, seed=1)
    shuffled = [points[k] for k in np.random.default_rng(3).permutation(len(points))]
    assert len(fit_hockney(points).pieces) == 1
    assert fit_hockney(shuffled).pieces[0].alpha_s == pytest.approx(
        fit_hockney(points).pieces[0].alpha_s
    )


def test_two_points_are_a_line_without_intervals():
    (piece,) = fit_hockney(sweep(lambda s: 1e-5 + s * 1e-9, sizes=[1024, 4096])).pieces
    assert piece.alpha_s == pytest.approx(1e-5)
    assert piece.alpha_interval_s is None


def test_time_of_a_message_is_its_piece_and_goes_on_beyond_the_sweep():
    fit = given_hockney(latency_s=1e-3, bandwidth_bytes_per_s=1e9)
    assert fit.time_s(0) == pytest.approx(1e-3)
    assert fit.time_s(1e9) == pytest.approx(1.001)


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([SweepPoint(8, 1e-3, None, 1)] * 3, "two message sizes"),
        ([], "two message sizes"),
        ([SweepPoint(s, s - 1.0, None, 1) for s in (1, 2, 3)], "measure that point again"),
        ([SweepPoint(s, 1.0, None, 1) for s in (-1, 2, 3)], "not below zero"),
    ],
)
def test_what_is_no_sweep_is_a_sentence(points, says):
    with pytest.raises(ConfigError, match=says):
        fit_hockney(points)


def test_given_links_must_make_sense():
    with pytest.raises(ConfigError, match="a bandwidth is above zero"):
        given_hockney(1e-6, -1e9)
    with pytest.raises(ConfigError, match="a latency is not below zero"):
        given_hockney(-1e-6, 1e9)
