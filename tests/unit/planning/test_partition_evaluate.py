"""Cost models on stages that are given: the programme's own period, and hand-worked ones."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlbench.common.errors import ConfigError
from ddlbench.planning.partition import COST_MODELS, Chain, Level, Node, partition
from ddlbench.planning.partition.stages import PlacedStage, StageLinks, period_of
from ddlbench.planning.pipeline import Stage


def _chain(times: list[float], outputs: list[float], weights: list[float]) -> Chain:
    return Chain(
        tuple(
            Node(f"n{number}", time, output, 0.0, weight)
            for number, (time, output, weight) in enumerate(
                zip(times, outputs, weights, strict=True)
            )
        )
    )


def _placed(*stages: tuple[int, int, tuple[int, ...]]) -> list[PlacedStage]:
    return [PlacedStage(Stage(a, b, len(nodes)), nodes) for a, b, nodes in stages]


@given(
    st.lists(st.tuples(*[st.integers(1, 9)] * 3), min_size=2, max_size=5),
    st.integers(1, 4),
    st.sampled_from([0.5, 3.0, 50.0]),
    st.sampled_from(sorted(COST_MODELS)),
)
def test_of_the_programmes_own_stages_it_is_the_programmes_period(
    nodes, machines, bandwidth, model
) -> None:
    chain = _chain(*([float(value) for value in column] for column in zip(*nodes, strict=True)))
    actual = partition(chain, [Level(machines, bandwidth)], model)
    placed = [PlacedStage(stage, (0,) * stage.replicas) for stage in actual.stages]
    period, _ = period_of(chain, placed, StageLinks(bandwidth, 1e-9), model)
    assert period == actual.period_s


def test_no_stages_beat_the_programmes() -> None:
    chain = _chain([1.0, 2.0, 3.0, 2.0], [4.0, 1.0, 5.0, 1.0], [1.0, 3.0, 2.0, 8.0])
    best = partition(chain, [Level(4, 2.0)], "paper").period_s
    links = StageLinks(2.0, 1e-9)
    for cuts in itertools.chain.from_iterable(
        itertools.combinations(range(1, 4), count) for count in range(4)
    ):
        edges = list(itertools.pairwise((0, *cuts, 4)))
        for counts in itertools.product(range(1, 5), repeat=len(edges)):
            if sum(counts) == 4:
                placed = _placed(
                    *((a, b, (0,) * r) for (a, b), r in zip(edges, counts, strict=True))
                )
                assert period_of(chain, placed, links, "paper")[0] >= best


def test_where_stages_lie_decides_their_links() -> None:
    """Two blocks of 1 s, 6 bytes across; 6 bytes/s within a node, 2 between nodes."""
    chain = _chain([1.0, 1.0], [6.0, 0.0], [0.0, 12.0])
    links = StageLinks(6.0, 2.0)
    assert period_of(chain, _placed((0, 1, (0,)), (1, 2, (0,))), links) == (2.0, 2.0)
    assert period_of(chain, _placed((0, 1, (0,)), (1, 2, (1,))), links) == (6.0, 6.0)


@pytest.mark.parametrize(
    ("nodes", "released", "paper"),
    [
        # T = 2 s, w = 12 bytes: (2 + 4 w / (2 B)) / 2, and max(2, 2 w / B) / 2
        ((0, 0), (2 + 4) / 2, 4 / 2),
        ((0, 1), (2 + 12) / 2, 12 / 2),
        # Two on each of two nodes: the first line, then (T' + 4 w / (2 B) / 2) / 2, or 2 w / B
        ((0, 0, 1, 1), (3 + 12 / 2) / 2, 12 / 2),
        # Uneven: all over the links between nodes, r = 3: 4 * 2 w / (3 B), and 4 w / B
        ((0, 0, 1), (2 + 16) / 3, 24 / 3),
    ],
)
def test_replicas_meet_over_the_links_that_they_span(nodes, released, paper) -> None:
    chain = _chain([2.0], [0.0], [12.0])
    links = StageLinks(6.0, 2.0)
    placed = _placed((0, 1, nodes))
    assert period_of(chain, placed, links, "released")[0] == pytest.approx(released)
    assert period_of(chain, placed, links, "paper")[0] == pytest.approx(paper)


def test_an_unknown_cost_model_is_one_sentence() -> None:
    chain, levels = _chain([1.0, 1.0], [6.0, 0.0], [0.0, 12.0]), [Level(2, 6.0)]
    with pytest.raises(ConfigError, match="unknown cost model 'guess'; known: paper, released"):
        partition(chain, levels, model="guess")
