"""PipeDream's warm-up counts: the published examples, and this project's rule."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_factory import released_warmups

from ddlbench.common.errors import ConfigError
from ddlbench.planning.schedules.orders import warmups

CONFIGURATIONS = [
    replicas
    for stages in range(2, 5)
    for replicas in product(range(1, 8), repeat=stages)
    if sum(replicas) <= 8
]


@pytest.mark.parametrize(
    ("replicas", "counts"),
    [
        ((1, 1, 1, 1), (3, 2, 1, 0)),
        ((2, 1, 1), (1, 1, 0)),
        ((3, 1), (1, 0)),
        ((15, 1), (1, 0)),
        ((1, 3), (3, 0)),
        ((4,), (0,)),
        ((4, 2, 1, 1), (1, 1, 1, 0)),
    ],
)
def test_published_examples(replicas, counts) -> None:
    assert released_warmups(replicas) == counts
    assert warmups(replicas) == counts


def test_a_wide_stage_in_the_middle_asks_for_more() -> None:
    assert released_warmups((1, 3, 1)) == (4, 1, 0)
    assert warmups((1, 3, 1)) == (6, 1, 0)


def test_never_less_than_released_and_equal_where_pipelines_do_not_widen() -> None:
    assert len(CONFIGURATIONS) == 154
    for replicas in CONFIGURATIONS:
        ours, theirs = warmups(replicas), released_warmups(replicas)
        assert all(a >= b for a, b in zip(ours, theirs, strict=True))
        divides = all(a % b == 0 for a, b in pairwise(replicas))
        assert not divides or ours == theirs


@pytest.mark.parametrize(
    ("replicas", "extra", "counts"),
    [
        ((2, 1, 1), 1, (2, 2, 0)),
        ((4, 2, 1, 1), 1, (2, 2, 2, 0)),
        ((1, 3), 2, (5, 0)),
        ((1, 3, 1), 2, (12, 3, 0)),
    ],
)
def test_extra(replicas, extra, counts) -> None:
    assert warmups(replicas, extra) == counts


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 4))
def test_a_stage_admits_what_the_next_one_asks_for(replicas, extra) -> None:
    counts = warmups(replicas, extra)
    demands = [(count + 1) * r for count, r in zip(counts, replicas, strict=True)]
    for stage, (count, r) in enumerate(zip(counts[:-1], replicas[:-1], strict=True)):
        assert count * r >= demands[stage + 1]
    assert counts[-1] == 0


@pytest.mark.parametrize("replicas", [(), (0,), (2, -1)])
def test_bad_replicas(replicas) -> None:
    with pytest.raises(ConfigError, match="replicas"):
        warmups(replicas)
    with pytest.raises(ConfigError, match="extra_warmup"):
        warmups((1, 1), -1)
