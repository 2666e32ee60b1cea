"""Predicates on made-up rows: every kind, every verdict."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlbench.claims.predicate import Interval, Predicate


def rows(*records: dict) -> pd.DataFrame:
    columns = {"status": "ok", "here": "CPU", "network": "vgg11", "dataset": "mnist"}
    frame = pd.DataFrame([{**columns, **record} for record in records])
    for name in ("speedup", "speedup_low", "speedup_high", "devices", "strategy"):
        if name not in frame:
            frame[name] = None
    return frame


def cell(strategy: str, speedup: float, spread: float = 0.0, **more) -> dict:
    low, high = speedup - spread, speedup + spread
    return {
        "strategy": strategy, "speedup": speedup, "speedup_low": low, "speedup_high": high, **more
    }  # fmt: skip


FASTER = Predicate(
    kind="compare", metric="speedup", left={"strategy": "a"}, right={"strategy": "b"},
    least=1.0, by=("network",),
)  # fmt: skip


@pytest.mark.parametrize(
    ("mine", "spread", "verdict"),
    [(2.0, 0.1, "holds"), (0.5, 0.1, "refuted"), (1.05, 0.2, "undecided")],
)
def test_a_pair_is_surely_true_surely_false_or_noise(mine, spread, verdict) -> None:
    found = FASTER.test(rows(cell("a", mine, spread), cell("b", 1.0, 0.1)))
    assert (found.verdict, found.n) == (verdict, 1)
    assert found.value == pytest.approx(mine)


def test_nothing_to_compare_is_not_measured() -> None:
    assert FASTER.test(rows(cell("a", 2.0))).verdict == "not measured"
    assert FASTER.test(rows(cell("a", 2.0, network="x"), cell("b", 1.0))).n == 0


def test_a_share_of_the_pairs_suffices() -> None:
    pairs = [cell(s, v, network=n) for n, (a, b) in {"x": (2, 1), "y": (3, 1), "z": (1, 2)}.items()
             for s, v in (("a", float(a)), ("b", float(b)))]  # fmt: skip
    assert FASTER.test(rows(*pairs)).verdict == "refuted"
    some = Predicate(**{**vars(FASTER), "share": 0.6})
    found = some.test(rows(*pairs))
    assert (found.verdict, found.n, found.share) == ("holds", 3, pytest.approx(2 / 3))


def test_a_value_without_an_interval_is_known_to_5_percent() -> None:
    bare = {"speedup_low": None, "speedup_high": None}
    near = [{**cell("a", 1.03), **bare}, {**cell("b", 1.0), **bare}]
    assert FASTER.test(rows(*near)).verdict == "undecided"
    far = [{**cell("a", 1.3), **bare}, {**cell("b", 1.0), **bare}]
    assert FASTER.test(rows(*far)).verdict == "holds"


def test_a_trend_is_the_ratio_of_its_ends() -> None:
    falls = Predicate(
        kind="trend", metric="speedup", along="devices", start=4, end=8, most=1.0, by=("network",)
    )
    found = falls.test(rows(cell("a", 2.0, devices=4), cell("a", 1.0, devices=8)))
    assert (found.verdict, found.value) == ("holds", pytest.approx(0.5))
    assert (
        falls.test(rows(cell("a", 1.0, devices=4), cell("a", 2.0, devices=8))).verdict == "refuted"
    )


@pytest.mark.parametrize(
    ("of", "verdict"),
    [("each", "refuted"), ("mean", "holds"), ("median", "holds"), ("max", "refuted")],
)
def test_a_bound_is_of_each_row_or_of_all(of, verdict) -> None:
    bound = Predicate(kind="bound", metric="speedup", most=2.0, of=of)
    assert bound.test(rows(*(cell("a", v) for v in (1.0, 1.5, 2.9)))).verdict == verdict


def test_the_best_of_a_case() -> None:
    best = Predicate(kind="best", metric="speedup", is_=("a", "c"), by=("network",))
    assert best.test(rows(cell("a", 1.0), cell("b", 2.0), cell("c", 3.0))).verdict == "holds"
    assert best.test(rows(cell("a", 1.0), cell("b", 2.0))).verdict == "refuted"
    assert best.test(rows(cell("a", 2.0, 0.3), cell("b", 2.1, 0.3))).verdict == "undecided"
    assert best.test(rows(cell("a", 1.0))).verdict == "not measured"


def test_how_runs_ended() -> None:
    ends = Predicate(kind="ends", where={"strategy": "a"}, is_=("out_of_memory",))
    assert ends.test(rows(cell("a", 1.0, status="out_of_memory"))).verdict == "holds"
    assert ends.test(rows(cell("a", 1.0))).verdict == "refuted"


def test_numbers_and_lists_select_rows() -> None:
    bound = Predicate(
        kind="bound", metric="speedup", where={"devices": [4, 8], "strategy": ["a"]}, least=0.0
    )
    made = rows(cell("a", 1.0, devices=4.0), cell("a", 1.0, devices=2.0), cell("b", 1.0, devices=8))
    assert bound.test(made).n == 1


@given(st.floats(0.1, 10), st.floats(0, 1), st.floats(0.1, 10), st.floats(0, 1))
def test_truth_is_told_by_the_furthest_ends(a, wide, b, narrow) -> None:
    one, other = (
        Interval(v, v * (1 - w / 2), v * (1 + w / 2)) for v, w in ((a, wide), (b, narrow))
    )
    ratio = one.over(other)
    above, below = ratio.inside(1.0, float("inf")), ratio.inside(-float("inf"), 1.0)
    assert not (above is True and below is True) or ratio.low == ratio.high == 1.0
    if above is True:
        assert one.low >= other.high * (1 - 1e-12)
