"""The programme equals the published optimizer's results, and brute force."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_reference import best_period, fits, partitions, period

from ddlbench.common.errors import ConfigError
from ddlbench.planning.partition import (
    Chain,
    LayerGraph,
    Level,
    MemoryLimit,
    Node,
    partition,
    programme,
    read_network,
    stage_memory_bytes,
)

VGG16 = Path(__file__).with_name("pipedream_vgg16_graph.txt")


@pytest.fixture(scope="module")
def vgg16() -> Chain:
    graph = read_network(VGG16)
    assert isinstance(graph, LayerGraph)
    return graph.chain(range(len(graph.nodes)))


# Results of the release's optimizer_graph_hierarchical.py on this profile, with
# --activation_compression_ratio 1: (arguments, stages, seconds, speed-up over one, over DP).
PUBLISHED = [
    ([4], [1e9], False, [(0, 17, 3), (17, 40, 1)], 0.205520896, 3.2723, 2.8377),
    ([4], [32e9], False, [(0, 15, 3), (15, 40, 1)], 0.169754832, 3.9618, 1.0669),
    (
        [4],
        [1e9],
        True,
        [(0, 10, 1), (10, 17, 1), (17, 26, 1), (26, 40, 1)],
        0.411041792,
        1.6362,
        1.4188,
    ),
    ([16], [1e9], False, [(0, 24, 13), (24, 31, 2), (31, 40, 1)], 0.05652976738, 11.897, 3.0381),
    (
        [4, 4],
        [32e9, 5e9],
        False,
        [(0, 17, 12), (17, 25, 3), (25, 40, 1)],
        0.0432159319,
        15.5622,
        None,
    ),
    ([4, 4], [10e9, 1.25e9], False, None, 0.0671339969, 10.0178, None),
]


@pytest.mark.parametrize("published", PUBLISHED)
def test_published_results(vgg16, published) -> None:
    machines, links, straight, stages, seconds, over_one, over_dp = published
    levels = [Level(*level) for level in zip(machines, links, strict=True)]
    actual = partition(vgg16, levels, "released", straight)
    assert actual.period_s == pytest.approx(seconds, rel=1e-9)
    assert float(vgg16.time_s[0, -1]) / actual.period_s == pytest.approx(over_one, abs=5e-5)
    if over_dp is not None:
        data_parallel = period(vgg16, [(0, 40, machines[0])], levels[0], "released")
        assert data_parallel / actual.period_s == pytest.approx(over_dp, abs=5e-5)
    if straight:  # several partitions share this period, as the published one does
        assert period(vgg16, stages, levels[0], "released") == actual.period_s
    elif stages is not None:
        assert [(x.first, x.last, x.replicas) for x in actual.stages] == stages


def test_a_published_partition_that_shares_its_period(vgg16) -> None:
    """12-1-1-1-1 at 33, 34, 36, 37: three nodes of four devices, and one node as a pipeline."""
    devices, servers = Level(4, 10e9), Level(4, 1.25e9)
    inside = {
        (0, 33): [(0, 33, 4)],
        (33, 40): [(33, 34, 1), (34, 36, 1), (36, 37, 1), (37, 40, 1)],
    }
    published = period(
        vgg16,
        [(0, 33, 3), (33, 40, 1)],
        servers,
        "released",
        inner=4,
        below=lambda first, last: period(vgg16, inside[first, last], devices, "released"),
    )
    assert partition(vgg16, [devices, servers], "released").period_s == published


def test_profile_has_the_published_total(vgg16) -> None:
    assert len(vgg16) == 40
    assert float(vgg16.time_s[0, -1]) == pytest.approx(0.672535, rel=1e-12)


def test_a_fast_link_in_the_model_and_a_slow_one_in_truth(vgg16) -> None:
    """Why the bandwidth must be measured: the cut chosen at 32 GB/s is slow at 1 GB/s."""
    actual = partition(vgg16, [Level(4, 32e9)], "released")
    cuts = [(x.first, x.last, x.replicas) for x in actual.stages]
    (_, cut, _) = cuts[0]
    assert vgg16.nodes[cut - 1].output_bytes == pytest.approx(0.411e9, rel=1e-3)
    straight_through = 2 * vgg16.nodes[cut - 1].output_bytes / 1e9
    assert straight_through == pytest.approx(0.822, abs=5e-4)
    assert 0.672535 / straight_through == pytest.approx(0.82, abs=5e-3)


def test_several_levels_use_every_device(vgg16) -> None:
    for machines in ([4, 4], [2, 3, 2], [8, 8], [1, 4]):
        actual = partition(vgg16, [Level(m, 1e10) for m in machines], "paper")
        assert sum(actual.replicas) == math.prod(machines)
        ends = [0, *(stage.last for stage in actual.stages)]
        assert [stage.first for stage in actual.stages] == ends[:-1]
        assert ends[-1] == 40


sizes = st.integers(0, 40).map(float)
nodes = st.builds(
    Node,
    name=st.just("node"),
    time_s=st.integers(0, 9).map(lambda tenths: tenths / 10),
    output_bytes=sizes,
    saved_bytes=sizes,
    parameter_bytes=sizes,
    buffer_bytes=st.integers(0, 3).map(float),
)
chains = st.builds(Chain, st.lists(nodes, min_size=1, max_size=5).map(tuple))
levels_of_one = st.builds(Level, st.integers(1, 4), st.integers(1, 300).map(float))
models = st.sampled_from(["released", "paper"])


@given(chains, levels_of_one, models, st.booleans())
def test_equals_brute_force(chain, level, model, straight) -> None:
    best = best_period(chain, [level], model, straight)
    if math.isinf(best):
        with pytest.raises(ConfigError, match="stages without replication"):
            partition(chain, [level], model, straight)
        return
    actual = partition(chain, [level], model, straight)
    assert actual.period_s == best
    cuts = [(x.first, x.last, x.replicas) for x in actual.stages]
    assert period(chain, cuts, level, model) == best


@given(
    chains,
    st.lists(
        st.builds(Level, st.integers(1, 3), st.integers(1, 300).map(float)), min_size=2, max_size=3
    ),
    models,
)
def test_several_levels_equal_brute_force(chain, levels, model) -> None:
    actual = partition(chain, levels, model)
    assert actual.period_s == best_period(chain, levels, model, False)
    assert sum(actual.replicas) == math.prod(level.machines for level in levels)


@given(
    st.builds(Chain, st.lists(nodes, min_size=1, max_size=7).map(tuple)),
    st.integers(1, 3),
    st.builds(Level, st.integers(1, 20), st.sampled_from([1.0, 30.0, 300.0, math.inf])),
    models,
)
def test_thresholds_choose_the_stages_of_the_tables(chain, inner, level, model) -> None:
    levels = [Level(inner, 500.0), level]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(programme, "_MANY", 0)
        by_thresholds = partition(chain, levels, model)
        patched.setattr(programme, "_MANY", math.inf)
        assert partition(chain, levels, model) == by_thresholds


@pytest.mark.parametrize("model", ["released", "paper"])
def test_a_million_machines_are_all_used(vgg16, model) -> None:
    actual = partition(vgg16, [Level(8, 3e11), Level(10**6, 5e10)], model)
    assert sum(actual.replicas) == 8 * 10**6
    if model == "released":  # the paper's all-reduce takes longer, the more replicas there are
        fewer = partition(vgg16, [Level(8, 3e11), Level(10**3, 5e10)], model)
        assert actual.period_s < fewer.period_s


def test_searches_of_hours_are_refused(vgg16) -> None:
    memory = MemoryLimit(1e7)
    with pytest.raises(ConfigError, match="4000 machines under a memory limit"):
        partition(vgg16, [Level(4000, 1e9)], memory=memory)
    with pytest.raises(ConfigError, match="4000 machines below another level"):
        partition(vgg16, [Level(4000, 1e9), Level(2, 1e9)])
    with pytest.raises(ConfigError, match="40 layers cannot make 100000 stages"):
        partition(vgg16, [Level(100_000, 1e9)], straight=True)


@given(chains, levels_of_one, models, st.integers(1, 400), st.sampled_from([0.0, 1.0, 2.0]))
def test_memory_limit_equals_brute_force(chain, level, model, limit, states) -> None:
    memory = MemoryLimit(limit, states)
    fitting = [
        period(chain, cuts, level, model)
        for cuts in partitions(0, len(chain), level.machines, False)
        if fits(chain, cuts, memory)
    ]
    if not fitting:
        with pytest.raises(ConfigError, match="does not fit"):
            partition(chain, [level], model, memory=memory)
        return
    actual = partition(chain, [level], model, memory=memory)
    assert actual.period_s == min(fitting)
    assert fits(chain, [(x.first, x.last, x.replicas) for x in actual.stages], memory)
    assert max(stage_memory_bytes(actual, chain, memory)) <= limit


@given(
    chains,
    st.lists(st.builds(Level, st.integers(1, 3), st.just(100.0)), min_size=1, max_size=3),
    st.integers(50, 900),
    st.integers(0, 2),
)
def test_whatever_is_found_fits(chain, levels, limit, extra) -> None:
    memory = MemoryLimit(limit, extra_warmup=extra)
    try:
        actual = partition(chain, levels, "paper", memory=memory)
    except ConfigError:
        return
    assert fits(chain, [(x.first, x.last, x.replicas) for x in actual.stages], memory)
    assert actual.period_s >= best_period(chain, levels, "paper", False)


def test_versions_count_towards_memory() -> None:
    chain = Chain((Node("a", 1.0, 0.0, 10.0, 100.0), Node("b", 1.0, 0.0, 10.0, 0.0)))
    straight = partition(chain, [Level(2, 1.0)], "paper", straight=True)
    sgd = MemoryLimit(1000.0)
    # Stage 0 has two mini-batches in flight: 2 * (10 + 100), gradients and momentum 200.
    assert stage_memory_bytes(straight, chain, sgd) == (420.0, 10.0)
    assert partition(chain, [Level(2, 1.0)], "paper", True, MemoryLimit(420.0)) == straight
    with pytest.raises(ConfigError, match="does not fit"):
        partition(chain, [Level(2, 1.0)], "paper", True, MemoryLimit(419.0))


def test_a_large_network_on_64_devices() -> None:
    chain = Chain(tuple(Node(str(n), 1.0 + n % 3, 1e6, 1e6, 1e5) for n in range(155)))
    for machines in ([64], [8, 8]):
        actual = partition(chain, [Level(m, 1e9) for m in machines])
        assert sum(actual.replicas) == 64
