"""``ddlbench oracle partition`` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from partition_reference import graph_line

from ddlbench.commands.partition import partition
from ddlbench.common.errors import ConfigError

VGG16 = str(Path(__file__).with_name("pipedream_vgg16_graph.txt"))


def _run(*args: str):
    return CliRunner().invoke(partition, [VGG16, *args])


def test_json() -> None:
    result = _run("--machines", "4", "--bandwidth", "1e9", "--json")
    assert result.exit_code == 0, result.output
    nodes = [f"node{number}" for number in range(2, 42)]
    assert json.loads(result.output) == {
        "stages": [[0, 17, 3], [17, 40, 1]],
        "period_s": 0.205520896,
        "nodes": [nodes[:17], nodes[17:]],
    }


@pytest.mark.parametrize(
    "args",
    [
        ["--machines", "4", "4", "--bandwidth", "32e9", "5e9", "--json", VGG16],
        [VGG16, "--machines=4", "4", "--json", "--bandwidth=32e9", "5e9"],
        ["--machines", "4", "--machines", "4", VGG16, "--bandwidth", "32e9", "5e9", "--json"],
    ],
)
def test_levels_in_any_spelling(args) -> None:
    result = CliRunner().invoke(partition, args)
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["stages"] == [[0, 17, 12], [17, 25, 3], [25, 40, 1]]


def test_options_reach_the_programme() -> None:
    machines = ("--machines", "4", "--bandwidth", "1e9", "--json")
    straight = json.loads(_run(*machines, "--straight").output)
    assert [stage[2] for stage in straight["stages"]] == [1, 1, 1, 1]
    fast = ("--machines", "4", "--bandwidth", "32e9", "--json", "--cost-model", "paper")
    assert json.loads(_run(*fast).output)["stages"] == [[0, 40, 4]]
    tight = json.loads(_run(*machines, "--memory-bytes", "26e9").output)
    assert tight["period_s"] > 0.205520896


def test_table() -> None:
    output = _run("--machines", "4", "--bandwidth", "1e9").output
    assert "206 ms a mini-batch, 3.27x one device" in output
    assert "17 .. 39" in output
    assert "Stage 1: node19 .. node41" in output


def test_a_stage_of_a_branching_network_names_its_nodes(tmp_path) -> None:
    graph = tmp_path / "graph.txt"
    lines = [graph_line(f"node{n}", time_ms=10) for n in range(1, 8)]
    edges = ["1 2", "1 5", "2 3", "3 4", "5 6", "4 7", "6 7"]
    lines += ["\tnode{} -- node{}".format(*edge.split()) for edge in edges]
    graph.write_text("\n".join(lines))
    args = [str(graph), "--machines", "3", "--bandwidth", "1e9", "--straight"]
    actual = json.loads(CliRunner().invoke(partition, [*args, "--json"]).output)
    sizes = [last - first for first, last, _ in actual["stages"]]
    assert sizes == [len(names) for names in actual["nodes"]]
    assert sorted(name for names in actual["nodes"] for name in names) == [
        f"node{n}" for n in range(1, 8)
    ]
    output = CliRunner().invoke(partition, args).output
    for number in range(3):
        assert f"Stage {number}: node" in output


def test_one_replicated_stage_is_called_data_parallelism() -> None:
    args = ("--machines", "4", "--bandwidth", "32e9", "--cost-model", "paper")
    assert "1 stage, 4 replicas: this is data parallelism" in " ".join(_run(*args).output.split())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--machines", "4", "4", "--bandwidth", "1e9"], "2 level.* 1; write one bandwidth"),
        (["--machines", "0", "--bandwidth", "1e9"], "machines 0"),
        (["--machines", "4", "--bandwidth", "-1e9"], "bandwidth -1000000000.0"),
        (["--machines", "4", "--bandwidth", "1e9", "--memory-bytes", "1e9"], "does not fit"),
        (["--machines", "64", "--bandwidth", "1e9", "--straight"], "40 layers cannot make 64"),
    ],
)
def test_bad_input_is_one_sentence(args, says) -> None:
    with pytest.raises(ConfigError, match=says):
        partition.main([VGG16, *args], standalone_mode=False)


@pytest.mark.parametrize("args", [["--machines"], ["--machines", "4"], ["--bandwidth", "1e9"]])
def test_missing_options_are_usage_errors(args) -> None:
    result = _run(*args)
    assert result.exit_code == 2
    assert "Error" in result.output


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--machines", "4", "--bandwidth", "25Gbit"], "'25Gbit' is not a number; write it in"),
        (["--machines", "2,2", "--bandwidth", "1e9"], "'2,2' is not a whole number; write it in"),
    ],
)
def test_a_number_with_a_unit_and_a_list_with_commas_are_told(args, says) -> None:
    result = _run(*args)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
