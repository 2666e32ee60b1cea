"""Branching networks: PipeDream's graph.txt, its states, and what crosses a cut."""

from __future__ import annotations

import random
from itertools import combinations, pairwise, product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_reference import graph_line

from ddlbench.common.errors import ConfigError
from ddlbench.planning.partition import (
    LayerGraph,
    Level,
    MemoryLimit,
    Node,
    partition,
    partition_graph,
    read_network,
    stage_memory_bytes,
    stages,
)
from ddlbench.planning.partition.graph import graph_file

VGG16 = Path(__file__).with_name("pipedream_vgg16_graph.txt")
CHAIN = [graph_line(f"node{n}", time_ms=3.0, output=1000.0) for n in (1, 2, 3)]
CHAIN_EDGES = ["\tnode1 -- node2", "\tnode2 -- node3"]


def _read(tmp_path, lines, name="graph.txt", encoding="utf-8") -> LayerGraph:
    path = tmp_path / name
    path.write_bytes("\n".join(lines).encode(encoding))
    graph = read_network(path)
    assert isinstance(graph, LayerGraph)
    return graph


def _graph(values, edges) -> LayerGraph:
    """From (seconds, output, weights) of each node, and edges."""
    nodes = [Node(f"n{i}", t, a, a, w) for i, (t, a, w) in enumerate(values)]
    return LayerGraph.of(nodes, edges)


# What crosses, by the definitions: sets of names, and the release's augmented antichain.


def _closed_sets(graph: LayerGraph) -> list[frozenset[int]]:
    count = len(graph.nodes)
    every = (frozenset(c) for size in range(1, count + 1) for c in combinations(range(count), size))
    return [s for s in every if all(graph.read[n] <= s for n in s)]


def _ancestors(graph: LayerGraph, node: int) -> set[int]:
    ancestors: set[int] = set()
    for source in graph.read[node]:
        ancestors |= {source} | _ancestors(graph, source)
    return ancestors


def _sent(graph: LayerGraph, state: frozenset[int], released: bool) -> float:
    if not released:
        crossing = {n for n in state if not graph.readers[n] or graph.readers[n] - state}
        return sum(graph.nodes[n].output_bytes for n in crossing)
    antichain = {n for n in state if not graph.readers[n] & state}
    counted = set(antichain)
    for node in antichain:
        before = _ancestors(graph, node)
        counted |= {p for p in before if any(o not in before | {node} for o in graph.readers[p])}
    return sum(graph.nodes[n].output_bytes for n in counted)


def _least_period(graph: LayerGraph, level: Level, model: str) -> float:
    """Over all chains of closed sets and all replicas, of one level."""
    released, bandwidth = model == "released", level.bandwidth_bytes_per_s
    whole = frozenset(range(len(graph.nodes)))
    states = [s for s in _closed_sets(graph) if s != whole]
    best = float("inf")
    for count in range(level.machines):
        for inner in combinations(states, count):
            ends = [frozenset(), *inner, whole]
            if any(not a < b for a, b in pairwise(ends)):
                continue
            for replicas in product(range(1, level.machines + 1), repeat=count + 1):
                if sum(replicas) != level.machines:
                    continue
                period = 0.0
                for i, r in enumerate(replicas):
                    held = [graph.nodes[n] for n in ends[i + 1] - ends[i]]
                    time = sum(node.time_s for node in held)
                    weights = sum(node.parameter_bytes for node in held)
                    cuts = [_sent(graph, ends[i], released) if i else 0.0]
                    if released:
                        stage = (time + 4 * (r - 1) * weights / (bandwidth * r)) / r
                        leaving = ends[i + 1] != whole and i > 0
                        cuts.append(_sent(graph, ends[i + 1], True) if leaving else 0.0)
                        period = max(period, stage, *(2 * a / (bandwidth * r) for a in cuts))
                    else:
                        stage = max(time, 2 * (r - 1) * weights / bandwidth) / r
                        period = max(period, stage, 2 * cuts[0] / bandwidth)
                best = min(best, period)
    return best


@st.composite
def graphs(draw) -> LayerGraph:
    """Up to six nodes; each reads from one or more of those before it."""
    sizes = st.integers(0, 40).map(float)
    values = st.tuples(st.integers(0, 9).map(lambda tenths: tenths / 10), sizes, sizes)
    nodes = draw(st.lists(values, min_size=1, max_size=6))
    edges = [
        (source, node)
        for node in range(1, len(nodes))
        for source in draw(st.sets(st.integers(0, node - 1), min_size=1, max_size=3))
    ]
    return _graph(nodes, edges)


@given(graphs(), st.integers(1, 3), st.integers(1, 300), st.sampled_from(["released", "paper"]))
def test_equals_brute_force(graph, machines, bandwidth, model) -> None:
    level = Level(machines, float(bandwidth))
    chain, actual = partition_graph(graph, [level], model)
    assert actual.period_s == pytest.approx(_least_period(graph, level, model), rel=1e-12)
    assert sum(actual.replicas) == machines
    assert sorted(node.name for node in chain.nodes) == sorted(node.name for node in graph.nodes)
    place = {node.name: position for position, node in enumerate(chain.nodes)}
    for node, readers in enumerate(graph.readers):
        for reader in readers:
            assert place[graph.nodes[node].name] < place[graph.nodes[reader].name]


@given(graphs(), st.integers(1, 300), st.integers(40, 900))
def test_with_levels_and_a_limit_stages_fit(graph, bandwidth, limit) -> None:
    levels = [Level(2, float(bandwidth)), Level(2, float(bandwidth))]
    memory = MemoryLimit(float(limit))
    unlimited = partition_graph(graph, levels)[1]
    try:
        chain, actual = partition_graph(graph, levels, memory=memory)
    except ConfigError:
        return
    assert max(stage_memory_bytes(actual, chain, memory)) <= limit
    assert actual.period_s >= unlimited.period_s


def test_a_fork_counts_as_in_the_release_or_once() -> None:
    """0 -> (1, 2) -> 3: before 3 the release still counts the tensor of 0, so it cuts before 2."""
    values = [(1.0, 8.0, 0.0), (1.0, 1.0, 0.0), (1.0, 1.0, 0.0), (3.0, 1.0, 0.0)]
    graph = _graph(values, [(0, 1), (0, 2), (1, 3), (2, 3)])
    level = [Level(2, 4.0)]
    assert partition_graph(graph, level, "released", True)[1].period_s == 2 * (8.0 + 1.0) / 4
    assert partition_graph(graph, level, "paper", True)[1].period_s == 3.0


def test_a_tensor_with_two_readers_behind_a_cut_crosses_once() -> None:
    values = [(1.0, 8.0, 0.0), (0.5, 9.0, 0.0), (0.5, 9.0, 0.0)]
    graph = _graph(values, [(0, 1), (0, 2), (1, 2)])
    for model in ("released", "paper"):
        assert partition_graph(graph, [Level(2, 8.0)], model, True)[1].period_s == 2.0


def test_a_skip_connection_crosses_too(tmp_path) -> None:
    lines = [graph_line("node1", "Input0")]
    lines += [graph_line(f"node{n}", time_ms=15.0, output=9e6) for n in (2, 4, 5)]
    lines += [graph_line("node3", time_ms=15.0, output=1000.0)]
    edges = ["1 2", "2 3", "3 4", "4 5", "2 5"]
    lines += ["\tnode{} -- node{}".format(*edge.split()) for edge in edges]
    chain, actual = partition_graph(_read(tmp_path, lines), [Level(2, 2e9)], "released", True)
    # Narrow as it is, the cut behind node3 sends what node2 sends past it.
    assert actual.period_s == pytest.approx(0.030)
    (cut,) = [stage.last for stage in actual.stages[:-1]]
    assert cut == 2
    assert chain.nodes[1].output_bytes == 9e6 + 1000


def test_no_order_of_lines_matters() -> None:
    lines = [line for line in VGG16.read_text().splitlines() if not line.startswith("#")]
    level = [Level(4, 1e9)]
    graph = read_network(VGG16)
    assert partition_graph(graph, level)[1].period_s == 0.205520896
    random.Random(1).shuffle(lines)
    assert graph_file("\n".join(lines), Path("shuffled")).layers == graph


def test_what_costs_nothing_runs_where_it_is_read() -> None:
    """The attention of GNMT: one hidden state for every layer of the decoder."""
    values = [(1.0, 4.0, 1.0)] * 14 + [(0.0, 0.0, 0.0)] * 13
    edges = [(n, n + 1) for n in range(13)] + [(14, 14 + n) for n in range(1, 13)]
    edges += [(14 + n, n + 1) for n in range(1, 13)]
    graph = _graph(values, edges)
    alone = _graph(values[:14], edges[:13])
    levels = [Level(3, 100.0)]
    assert partition_graph(graph, levels)[1].period_s == pytest.approx(
        partition_graph(alone, levels)[1].period_s
    )


def _many_states(blocks: int, seed: int) -> LayerGraph:
    """Blocks of four branches of four nodes: 5^4 states each, and more in time."""
    drawn = random.Random(seed)
    values, edges, last = [(0.1, 3e6, 0.0)], [], 0
    for _ in range(blocks):
        ends = []
        for _branch in range(4):
            before = last
            for _layer in range(4):
                values.append((drawn.uniform(0.01, 0.2), drawn.uniform(1e6, 6e6), 1e6))
                edges.append((before, len(values) - 1))
                before = len(values) - 1
            ends.append(before)
        values.append((0.0, 8e6, 0.0))
        last = len(values) - 1
        edges += [(end, last) for end in ends]
    return _graph(values, edges)


@pytest.mark.parametrize("model", ["released", "paper"])
@pytest.mark.parametrize("machines", [[4], [2, 2]])
def test_a_network_of_many_states_is_no_worse_than_its_orders(model, machines) -> None:
    graph = _many_states(3, 1)
    levels = [Level(count, 3e7) for count in machines]
    chain, actual = partition_graph(graph, levels, model)
    for order in graph.orders():
        along = partition(graph.chain(order), levels, model)
        assert actual.period_s <= along.period_s * (1 + 1e-12)
    assert len(chain) == len(graph.nodes)


def test_the_search_finds_no_period_below_the_least(monkeypatch) -> None:
    graph, levels = _many_states(1, 2), [Level(3, 3e7)]
    least = partition_graph(graph, levels, "paper")[1].period_s
    monkeypatch.setattr(stages, "_MOST_STATES", 50)
    monkeypatch.setattr(stages, "_SEARCHED_STATES", 120)
    searched = partition_graph(graph, levels, "paper")[1].period_s
    assert least <= searched <= least * 1.2


def test_a_long_chain_is_cut(monkeypatch) -> None:
    graph = _graph([(1.0, 1.0, 0.0)] * 900, [(n, n + 1) for n in range(899)])
    actual = partition_graph(graph, [Level(4, 1e9)], "paper", straight=True)[1]
    assert actual.period_s == pytest.approx(225.0, rel=0.02)
    assert len(partition_graph(graph, [Level(30, 1e9)], "paper", True)[1].stages) == 30


@pytest.mark.parametrize(
    ("lines", "encoding"),
    [
        (CHAIN + CHAIN_EDGES, "utf-8"),
        (CHAIN_EDGES + CHAIN, "utf-8"),
        ([f"{line}\r" for line in CHAIN + CHAIN_EDGES], "utf-8"),
        (CHAIN + [edge.strip() for edge in CHAIN_EDGES], "utf-8"),
        (CHAIN + [edge.replace("\t", "    ") for edge in CHAIN_EDGES], "utf-8"),
        (["# a comment", "", *CHAIN, "", *CHAIN_EDGES, ""], "utf-8"),
        (CHAIN + CHAIN_EDGES + CHAIN_EDGES[:1], "utf-8"),
        ([f"{line} -- stage_id={n}" for n, line in enumerate(CHAIN)] + CHAIN_EDGES, "utf-8"),
        ([f"{CHAIN[0]} -- stage_id=0", *CHAIN[1:], *CHAIN_EDGES], "utf-8"),
        (CHAIN + CHAIN_EDGES, "utf-16"),
        (CHAIN + CHAIN_EDGES, "utf-8-sig"),
        ([graph_line("node0", "Input"), *CHAIN, *CHAIN_EDGES, "\tnode0 -- node1"], "utf-8"),
        ([graph_line("node0", "Input1"), *CHAIN, *CHAIN_EDGES], "utf-8"),
        (
            [*CHAIN, graph_line("node4", "__getitem__(1)"), *CHAIN_EDGES, "\tnode2 -- node4"],
            "utf-8",
        ),
    ],
)
def test_forms_of_the_same_graph(tmp_path, lines, encoding) -> None:
    graph = _read(tmp_path, lines, encoding=encoding)
    assert [node.name for node in graph.nodes] == ["node1", "node2", "node3"]
    assert graph.readers == (frozenset({1}), frozenset({2}), frozenset())


def test_numbers(tmp_path) -> None:
    outputs = "[6291456.0; 131072.0; 131072.0]"
    lines = [graph_line("node1", time_ms=1, output=outputs, weights="1E3")]
    (node,) = _read(tmp_path, lines).nodes
    assert (node.output_bytes, node.parameter_bytes) == (6291456 + 2 * 131072, 1000)
    assert node.saved_bytes == node.output_bytes


def test_a_graph_is_known_by_its_lines(tmp_path) -> None:
    for name in ("graph.csv", "graph", "gpus=4.log"):
        assert len(_read(tmp_path, CHAIN + CHAIN_EDGES, name).nodes) == 3


def test_parts_that_only_an_input_joins_both_count(tmp_path) -> None:
    lines = [graph_line("node0", "Input"), *CHAIN, CHAIN[0].replace("node1", "node9"), *CHAIN_EDGES]
    lines += ["\tnode0 -- node1", "\tnode0 -- node9"]
    actual = partition_graph(_read(tmp_path, lines), [Level(1, 1e9)])[1]
    assert actual.period_s == pytest.approx(0.012)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([*CHAIN, CHAIN[1], *CHAIN_EDGES], "line 4: 'node2' is also in line 2"),
        ([*CHAIN, *CHAIN_EDGES, "\tnode3 -- node7"], "line 6: an edge of 'node7'"),
        ([*CHAIN, *CHAIN_EDGES, "\tnode3 -- node1"], "line [456]: this edge is part of a cycle"),
        ([*CHAIN, *CHAIN_EDGES, "\tnode3 -- node3"], "line 6: this edge is part of a cycle"),
        (CHAIN, "line 2: no edges join 'node2' and 'node1'"),
        ([*CHAIN, CHAIN_EDGES[0]], "line 3: no edges join 'node3' and 'node1'"),
        ([*CHAIN, "node1 -> node2"], "line 4: 'node1 -> node2' is no node and no edge"),
        ([*CHAIN, "node1 -- node2 -- node3"], "line 4: .* is no node and no edge"),
        ([graph_line("n", time_ms="-1")], "line 1: forward_compute_time is '-1'"),
        ([graph_line("n", time_ms="nan")], "line 1: forward_compute_time is 'nan'"),
        ([graph_line("n", time_ms="1,5")], "line 1: .*a point in a number"),
        ([graph_line("n", output="inf")], "activation_size is 'inf'; .* as .a; b; c."),
        ([graph_line("n", output="[1.0; x]")], "activation_size is '.1.0; x.'"),
        ([graph_line("n", output="[1.0, 2.0]")], "several outputs as .a; b; c."),
        ([graph_line("n", weights="[1.0; 2.0]")], "parameter_size is '.1.0; 2.0.'"),
        ([graph_line("n", output="1e300")], "activation_size is '1e300'"),
        ([CHAIN[0][:-20]], "line 1: .* is not forward_compute_time=NUMBER"),
        ([graph_line("n", "Input")], "holds no layer, only inputs"),
        ([graph_line("n")], "all its layers take 0 s"),
        ([graph_line("n", time_ms="-0.0")], "all its layers take 0 s"),
        ([""], "holds no node"),
        (["x" * 100_000], "line 1: .* is no node and no edge"),
    ],
)
def test_a_wrong_graph_is_one_sentence_with_its_line(tmp_path, lines, says) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        _read(tmp_path, lines)
    assert str(tmp_path) in str(error.value)
    assert len(str(error.value)) < 400 + len(str(tmp_path))


def test_bytes_that_are_no_text(tmp_path) -> None:
    for content in (bytes(range(256)), "\n".join(CHAIN).encode("utf-16-le")):
        (tmp_path / "graph.txt").write_bytes(content)
        with pytest.raises(ConfigError, match="save it as UTF-8"):
            read_network(tmp_path / "graph.txt")
