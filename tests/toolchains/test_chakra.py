"""MLCommons' Chakra reads the traces of a cell, and finds the nodes that were written."""

from __future__ import annotations

import json
import subprocess
from collections import Counter

import networkx
import pytest
from cases.traced_cells import DDP, PIPELINE, folder_of

from ddlbench.report.traces.formats import write_cell

READ = """
import json, sys
from chakra.schema.protobuf.et_def_pb2 import GlobalMetadata, Node, NodeType
from chakra.src.third_party.utils.protolib import decodeMessage, openFileRd
file = openFileRd(sys.argv[1])
about = GlobalMetadata()
assert decodeMessage(file, about)
nodes = []
while True:
    node = Node()
    if not decodeMessage(file, node):
        break
    attributes = {one.name: getattr(one, one.WhichOneof("value")) for one in node.attr}
    nodes.append({"id": node.id, "name": node.name, "type": NodeType.Name(node.type),
                  "after": list(node.data_deps), "us": node.duration_micros, **attributes})
print(json.dumps({"version": about.version, "nodes": nodes}))
"""


@pytest.fixture(scope="session")
def chakra(tool):
    """The folder of Chakra's programs."""
    return tool("chakra")


def run(*command):
    ended = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def nodes_of(chakra, cell, out):
    files = [path for path in write_cell(folder_of(cell), "chakra", out) if path.suffix == ".et"]
    read = [json.loads(run(chakra / "python", "-c", READ, path)) for path in files]
    assert {trace["version"] for trace in read} == {"1.0.0"}
    return [trace["nodes"] for trace in read]


def test_the_step_of_ddp_is_read_with_its_sums(chakra, tmp_path):
    graphs = nodes_of(chakra, DDP, tmp_path)
    assert len(graphs) == 2
    for nodes in graphs:
        kinds = Counter(node["type"] for node in nodes)
        assert set(kinds) == {"COMP_NODE", "COMM_COLL_NODE"}
        sums = [node for node in nodes if node["type"] == "COMM_COLL_NODE"]
        assert all(node["comm_type"] == 0 and node["comm_size"] > 0 for node in sums)
        update = next(node for node in nodes if node["name"] == "update")
        assert {node["id"] for node in sums} <= set(update["after"])
        assert sum(node["us"] for node in nodes if node["type"] == "COMP_NODE") > 0


def test_sends_and_receives_of_a_pipeline_meet(chakra, tmp_path):
    graphs = nodes_of(chakra, PIPELINE, tmp_path)
    ends = {"COMM_SEND_NODE": [], "COMM_RECV_NODE": []}
    for nodes in graphs:
        for node in nodes:
            if node["type"] in ends:
                message = (node[f"comm_{of}"] for of in ("src", "dst", "tag", "size"))
                ends[node["type"]].append(tuple(message))
    assert ends["COMM_SEND_NODE"]
    assert sorted(ends["COMM_SEND_NODE"]) == sorted(ends["COMM_RECV_NODE"])


@pytest.mark.parametrize("cell", [DDP, PIPELINE], ids=["ddp", "pipe-1f1b"])
def test_the_programs_of_chakra_read_a_step(chakra, cell, tmp_path):
    for path in write_cell(folder_of(cell), "chakra", tmp_path / "out"):
        if path.suffix != ".et":
            continue
        text, graph = tmp_path / "step.json", tmp_path / "step.graphml"
        run(chakra / "chakra_jsonizer", "--input_filename", path, "--output_filename", text)
        assert "COMP_NODE" in text.read_text()
        run(chakra / "chakra_visualizer", "--input_filename", path, "--output_filename", graph)
        drawn = networkx.read_graphml(graph)
        assert networkx.is_directed_acyclic_graph(drawn)
        assert networkx.is_weakly_connected(drawn)
