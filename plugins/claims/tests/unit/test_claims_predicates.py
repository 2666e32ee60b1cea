"""Predicates on planted rows: every kind, every verdict."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import exact, rows

from ddlbench_claims.predicate import Interval, Predicate

FASTER = Predicate(
    kind="compare", metric="speedup", left={"strategy": "a"}, right={"strategy": "b"},
    least=1.0, by=("network",),
)  # fmt: skip


@pytest.mark.parametrize(
    ("mine", "spread", "verdict"),
    [(2.0, 0.1, "holds"), (0.5, 0.1, "refuted"), (1.05, 0.2, "undecided")],
)
def test_a_pair_is_surely_true_surely_false_or_noise(mine, spread, verdict) -> None:
    actual = FASTER.test(rows(exact("a", mine, spread), exact("b", 1.0, 0.1)))
    assert (actual.verdict, actual.n) == (verdict, 1)
    assert actual.value == pytest.approx(mine)


def test_nothing_to_compare_is_not_measured() -> None:
    assert FASTER.test(rows(exact("a", 2.0))).verdict == "not measured"
    assert FASTER.test(rows(exact("a", 2.0, network="x"), exact("b", 1.0))).n == 0


def test_devices_are_never_mixed_in_a_case() -> None:
    assert FASTER.test(rows(exact("a", 2.0, device="x"), exact("b", 1.0, device="y"))).n == 0
    assert FASTER.test(rows(exact("a", 2.0, site="x"), exact("b", 1.0, site="y"))).n == 0


def test_a_share_of_the_pairs_suffices() -> None:
    pairs = [exact(s, v, network=n) for n, (a, b) in {"x": (2, 1), "y": (3, 1), "z": (1, 2)}.items()
             for s, v in (("a", float(a)), ("b", float(b)))]  # fmt: skip
    assert FASTER.test(rows(*pairs)).verdict == "refuted"
    some = Predicate(**{**vars(FASTER), "share": 0.6})
    actual = some.test(rows(*pairs))
    assert (actual.verdict, actual.n, actual.share) == ("holds", 3, pytest.approx(2 / 3))


@pytest.mark.parametrize(("other", "verdict"), [(1.5, "holds"), (2.5, "undecided")])
def test_several_configurations_of_a_side_must_agree(other, verdict) -> None:
    actual = FASTER.test(
        rows(exact("a", 2.0), exact("b", 1.0, batch_size=32), exact("b", other, batch_size=64))
    )
    assert (actual.verdict, actual.n, actual.ambiguous) == (verdict, 1, 1)


def test_a_verdict_counts_cases_and_the_runs_of_each_configuration() -> None:
    actual = FASTER.test(rows(exact("a", 2.0, runs=3), exact("b", 1.0, runs=1)))
    assert (actual.n, actual.runs_least, actual.runs_most) == (1, 1, 3)


def test_a_trend_is_the_ratio_of_neighbours_in_the_claims_order() -> None:
    falls = Predicate(
        kind="trend", metric="speedup", along="devices", order=(4, 8, 16), most=1.0, by=("network",)
    )
    four, eight, sixteen = (exact("a", v, devices=d) for v, d in ((2.0, 4), (1.0, 8), (1.5, 16)))
    actual = falls.test(rows(eight, four))
    assert (actual.verdict, actual.value) == ("holds", pytest.approx(0.5))
    actual = falls.test(rows(sixteen, eight, four))
    assert (actual.verdict, actual.n, actual.share) == ("refuted", 2, 0.5)


SLOWER = Predicate(
    kind="trend", metric="speedup", along="base_s", order=("least", "most"), apart=1.2,
    least=0.8, most=0.95, by=("network",),
)  # fmt: skip


def test_a_trend_between_devices_needs_devices_of_two_speeds() -> None:
    fast, slow = exact("a", 4.0, device="x", base_s=0.1), exact("a", 3.6, device="y", base_s=0.2)
    actual = SLOWER.test(rows(slow, fast))
    assert (actual.verdict, actual.value) == ("holds", pytest.approx(0.9))
    assert SLOWER.test(rows(fast, {**slow, "base_s": 0.11})).verdict == "not measured"


def test_a_trend_among_networks_names_those_that_keep_most() -> None:
    keeps = Predicate(
        **{**vars(SLOWER), "among": "network", "values": ("vgg16",), "by": ("dataset",)}
    )
    made = [
        exact("a", speed, network=network, device=device, base_s=base)
        for network, speeds in (("vgg16", (4.0, 3.8)), ("resnet50", (4.0, 3.0)))
        for speed, (device, base) in zip(speeds, (("x", 0.1), ("y", 0.2)), strict=True)
    ]
    actual = keeps.test(rows(*made))
    assert (actual.verdict, actual.n, actual.value) == ("holds", 1, pytest.approx(0.95 / 0.75))
    other = Predicate(**{**vars(keeps), "values": ("resnet50",)})
    assert other.test(rows(*made)).verdict == "refuted"


@pytest.mark.parametrize(
    ("of", "verdict", "value"),
    [("each", "refuted", 1.5), ("mean", "holds", 1.8), ("min", "holds", 1.0),
     ("max", "refuted", 2.9)],
)  # fmt: skip
def test_a_bound_is_of_each_row_or_of_all(of, verdict, value) -> None:
    bound = Predicate(kind="bound", metric="speedup", most=2.0, of=of)
    actual = bound.test(rows(*(exact("a", v, batch_size=v) for v in (1.0, 1.5, 2.9))))
    assert (actual.verdict, actual.value, actual.n) == (verdict, pytest.approx(value), 3)


def test_the_noise_of_a_mean_shrinks_with_its_rows() -> None:
    bound = Predicate(kind="bound", metric="speedup", most=1.05, of="mean")
    first, *more = (exact("a", 1.0, 0.08, batch_size=size) for size in range(4))
    assert bound.test(rows(first)).verdict == "undecided"
    assert bound.test(rows(first, *more)).verdict == "holds"  # 0.08 / sqrt(4)


def test_the_best_of_a_case() -> None:
    best = Predicate(kind="best", metric="speedup", values=("a", "c"), by=("network",))
    assert best.test(rows(exact("a", 1.0), exact("b", 2.0), exact("c", 3.0))).verdict == "holds"
    assert best.test(rows(exact("a", 1.0), exact("b", 2.0))).verdict == "refuted"
    assert best.test(rows(exact("a", 2.0, 0.3), exact("b", 2.1, 0.3))).verdict == "undecided"
    assert best.test(rows(exact("a", 1.0))).verdict == "not measured"


def test_how_runs_ended() -> None:
    ends = Predicate(kind="ends", where={"strategy": "a"}, values=("out_of_memory",))
    assert ends.test(rows(exact("a", 1.0, status="out_of_memory"))).verdict == "holds"
    assert ends.test(rows(exact("a", 1.0))).verdict == "refuted"
    assert ends.test(rows(exact("a", 1.0, status="unsupported"))).verdict == "not measured"


def test_one_side_ends_where_the_other_does_not() -> None:
    ends = Predicate(
        kind="ends", left={"strategy": "a", "status": "ok"},
        right={"strategy": "b", "status": "out_of_memory"}, by=("dataset",),
    )  # fmt: skip
    fits, fails = exact("a", 1.0), exact("b", 1.0, status="out_of_memory")
    assert ends.test(rows(fits, fails)).verdict == "holds"
    assert ends.test(rows(fits, exact("b", 1.0))).verdict == "refuted"
    assert ends.test(rows(fits)).verdict == "not measured"


@pytest.mark.parametrize("size", [24, 24.0, "24"])
def test_one_number_is_one_value_however_it_is_written(size) -> None:
    bound = Predicate(kind="bound", metric="speedup", where={"batch_size": [24, 48]}, least=0.0)
    assert bound.test(rows(exact("a", 1.0, batch_size=size), exact("a", 1.0))).n == 1
    pair = Predicate(**{**vars(FASTER), "by": ("batch_size",)})
    assert pair.test(rows(exact("a", 2.0, batch_size=size), exact("b", 1.0, batch_size=24))).n == 1


@given(st.floats(0.1, 10), st.floats(0, 1), st.floats(0.1, 10), st.floats(0, 1))
def test_truth_is_told_by_the_furthest_ends(a, wide, b, narrow) -> None:
    first, second = (
        Interval(v, v * (1 - w / 2), v * (1 + w / 2)) for v, w in ((a, wide), (b, narrow))
    )
    ratio = first.over(second)
    above, below = ratio.inside(1.0, float("inf")), ratio.inside(-float("inf"), 1.0)
    assert not (above is True and below is True) or ratio.low == ratio.high == 1.0
    if above is True:
        assert first.low >= second.high * (1 - 1e-12)
