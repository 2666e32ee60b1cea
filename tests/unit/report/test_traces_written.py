"""A cell as Kineto and Chakra traces and as a log of MLPerf: what stands in them is what it did."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import timeline_factory as made
from click.testing import CliRunner
from report_factory import result as result_of

from ddlbench.commands.timeline import timeline
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.result import Result, write_result
from ddlbench.planning.block_costs import block_costs
from ddlbench.planning.schedules import StageDurations
from ddlbench.predict.run_logs import mlperf
from ddlbench.report.timeline.box import COMPUTING, Box
from ddlbench.report.traces.breakdown import breakdowns_of
from ddlbench.report.traces.chakra import Collective, Node, NodeType, encoded
from ddlbench.report.traces.formats import FORMATS, write_cell
from ddlbench.report.traces.mllog import log_lines, unclaimed

EQUAL = StageDurations([0.01] * 8, [0.02] * 8)
MS = 1e-3


def ddp_boxes(rank=0):
    """One step: forward 10 ms, backward 20 ms, two buckets, 4 ms of waiting, update 2 ms."""

    def box(kind, start, end, micro_batch=None):
        return Box(rank, kind, 0, 7, micro_batch, start * MS, end * MS)

    return [
        box("forward", 0, 10),
        box("backward", 10, 30),
        box("all_reduce_bucket", 16, 24, 0),
        box("all_reduce_bucket", 24, 34, 1),
        box("all_reduce", 30, 34),
        box("update", 34, 36),
    ]


@pytest.fixture
def ddp(tmp_path):
    folder = made.write_plan(tmp_path / "ddp", made.cell_of("ddp"))
    made.write_trace(folder, [*ddp_boxes(0), *ddp_boxes(1)])
    return folder


def test_a_step_of_ddp_breaks_down_as_it_was_recorded(ddp, tmp_path):
    write_cell(ddp, "kineto", tmp_path / "out")
    actual = breakdowns_of([tmp_path / "out"])
    assert [breakdown.rank for breakdown in actual] == [0, 1]
    for breakdown in actual:
        assert breakdown.kernel_s == pytest.approx(36 * MS)
        assert breakdown.compute_s == pytest.approx(32 * MS)
        assert breakdown.exposed_s == pytest.approx(4 * MS)
        assert breakdown.overlap == pytest.approx(14 / 18)
        assert breakdown.idle_s == 0
        assert not breakdown.notes


@pytest.mark.parametrize(
    "strategy", ["pipe-1f1b", "pipe-interleaved", "pipedream", "gpipe", "model-parallel-p2p"]
)
def test_a_pipeline_computes_in_the_trace_as_long_as_it_did(strategy, tmp_path):
    boxes = made.write_cell(tmp_path / "cell", made.cell_of(strategy), EQUAL, 6, 0.001)
    write_cell(tmp_path / "cell", "kineto", tmp_path / "out")
    for rank, breakdown in enumerate(breakdowns_of([tmp_path / "out"], last_step=True)):
        rank_boxes = [box for box in boxes if box.row == rank and box.kind in COMPUTING]
        assert breakdown.compute_s == pytest.approx(
            sum(box.end_s - box.start_s for box in rank_boxes), 1e-3
        )
        assert breakdown.kernel_s - breakdown.idle_s == pytest.approx(breakdown.compute_s)


def test_a_wait_is_idle_and_blames_no_host(tmp_path):
    folder = made.write_plan(tmp_path / "cell", made.cell_of("pipe-1f1b"))
    events = [
        Box(0, "forward", 0, 1, 0, 0.0, 0.010),
        Box(0, "wait", 0, 1, None, 0.010, 0.050),
        Box(0, "backward", 0, 1, 0, 0.050, 0.070),
        Box(0, "update", 0, 1, None, 0.080, 0.090),
    ]
    made.write_trace(folder, events)
    write_cell(folder, "kineto", tmp_path / "out")
    actual = breakdowns_of([tmp_path / "out" / "rank-0.json"])[0]
    assert actual.idle_other_s == pytest.approx(0.040)
    assert actual.idle_host_s == pytest.approx(0.010)  # nothing was recorded of it


def test_kineto_says_what_hta_looks_for(ddp, tmp_path):
    _, second = write_cell(ddp, "kineto", tmp_path / "out")
    trace = json.loads(second.read_text())
    assert trace["distributedInfo"] == {"backend": "gloo", "rank": 1, "world_size": 2}
    assert '"rank": 1' in second.read_text().splitlines()[0]
    categories = {event["cat"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert categories == {"user_annotation", "cpu_op", "cuda_runtime", "kernel"}
    names = [event["name"] for event in trace["traceEvents"]]
    assert "ProfilerStep#7" in names
    assert trace["traceEvents"][0]["ph"] == "M"  # HTA takes a link to event 0 for none
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    links = [event["args"]["correlation"] for event in kernels]
    assert len(set(links)) == len(kernels) == 5


@pytest.mark.parametrize("name", FORMATS)
def test_a_folder_with_other_files_is_not_written_to(name, ddp, tmp_path):
    write_result(ddp / "result.json", measured())
    written = write_cell(ddp, name, tmp_path / "out")
    assert write_cell(ddp, name, tmp_path / "out") == written  # again
    (tmp_path / "out" / "rank-9.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"rank-9\.json"):
        write_cell(ddp, name, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"plan\.json|result\.json"):
        write_cell(ddp, name, ddp)


@pytest.mark.parametrize("name", FORMATS)
def test_a_cell_that_recorded_nothing_is_refused(name, tmp_path):
    folder = made.write_plan(tmp_path / "cell", made.cell_of("ddp"))
    with pytest.raises(ConfigError):
        write_cell(folder, name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command_names_the_files_that_it_wrote(ddp, tmp_path):
    out = tmp_path / "out"
    ended = CliRunner().invoke(timeline, [str(ddp), "--write", "chakra", str(out)])
    assert ended.output.split() == [str(out / "step.0.et"), str(out / "step.1.et")]
    ended = CliRunner().invoke(timeline, [str(ddp), "--write", "svg", str(out)])
    assert "kineto, chakra, mllog" in str(ended.exception)
    picture = ["--out", str(out), "--steps", "2"]
    ended = CliRunner().invoke(timeline, [str(ddp), "--write", "chakra", str(out), *picture])
    assert "--out, --steps: only for a picture" in str(ended.exception)


# A reader of the wire format, for what these tests ask.
def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == 2:
            value, at = data[at : at + value], at + value
        yield key >> 3, value


def node_of(data):
    node = {"attr": {}, "deps": []}
    names = {1: "id", 2: "name", 3: "type", 6: "start", 7: "duration"}
    for number, value in fields(data):
        if number == 10:
            (_, name), (_, content) = fields(value)
            node["attr"][name.decode()] = content
        elif number == 5:
            at = 0
            while at < len(value):
                dependency, at = varint(value, at)
                node["deps"].append(dependency)
        else:
            node[names[number]] = value
    return node


def graphs_of(folder, out):
    graphs = []
    for path in write_cell(folder, "chakra", out):
        if path.suffix != ".et":
            continue
        data, at, messages = path.read_bytes(), 0, []
        while at < len(data):
            size, at = varint(data, at)
            messages.append(data[at : at + size])
            at += size
        graphs.append([node_of(message) for message in messages[1:]])
    return graphs


@pytest.mark.parametrize("number", [1, 127, 128, 300, 2**31, 2**63 - 1])
def test_numbers_are_written_as_varints(number):
    read = node_of(encoded(Node(number, "n", NodeType.COMP, (1, number), duration_us=number)))
    assert (read["id"], read["duration"], read["deps"]) == (number, number, sorted({1, number}))


def test_a_negative_number_is_twos_complement():
    node = Node(1, "ä", NodeType.SEND, attributes={"comm_tag": -1, "is_cpu_op": True, "t": "x"})
    read = node_of(encoded(node))
    assert read["attr"] == {"comm_tag": 2**64 - 1, "is_cpu_op": 1, "t": b"x"}
    assert read["name"].decode() == "ä"


def test_buckets_of_ddp_leave_beside_the_backward_pass(ddp, tmp_path):
    for graph in graphs_of(ddp, tmp_path / "out"):
        kinds = [(node["name"].decode(), node["type"], node["deps"]) for node in graph]
        assert kinds == [
            ("forward", NodeType.COMP, []),
            ("backward", NodeType.COMP, [1]),
            ("all_reduce_bucket 0", NodeType.COLLECTIVE, [2]),
            ("backward", NodeType.COMP, [2]),
            ("all_reduce_bucket 1", NodeType.COLLECTIVE, [4]),
            ("backward", NodeType.COMP, [4]),
            ("update", NodeType.COMP, [3, 5, 6]),
        ]
        computed = [node["duration"] for node in graph if node["type"] == NodeType.COMP]
        assert computed == [10_000, 6_000, 8_000, 6_000, 2_000]
        sizes = [node["attr"] for node in graph if node["type"] == NodeType.COLLECTIVE]
        weights = sum(cost.parameter_bytes for cost in block_costs("vgg11", "mnist"))
        assert sum(size["comm_size"] for size in sizes) == pytest.approx(weights, abs=2)
        assert {size["comm_type"] for size in sizes} == {Collective.ALL_REDUCE}
        assert b"evenly" in sizes[0]["comm_size_from"]


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("pipe-1f1b", {}),
        ("pipe-interleaved", {}),
        ("pipe-zbv", {}),
        ("pipedream", {}),
        ("model-parallel-p2p", {}),
        ("gpipe", {}),
    ],
)
def test_every_send_of_a_pipeline_has_its_receive(strategy, options, tmp_path):
    cell = made.cell_of(strategy, **options)
    made.write_cell(tmp_path / "cell", cell, EQUAL, 6)
    graphs = graphs_of(tmp_path / "cell", tmp_path / "out")
    ends = {NodeType.SEND: [], NodeType.RECEIVE: []}
    for rank, graph in enumerate(graphs):
        for node in graph:
            assert all(0 < before < node["id"] for before in node["deps"])  # no circle
            if node["type"] in ends:
                known = node["attr"]
                pair = known["comm_src"], known["comm_dst"]
                assert rank == pair[node["type"] == NodeType.RECEIVE]
                ends[node["type"]].append((*pair, known["comm_tag"], known.get("comm_size")))
    sent, received = (sorted(values, key=str) for values in ends.values())
    assert sent == received
    assert len(set(sent)) == len(sent)
    assert sent


def test_activations_of_a_pipeline_have_their_bytes(tmp_path):
    cell = made.cell_of("pipe-1f1b", balance="4+18")
    made.write_cell(tmp_path / "cell", cell, EQUAL, 3)
    plan = json.loads((tmp_path / "cell" / "plan.json").read_text())
    graph = graphs_of(tmp_path / "cell", tmp_path / "out")[0]
    last = plan["details"]["stages"][0][1]
    micro_batches = plan["details"]["chunks"]
    output = block_costs("vgg11", "mnist")[last - 1].output_bytes
    sizes = {node["attr"]["comm_size"] for node in graph if node["type"] == NodeType.SEND}
    assert sizes == {round(output * cell.batch_size / micro_batches)}


def measured(validated=True, **changes):
    """A result of two epochs."""
    cell = made.cell_of("ddp").with_(epochs=2, **changes)
    accuracy = {"epoch": 2, "training_s": 9.0, "samples": 50, "correct": 38, "loss": 1.0}
    values = result_of(cell, validation=[{**accuracy, "accuracy": 0.76}] if validated else [])
    epoch = {"steps": 10, "samples": 320, "load_s": 0.1}
    values["timing"]["epochs"] = [
        {**epoch, "epoch": number, "elapsed_s": 5.0 - number} for number in range(2)
    ]
    return Result.from_dict(values)


def test_a_log_of_mlperf_is_read_back():
    result = measured()
    run = mlperf.read("\n".join(log_lines(result)), "log")
    epochs = result.timing.epochs
    assert run.global_batch == 32
    assert run.train_samples == result.timing.dataset_samples
    assert run.epochs_median == len(epochs)
    assert run.run_s_median == pytest.approx(sum(epoch.elapsed_s for epoch in epochs), abs=2e-3)
    assert run.status == "success"


def test_a_log_of_a_dataset_that_is_declared_nowhere_is_written():
    result = measured(validated=False)
    undeclared = replace(result, cell_id=result.cell_id.replace("mnist/", "photos/"))
    assert any('"train_samples"' in line for line in log_lines(undeclared))


def test_the_optimizer_has_mlperfs_keys():
    """Of MLCommons' mlperf-logging, ``mllog/constants.py``."""
    keys = {
        "adamw": {"opt_base_learning_rate", "opt_adamw_weight_decay"},
        "sgd": {"sgd_opt_base_learning_rate", "sgd_opt_momentum", "sgd_opt_weight_decay"},
    }
    for name, expected in keys.items():
        lines = log_lines(measured(optimizer=name))
        events = [json.loads(line.split(" ", 1)[1]) for line in lines if line.startswith(":::")]
        written = {event["key"] for event in events if "opt_" in event["key"]}
        assert written == {"opt_name", *expected}


def test_a_log_claims_a_benchmark_only_of_the_real_one():
    whole = {"network": "resnet50", "dataset": "imagenet", "data_source": "real"}
    assert unclaimed(measured(**whole)) == []
    lines = "\n".join(log_lines(measured(**whole)))
    assert '"key": "submission_benchmark", "value": "resnet"' in lines
    for change in (
        {"data_source": "synthetic"},
        {"data_scale": 0.5},
        {"max_steps": 5},
        {"network": "resnet18"},
        {"dataset": "cifar10"},
    ):
        result = measured(**{**whole, **change})
        assert unclaimed(result) == ["submission_benchmark"]
        assert "submission_benchmark" in next(
            line for line in log_lines(result) if line.startswith("# Not claimed")
        )
    assert "eval_accuracy" in unclaimed(measured(validated=False, **whole))
