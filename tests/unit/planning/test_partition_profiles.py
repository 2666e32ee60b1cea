"""Profiles become chains; what is wrong with one is said in one sentence."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.profile import Profile
from ddlbench.planning.partition import (
    Chain,
    LayerGraph,
    Level,
    MemoryLimit,
    Node,
    balance,
    chain_of_profile,
    partition,
    read_network,
)

VGG16 = Path(__file__).with_name("pipedream_vgg16_graph.txt")
HEADER = "node,layer,forward_ms,backward_ms,activation_bytes,parameter_bytes\n"


TABLE = Path(__file__).parents[3] / "config/accelerators/pipedream/imagenet/vgg16.csv"


def test_a_devices_table_is_the_chain_of_its_graph():
    """The table of `pipedream` was made from the graph; times are in proportion to the batch."""
    graph = read_network(VGG16)
    assert isinstance(graph, LayerGraph)
    for batch_size, share in ((None, 1.0), (32, 0.25)):
        chain = read_network(TABLE, batch_size)
        computing_s = share * sum(node.time_s for node in graph.nodes)
        assert sum(node.time_s for node in chain.nodes) == pytest.approx(computing_s)
        stages = partition(chain, [Level(4, 32e9)]).stages
        assert [(stage.first, stage.last, stage.replicas) for stage in stages] == [
            (0, 15, 3),
            (15, 40, 1),
        ]


def _block(number: int, **changes):
    timings = [
        {"batch_size": 32, "time_s": 0.1, "interval_s": None},
        {"batch_size": 64, "time_s": 0.3, "interval_s": None},
    ]
    return {
        "block": number,
        "name": f"block{number}",
        "parameter_bytes": 400,
        "buffer_bytes": 8,
        "input_bytes_per_sample": 4.0,
        "output_bytes_per_sample": 16.0,
        "saved_bytes_per_sample": 20.0,
        "forward": timings,
        "backward": timings,
    } | changes


def _profile(**changes):
    return Profile.from_dict(
        {
            "site": "here",
            "profile_id": "mnist/vgg11/fp32-1t",
            "dataset": "mnist",
            "network": "vgg11",
            "precision": "fp32",
            "threads_per_device": 1,
            "device_kind": "cpu",
            "batch_sizes": [32, 64],
            "steps": [],
            "layers": [],
            "blocks": [_block(0), _block(1)],
            "tensors": [],
            "node_slowdown": [],
            "fixed_memory_bytes": 7,
            "notes": [],
            "provenance": {},
        }
        | changes
    )


def test_our_profile_at_a_batch_size_between_two() -> None:
    chain = chain_of_profile(_profile(), 48)
    assert chain.fixed_bytes == 7
    node = chain.nodes[0]
    assert node.time_s == pytest.approx(0.4)
    assert (node.output_bytes, node.saved_bytes) == (16.0 * 48, 20.0 * 48)
    assert (node.parameter_bytes, node.buffer_bytes) == (400.0, 8.0)


def test_the_largest_measured_batch_size_is_taken() -> None:
    assert chain_of_profile(_profile()).nodes[0].time_s == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("profile", "batch", "says"),
    [
        (_profile(), 128, "block block0: measured at 32 to 64, not at 128"),
        (_profile(), 16, "not at 16"),
        (_profile(blocks=[]), None, "holds no blocks"),
        (_profile(blocks=[_block(0, forward=[])]), 32, "measured at no batch size"),
    ],
)
def test_profile_that_cannot_serve(profile, batch, says) -> None:
    with pytest.raises(ConfigError, match=says):
        chain_of_profile(profile, batch)


def _read(tmp_path, text, name="profile.csv"):
    path = tmp_path / name
    path.write_text(text)
    return read_network(path)


@pytest.mark.parametrize("size", ["Size", "Size(0)", "Size(-1)"])
def test_table_leaves_input_out_and_a_shape_carries_its_tensor(tmp_path, size) -> None:
    rows = f"node1,Input0,9,0,77,0\nnode2,Conv2d,1,2,9000,5\nnode3,{size},0,0,4,0\n"
    chain = _read(tmp_path, f"{HEADER}{rows}node4,View,0,0,9000,0\n")
    assert [node.output_bytes for node in chain.nodes] == [9000, 9004, 9000]
    assert chain.nodes[0].name == "node2 Conv2d"
    assert float(chain.time_s[0, -1]) == 0.003


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("node3,ReLU,1,1,8,0\nnode2,Conv2d,1,1,8,4\n", "'node2' comes after node 3"),
        ("node10,ReLU,1,1,8,0\nnode9,Conv2d,1,1,8,4\n", "'node9' comes after node 10"),
        ("node2,ReLU,1,1,8,0\nnode2,ReLU,1,1,8,0\n", "'node2' comes after node 2"),
        ("conv,Conv2d,1,1,8,0\nimages,Input0,0,0,8,0\n", "'images' is an input after a layer"),
        ("2,Conv2d,1,1,8,0\n3,Add(inplace),0,0,8,0\n", "'Add.inplace.', takes or gives several"),
        ("2,Conv2d,1,1,8,0\n3,Concat(1),0,0,8,0\n", "'Concat.1.', takes or gives several"),
        ("2,LSTM,1,1,[8; 4],0\n3,Linear,0,0,8,0\n", "'LSTM', takes or gives several"),
    ],
)
def test_a_table_that_is_no_chain_asks_for_the_graph(tmp_path, rows, says) -> None:
    with pytest.raises(ConfigError, match=f"{says}.*hand in PipeDream's graph.txt itself"):
        _read(tmp_path, HEADER + rows)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("node,layer,forward_ms\n1,Conv2d,3\n", "no column backward_ms, activation_bytes"),
        (HEADER + "2,Conv2d,-1,1,1,1\n", "node 2: forward_ms is -1"),
        (HEADER + "2,Conv2d,1,soon,1,1\n", "node 2: backward_ms is soon"),
        (HEADER + "2,Conv2d,1,inf,1,1\n", "node 2: backward_ms is inf"),
        (HEADER + "2,Conv2d,1,1,,1\n", "node 2: activation_bytes is nan"),
        (HEADER, "holds no layer"),
        (HEADER + "1,Input,1,1,1,1\n", "holds no layer"),
        ("", "not a readable table"),
        (HEADER + "1,2,3,4,5,6,7,8\n1\n2,2,2,2,2,2,2,2,2,2,2\n", "not a readable table"),
    ],
)
def test_wrong_tables(tmp_path, text, says) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as error:
        read_network(path)
    assert str(path) in str(error.value)


def test_wrong_files(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no such profile"):
        read_network(tmp_path / "none.csv")
    with pytest.raises(
        ConfigError, match="a profile is our .json, PipeDream's graph.txt or a .csv table"
    ):
        _read(tmp_path, "hello", "profile.log")
    with pytest.raises(ConfigError, match="not a readable profile"):
        (tmp_path / "profile.json").write_text("{")
        read_network(tmp_path / "profile.json")
    with pytest.raises(ConfigError, match="one batch size"):
        read_network(VGG16, 64)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Level(0, 1e9),
        lambda: Level(1, 0.0),
        lambda: Level(1, float("nan")),
        lambda: MemoryLimit(0),
    ],
)
def test_impossible_values_are_config_errors(make) -> None:
    with pytest.raises(ConfigError):
        make()


def test_balance_is_the_best_split_by_time() -> None:
    times = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    chain = Chain(tuple(Node(str(t), t, 1e9, 1e9, 1e9) for t in times))
    for parts in range(1, len(times) + 1):
        sizes = balance(chain, parts)
        assert sum(sizes) == len(times)
        assert len(sizes) == parts
        best = min(_slowest(times, cuts) for cuts in combinations(range(1, len(times)), parts - 1))
        ends = [sum(sizes[:n]) for n in range(1, parts)]
        assert _slowest(times, ends) == best
    with pytest.raises(ConfigError, match="8 layers cannot make 9 stages"):
        balance(chain, 9)


def _slowest(times, cuts) -> float:
    ends = [0, *cuts, len(times)]
    return max(sum(times[a:b]) for a, b in pairwise(ends))
