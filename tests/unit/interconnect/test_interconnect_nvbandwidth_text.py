"""nvbandwidth's text is read like its JSON."""

import json

import pytest
from test_interconnect_nvbandwidth import BOTH, GOOD, LATENCY, WRITE, document

from ddlbench.common.errors import ConfigError
from ddlbench.interconnect.link_tests import format_of, read_link_test
from ddlbench.interconnect.nvbandwidth_json import parse_nvbandwidth
from ddlbench.interconnect.nvbandwidth_text import parse_nvbandwidth_text

HEAD = """\
nvbandwidth Version: v0.8
Built from Git version: v0.8

CUDA Runtime Version: 13000
CUDA Driver Version: 13000
Driver Version: 580.1

host-1
"""
DEVICES = "".join(f"Device {i}: NVIDIA H100 80GB HBM3 (00000000:{i}b:00)\n" for i in range(2))
HOST = """\
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.37     55.36

SUM host_to_device_memcpy_ce 110.73

"""
NOTE = "NOTE: The reported results may not reflect the full capabilities of the platform.\n"


def matrix_text(name, matrix, description):
    lines = [description, " " * 2 + "".join(f"{column:10d}" for column in range(len(matrix)))]
    for index, row in enumerate(matrix):
        words = (word if word == "N/A" else f"{float(word):.2f}" for word in row)
        lines.append(f"{index:2d}" + "".join(f"{word:>10}" for word in words))
    added = sum(float(word) for row in matrix for word in row if word != "N/A")
    return "\n".join([*lines, "", f"SUM {name} {added:.2f}", "", ""])


def test_text(case):
    name, rows = case["name"], case["bandwidth_matrix"]
    parts = ("_read1", "_read2", "_total") if len(rows) > 2 else ("",)
    return f"Running {name}.\n" + "".join(
        matrix_text(name + part, rows[2 * at : 2 * at + 2], case["bandwidth_description"])
        for at, part in enumerate(parts)
    )


test_text.__test__ = False
TESTS = [test_text(case) for case in GOOD]
TEXT = HEAD + DEVICES + "\n" + HOST + "".join(TESTS) + NOTE


def test_the_text_says_what_the_json_says():
    read = read_link_test(TEXT, "out")
    assert read == parse_nvbandwidth(json.dumps(document(*GOOD)))
    assert {pair["direction"] for pair in read["pairs"]} == {"unidirectional", "bidirectional"}


@pytest.mark.parametrize("prefix", ["0: ", "[1,0]<stdout>:", "2026-05-01 12:00:00 > "])
def test_what_stands_before_each_line_is_left_out(prefix):
    lines = "\n".join(prefix + line for line in TEXT.splitlines())
    assert parse_nvbandwidth_text(lines) == parse_nvbandwidth_text(TEXT)


def test_tests_that_ran_one_by_one_may_follow_each_other():
    one_by_one = "".join(HEAD + DEVICES + "\n" + each for each in TESTS)
    assert parse_nvbandwidth_text(one_by_one) == parse_nvbandwidth_text(TEXT)
    unnamed = parse_nvbandwidth_text("".join(TESTS))
    assert unnamed["devices"] == ["GPU", "GPU"]
    with pytest.raises(ConfigError, match=f"{WRITE} is in it twice"):
        parse_nvbandwidth_text(TEXT + TESTS[0], "out")
    with pytest.raises(ConfigError, match="device 0 is 'Other .*, and before another one"):
        parse_nvbandwidth_text(TEXT + DEVICES.replace("NVIDIA H100", "Other"), "out")


def test_other_tests_and_sums_that_are_no_number_decide_nothing():
    torn = TEXT.replace(" 0     55.37     55.36\n", " 7     55\n")
    unknown = TEXT.replace(f"SUM {WRITE} 411.00", f"SUM {WRITE} N/A")
    assert torn != TEXT != unknown
    for text in (torn, unknown):
        assert parse_nvbandwidth_text(text) == parse_nvbandwidth_text(TEXT)


def test_a_single_gpu_has_no_pairs():
    alone = HEAD + DEVICES.splitlines()[0] + "\nWaived: \nWaived: \n" + NOTE
    assert parse_nvbandwidth_text(alone) == {"devices": ["NVIDIA H100 80GB HBM3"], "pairs": []}


def test_gpus_without_peer_access_are_named():
    with pytest.raises(ConfigError, match="Waived.*no peer access: use p2pBandwidthLatencyTest"):
        parse_nvbandwidth_text(HEAD + DEVICES + HOST + "Waived: \n", "out")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("201.00", "261.00", f"{WRITE}: its values add up to 471, and its sum is 411"),
        (" 1    210.00       N/A\n", "", f"{WRITE}: not 2 rows of 2 values"),
        (" 0       N/A    201.00\n", "", "line 22: '1 .*' stands where row 0 should be"),
        ("N/A    201.00", "N/A    20", "its values add up to 230"),
        ("N/A    201.00", "N/A", "stands where row 0 should be"),
        ("201.00", "2o1.00", "'2o1.00' is not a number"),
        (f"Running {LATENCY}.", "", f"{LATENCY} is missing"),
        ("Device 0:", "Device 7:", "devices \\[1, 7\\] are listed"),
        (f"SUM {WRITE} 411.00", "", "status 'Running': its SUM line is missing"),
    ],
)
def test_a_damaged_text_is_one_sentence(old, new, sentence):
    assert old in TEXT
    with pytest.raises(ConfigError, match=f"^out.*{sentence}"):
        parse_nvbandwidth_text(TEXT.replace(old, new, 1), "out")


def test_a_text_that_was_cut_off_gives_no_other_numbers():
    whole = {
        (pair["direction"], pair["operation"]): pair
        for pair in parse_nvbandwidth_text(TEXT)["pairs"]
    }
    for end in range(0, len(TEXT), 7):
        if format_of(TEXT[:end]) is None:
            continue
        try:
            pairs = parse_nvbandwidth_text(TEXT[:end], "out")["pairs"]
        except ConfigError:
            continue
        assert all(whole[pair["direction"], pair["operation"]] == pair for pair in pairs)
    assert BOTH in TEXT


def test_a_value_of_the_json_that_its_sum_denies():
    changed = json.dumps(document(*GOOD)).replace('"201"', '"261"', 1)
    with pytest.raises(ConfigError, match="add up to 471, and its sum is 411"):
        parse_nvbandwidth(changed, "out")
