"""OSU micro-benchmarks: planted times and rates land where links.json has them."""

import json

import pytest
from click.testing import CliRunner

from ddlbench.commands.links import links as links_command
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.site import GivenLink
from ddlbench.interconnect.link_tests import format_of, read_link_test
from ddlbench.interconnect.osu import parse_osu

# As Alps' documentation shows it (7.5, two nodes, Slingshot 11), of which some rows are left out.
BIBW = """\
/usr/local/bin/osu_bibw: /usr/lib/libnl-3.so.200: no version information available

# OSU MPI Bi-Directional Bandwidth Test v7.5
# Datatype: MPI_CHAR.
# Size      Bandwidth (MB/s)        Validation
1                       0.93              Pass
2                       1.94              Pass
4                       3.89              Pass
128                   123.73              Pass
"""
SIZES = (1, 2, 4, 1024, 1 << 20, 1 << 22)
LATENCY_US, BYTES_PER_US = 1.5, 12_000


def test_text(name, column, values, library="MPI"):
    lines = [f"# OSU {library} {name} Test v7.5", f"# Size{column:>25}"]
    lines += [f"{size:<10d}{value:18.2f}" for size, value in values]
    return "\n".join(["", *lines, ""])


test_text.__test__ = False
TIMES = [(size, LATENCY_US + size / BYTES_PER_US) for size in SIZES]
LATENCY = test_text("Latency", "Avg Latency(us)", TIMES)
BANDWIDTH = test_text("Bandwidth", "Bandwidth (MB/s)", [(size, 11_000.0) for size in SIZES])
BOTH = test_text(
    "Bi-Directional Bandwidth", "Bandwidth (MB/s)", [(size, 20_000.0) for size in SIZES]
)


def link(text):
    return parse_osu(text, "out").to_dict()["link"]


def test_times_are_one_way_and_of_two_sizes_come_both_values_of_a_link():
    (test,) = read_link_test(LATENCY, "out").tests
    assert (test.library, test.operation, test.directions) == ("mpi", "p2p", 1)
    assert [time.message_bytes for time in test.times] == list(SIZES)
    assert test.times[0].time_s == pytest.approx(1.5e-6)
    # Two digits after the point, as printed, are 3e-5 of the longest time.
    assert link(LATENCY) == {
        "latency_s": pytest.approx(1.5e-6),
        "bandwidth_bytes_per_s": pytest.approx(12e9, rel=1e-4),
    }


def test_an_empty_message_is_no_latency():
    """As a mail of 2015 shows it (4.4.1, buffers on GPUs): 1.26 and 1442.93 us."""
    assert link(test_text("Latency", "Latency (us)", [(0, 0.1), *TIMES])) == link(LATENCY)


def test_a_megabyte_is_a_million_bytes_and_both_directions_are_halved():
    assert link(LATENCY + BANDWIDTH)["bandwidth_bytes_per_s"] == pytest.approx(11e9)
    assert link(LATENCY + BOTH)["bandwidth_bytes_per_s"] == pytest.approx(10e9)
    assert link(BOTH + BANDWIDTH + LATENCY)["bandwidth_bytes_per_s"] == pytest.approx(11e9)
    (test,) = parse_osu(BIBW, "out").tests
    assert test.rates[-1].bandwidth_bytes_per_s == pytest.approx(123.73e6 / 2)


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("Allreduce Latency", "all_reduce"),
        ("Broadcast Latency", "broadcast"),
        ("Allgather Latency", "all_gather"),
        ("Reduce_scatter Latency", "reduce_scatter"),
    ],
)
@pytest.mark.parametrize(
    ("library", "known"), [("MPI", "mpi"), ("MPI-CUDA", "mpi"), ("NCCL-CUDA", "nccl")]
)
def test_collectives(name, operation, library, known):
    (test,) = parse_osu(test_text(name, "Avg Latency(us)", TIMES, library), "out").tests
    assert (test.operation, test.library) == (operation, known)
    assert parse_osu(test_text(name, "Avg Latency(us)", TIMES), "out").to_dict()["link"] is None


def test_of_the_full_format_the_slowest_rank_counts():
    """As JSC's tutorial shows it (7.0)."""
    text = (
        "# OSU MPI-CUDA Allreduce Latency Test v7.0\n"
        "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n"
        "16777216             8630.58           8619.50           8642.46         10\n"
    )
    (time,) = parse_osu(text, "out").tests[0].times
    assert (time.message_bytes, time.time_s) == (2**24, pytest.approx(8642.46e-6))


def test_old_and_new_headings_and_lines_with_a_rank():
    plain = parse_osu(LATENCY, "out").tests[0].times
    old = LATENCY.replace("Avg Latency(us)", "Latency (us)").replace(" v7.5", " v3.3")
    assert parse_osu(old, "out").tests[0].times == plain
    tails = LATENCY.replace("Avg Latency(us)", "Avg Latency(us)  P50 Tail Lat(us)")
    tails = "\n".join(
        f"{line}   7.00" if line[:1].isdigit() else line for line in tails.split("\n")
    )
    assert parse_osu(tails, "out").tests[0].times == plain
    for prefix in ("0: ", "[1,0]<stdout>:", "2026-03-01T10:00:00Z node1 "):
        lines = "\n".join(prefix + line for line in LATENCY.splitlines())
        assert parse_osu(lines, "out").tests[0].times == plain


def test_tests_that_are_not_read_are_remarks_or_one_sentence():
    hello = "# OSU MPI Hello World Test v7.5\nThis is a test with 2 processes\n"
    read = parse_osu(hello + LATENCY, "out")
    assert len(read.tests) == 1
    assert read.remarks == ("line 1: OSU MPI Hello World Test is left out",)
    for name in ("MPI Multi Latency", "MPI_Put Latency", "MPI Non-blocking Allreduce Latency"):
        title = f"# OSU {name} Test v7.5\n# Size  Latency (us)\n1  2.00\n"
        with pytest.raises(ConfigError, match=f"out: OSU {name} Test is not read here; give all"):
            parse_osu(title, "out")


@pytest.mark.parametrize(
    ("row", "torn"),
    [
        ("1024                    1.59", "1024                    1.5"),  # cut off
        ("1024                    1.59", "1024"),
        ("1024                    1.59", "24                    1.59"),  # its beginning is lost
        ("1024                    1.59", "1124                    1.59"),  # a changed digit
        ("1024                    1.59", "1024           mlx5: 1.59"),
        ("1024                    1.59", "2                    1.59"),
    ],
)
def test_a_torn_row_is_left_out(row, torn):
    assert row in LATENCY
    read = parse_osu(LATENCY.replace(row, torn), "out")
    assert [time.message_bytes for time in read.tests[0].times] == [
        size for size in SIZES if size != 1024
    ]
    assert "1 row is left out" in read.remarks[0]


def test_a_text_that_was_cut_off_gives_no_other_times():
    whole = parse_osu(LATENCY, "out").tests[0].times
    for end in range(len(LATENCY)):
        if format_of(LATENCY[:end]) is None:
            continue
        try:
            times = parse_osu(LATENCY[:end], "out").tests[0].times
        except ConfigError:
            continue
        assert times == whole[: len(times)]


def test_what_is_missing_for_a_link_is_said():
    short = test_text("Latency", "Avg Latency(us)", TIMES[:3])
    for text, sentence in (
        (BANDWIDTH, "its latency is missing .* osu_latency or ib_send_lat, too"),
        (short, "its bandwidth is missing .* osu_bw or ib_send_bw, too"),
        (short + BANDWIDTH.replace("1048576", "#").replace("4194304", "#"), "bandwidth is missing"),
        (LATENCY + LATENCY, "several latency tests are in it; give those of one pair"),
        (LATENCY + BANDWIDTH + BANDWIDTH, "several bandwidth tests"),
    ):
        values = parse_osu(text, "out").to_dict()
        assert values["link"] is None
        with pytest.raises(AssertionError, match=sentence):
            raise AssertionError(values["remarks"][-1])


def test_failed_validation_is_a_remark():
    remarks = parse_osu(BIBW.replace("123.73              Pass", "123.73              Fail"), "out")
    assert "wrong values" in remarks.remarks[0]


def run(*words):
    return CliRunner().invoke(links_command, [str(word) for word in words], catch_exceptions=False)


def test_two_files_make_a_link_for_the_site_file(tmp_path):
    (tmp_path / "latency.txt").write_text(LATENCY)
    (tmp_path / "bw.txt").write_text(BANDWIDTH)
    (tmp_path / "links.json").write_text('{"schema_version": 1}')
    both = json.loads(run("read", tmp_path / "latency.txt", tmp_path / "bw.txt").stdout)
    assert both["link"] == link(LATENCY + BANDWIDTH)
    assert GivenLink.from_dict(both["link"]).latency_s == both["link"]["latency_s"]
    assert [test["title"] for test in both["tests"]] == [
        "OSU MPI Latency Test",
        "OSU MPI Bandwidth Test",
    ]
    alone = run("read", tmp_path / "bw.txt")
    assert "its latency is missing" in alone.stderr
    with pytest.raises(ConfigError, match="is a file of ddlbench"):
        run("read", tmp_path / "bw.txt", tmp_path / "links.json")
    row = " 1048576 262144 float sum -1 46.1 22.7 42.6 0 45.0 23.3 43.7 0"
    (tmp_path / "nccl.txt").write_text(f"# nThread 1 nGpus 1\n# all_reduce_perf\n{row}\n")
    with pytest.raises(ConfigError, match="nccl.txt is no test of messages .* give it alone"):
        run("read", tmp_path / "bw.txt", tmp_path / "nccl.txt")


def test_nccl_s_collectives_are_compared_and_mpi_s_are_not(tmp_path):
    file = tmp_path / "osu.txt"
    words = ["compare", file, "--hardware", "a100-sxm-80gb"]
    # As a tutorial of Oracle's cloud shows it (7.5): eight GPUs of one node.
    values = [(2**30, 8955.18)]
    file.write_text(test_text("Allreduce Latency", "Avg Latency(us)", values, "NCCL-CUDA"))
    assert "for one node of 8 x NVIDIA A100" in run(*words, "--nodes", "1").output
    with pytest.raises(ConfigError, match="does not list its nodes; give --nodes"):
        run(*words)
    with pytest.raises(ConfigError, match="one rank sends nothing"):
        run(*words, "--nodes", "1", "--devices-per-node", "1")
    # Of an all-gather each rank gives a share of the whole buffer.
    file.write_text(test_text("Allgather Latency", "Avg Latency(us)", values, "NCCL-CUDA"))
    compared = json.loads(run(*words, "--nodes", "1", "--json").stdout)
    assert compared["sweeps"][0]["points"][0]["payload_bytes"] == 8 * 2**30
    file.write_text(test_text("Allreduce Latency", "Avg Latency(us)", [(0, 9.5)], "NCCL-CUDA"))
    with pytest.raises(ConfigError, match="no sweep of NCCL"):  # empty messages alone
        run(*words, "--nodes", "1")
    file.write_text(LATENCY)
    with pytest.raises(ConfigError, match="has OSU MPI Latency Test, and expected times are those"):
        run(*words, "--nodes", "1")
