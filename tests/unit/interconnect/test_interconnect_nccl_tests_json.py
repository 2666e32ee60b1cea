"""The JSON of nccl-tests is read like its text."""

import json

import pytest
from click.testing import CliRunner
from test_interconnect_nccl_tests import ROWS, TITLE, ranks, text

from ddlbench.commands.links import links as links_command
from ddlbench.commands.oracle import oracle
from ddlbench.common.errors import ConfigError
from ddlbench.interconnect.link_tests import read_link_test
from ddlbench.interconnect.nccl_tests import parse_nccl_tests
from ddlbench.interconnect.nccl_tests_json import is_nccl_json, parse_nccl_json

KEYS = ("time", "alg_bw", "bus_bw", "nwrong")


def result(row):
    size, count, kind, redop, root, *numbers = row.split()
    halves = [dict(zip(KEYS, map(float, numbers[at : at + 4]), strict=True)) for at in (0, 4)]
    return {
        "size": int(size), "count": int(count), "type": kind, "redop": redop,
        "root": f"{root:>6}", "out_of_place": halves[0], "in_place": halves[1],
        "actual_iterations": 20, "experiment_name": "default",
    }  # fmt: skip


def document(per_process=1, program="all_reduce_perf", **others):
    """As src/util.cu writes it: the first device of each process, booleans as texts."""
    devices = [
        {
            "rank": rank, "group": 0, "pid": 1887 + rank, "hostname": f"worker-{rank // 8}",
            "device": rank % 8, "device_hex": "0x8d", "device_info": "NVIDIA H100 80GB HBM3",
        }
        for rank in range(0, 16, per_process)
    ]  # fmt: skip
    return {
        "version": 2, "start_time": "2026-01-01 10:00:00",
        "args": [f"/opt/nccl-tests/build/{program}", "-J", "out.json"],
        "env": ["_=/usr/bin/alltoall_perf"], "nccl_version": 22809,
        "config": {"nthreads": 1, "ngpus": per_process, "devices": devices, "graph": 0},
        "results": [result(row) for row in ROWS.splitlines()],
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 415.1, "okay": "unchecked"},
        "errors": [""], "end_time": "2026-01-01 10:01:00", **others,
    }  # fmt: skip


def parsed(**changes):
    return parse_nccl_json(json.dumps(document(**changes)), "out")


@pytest.mark.parametrize("per_process", [1, 8])
def test_the_json_says_what_the_text_says(per_process):
    written = json.dumps(document(per_process))
    assert is_nccl_json(written)
    assert read_link_test(written, "out") == parse_nccl_tests(text(), "out")


def test_a_process_of_several_devices_that_are_all_listed():
    value = document()
    value["config"]["ngpus"] = 8
    assert parse_nccl_json(json.dumps(value), "out").ranks == 16


def test_the_name_of_the_program_counts():
    assert parsed(program="reduce_scatter_perf").operation == "reduce_scatter"
    with pytest.raises(ConfigError, match="alltoall_perf cannot be compared"):
        parsed(program="alltoall_perf")


def test_failed_checks_and_a_missing_end_are_remarks():
    value = document(out_of_bounds={"count": 2, "okay": "false"})
    del value["end_time"]
    remarks = " ".join(parse_nccl_json(json.dumps(value), "out").remarks)
    assert "sizes with wrong values (2)" in remarks and "last line is missing" in remarks


def changed(key, value, half="out_of_place"):
    first, second = document()["results"]
    other = {**first[half], key: value} if key else value
    return [{**first, half: other}, second, second]


@pytest.mark.parametrize(
    "results",
    [
        changed("time", "nan"),
        changed("time", 2159.2),  # its rate says 2559.2
        changed("alg_bw", 309.78),
        changed("", None),  # only the whole run is measured in place alone
    ],
)
def test_a_result_that_contradicts_itself_is_left_out(results):
    test = parsed(results=results)
    assert [point.payload_bytes for point in test.points] == [2**30]
    assert any("1 row is left out" in remark for remark in test.remarks)


def test_a_run_that_was_measured_in_place_only():
    results = [{**row, "out_of_place": None} for row in document()["results"]]
    assert [point.time_s for point in parsed(results=results).points] == [
        pytest.approx(2560.1e-6),
        pytest.approx(4610e-6),
    ]


def test_times_of_the_cpu_are_refused():
    results = document()["results"]
    for row in results:
        for half in ("out_of_place", "in_place"):
            row[half]["cpu_time"] = row[half].pop("time")
    with pytest.raises(ConfigError, match="times are those of the CPU; .* without -C 1"):
        parsed(results=results)
    with pytest.raises(ConfigError, match="times are those of the CPU"):
        parse_nccl_tests(text().replace(TITLE, TITLE.replace("time", "cputime")), "out")


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ({"results": []}, "no row of nccl-tests in it"),
        ({"results": changed("time", "nan")[:1]}, "none of its results has a time that fits"),
        ({"results": {}}, "'results' is {}"),
        ({"results": [7]}, "results 1 is 7 instead of an object"),
        ({"results": [{"size": "x", "in_place": {"time": 1.0}}]}, "results 1: 'size' is 'x'"),
        ({"results": changed("time", [])}, "out_of_place: 'time' is \\[\\]"),
        ({"config": None}, "'config' is None"),
        ({"config": {"nthreads": 0, "ngpus": 8, "devices": []}}, "nthreads x ngpus is 0"),
        ({"config": {"nthreads": 1, "ngpus": 1}}, "'devices' is missing"),
    ],
)
def test_a_damaged_file_is_one_sentence(others, sentence):
    with pytest.raises(ConfigError, match=f"^out: .*{sentence}"):
        parsed(**others)


def test_json_that_was_cut_off_is_one_sentence():
    whole = json.dumps(document())
    for end in range(whole.index('"config"'), len(whole), 61):
        with pytest.raises(ConfigError, match="out line 1: not complete JSON .* -J FILE again"):
            parse_nccl_json(whole[:end], "out")


def test_a_text_row_without_its_out_of_place_half_is_left_out():
    first, second = ROWS.splitlines()
    blank = first.replace("2559.2  209.78  393.34      0", " " * 30)
    test = parse_nccl_tests(text("\n".join([blank, second, second])), "out")
    assert [point.payload_bytes for point in test.points] == [2**30]
    assert any("1 row is left out" in remark for remark in test.remarks)


def test_a_text_with_times_of_single_iterations():
    rows = "\n".join(
        f"{row[:83]} 1.0 2.0 2.0 9.7 {row[83:]} 1.0 2.0 2.0 9.7" for row in ROWS.splitlines()
    )
    assert parse_nccl_tests(text(rows), "out").points == parse_nccl_tests(text(), "out").points
    assert ranks(16) in text(rows)


def run(command, *words):
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)


def test_the_commands_read_it_like_the_text(tmp_path):
    json_file, text_file, table = (tmp_path / name for name in ("a.json", "a.txt", "points.csv"))
    json_file.write_text(json.dumps(document(8)))
    text_file.write_text(text())
    given = ("--hardware", "h100-sxm", "--fabric", "efa-3200", "--json")
    both = [run(links_command, "compare", file, *given).stdout for file in (json_file, text_file)]
    assert both[0] == both[1]
    assert (
        run(links_command, "read", json_file).stdout == run(links_command, "read", text_file).stdout
    )
    run(oracle, "read", json_file, "--output", table)
    first = table.read_text().splitlines()[1]
    assert first.startswith("all-reduce,NVIDIA H100 80GB HBM3,2,16,536870912,0.0025592,")


def test_a_link_test_without_ranks_makes_no_table(tmp_path):
    file = tmp_path / "osu.txt"
    file.write_text("# OSU MPI Latency Test v7.5\n# Size       Avg Latency(us)\n1   2.00\n")
    with pytest.raises(
        ConfigError, match="expected times are those of NCCL.*`ddlbench links read`"
    ):
        run(oracle, "read", file, "--output", tmp_path / "points.csv")


def test_a_training_s_log_counts_before_a_link_test_at_its_beginning(tmp_path):
    steps = "".join(
        f" iteration {step:8d}/      20 | consumed samples: {8 * step} | elapsed time per "
        "iteration (ms): 500.0 | global batch size: 8 | lm loss: 1.0E+00 |\n"
        for step in range(1, 11)
    )
    (tmp_path / "slurm.out").write_text(text() + steps)
    run(oracle, "read", tmp_path / "slurm.out", "--output", tmp_path / "runs.csv")
    assert ",Megatron," in (tmp_path / "runs.csv").read_text()
